"""The commands of `docs/test-your-dra-driver.md` print what the guide shows."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from devicecore_tools.conformance.dra.environment import Environment
from devicecore_tools.conformance.dra.settings import DriverTestSettings
from tests.kit.test_docs import assert_prints_what_is_shown

GUIDE = (Path(__file__).parents[4] / "docs" / "test-your-dra-driver.md").read_text(encoding="utf-8")
GO = re.compile(r"```go\n(.*?)```", re.DOTALL)
ROLLING_UPDATE = re.compile(r"`(kubeletplugin\.RollingUpdate\(.*\))`")
FILE = re.compile(r"<!-- file: (\S+) -->\n```yaml\n(.*?)```", re.DOTALL)
# Of the run by default, only what the guide shows: the rest is waiting.
SOONER = {"passing": "--only announces-known-versions --only completes-its-pools"}


@pytest.mark.parametrize(("name", "status"), [("passing", 0), ("failing", 1), ("claims", 0)])
def test_a_command_prints_what_the_guide_shows(tmp_path: Path, name: str, status: int) -> None:
    for file, content in FILE.findall(GUIDE):
        (tmp_path / file).write_text(content)
    sooner = "conformance driver", f"conformance driver {SOONER.get(name, '')}"
    assert_prints_what_is_shown(GUIDE, name, status, tmp_path, sooner)


def test_the_table_names_every_placeholder_and_variable_of_the_driver() -> None:
    rows = {
        row[0]: row[1] for row in re.findall(r"^\| `(\{\w+\})` \| (?:`(\w+)`|none, see below) \|", GUIDE, re.MULTILINE)
    }
    with Environment(DriverTestSettings()) as environment:
        variables = environment.variables()
        for placeholder, variable in rows.items():
            if variable:
                assert variables[variable] == environment.expand(placeholder)
        assert environment.expand("{pod_uid}") != "{pod_uid}"
    assert len(rows) == 6


# The packages that the guide's Go code uses, with the signatures of k8s.io/dynamic-resource-allocation v0.34.
GO_PACKAGES = {
    "k8s.io/apimachinery/pkg/types": "type UID string",
    "k8s.io/client-go/rest": "type Config struct{}",
    "k8s.io/client-go/tools/clientcmd": """import "k8s.io/client-go/rest"
func BuildConfigFromFlags(masterUrl, kubeconfigPath string) (*rest.Config, error) { return nil, nil }""",
    "k8s.io/client-go/kubernetes": """import "k8s.io/client-go/rest"
type Interface interface{ marker() }
type Clientset struct{}
func (*Clientset) marker() {}
func NewForConfig(c *rest.Config) (*Clientset, error) { return nil, nil }""",
    "k8s.io/dynamic-resource-allocation/kubeletplugin": """import (
	"context"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)
type DRAPlugin interface{}
type Option func()
type Helper struct{}
func (*Helper) Stop() {}
func Start(ctx context.Context, plugin DRAPlugin, opts ...Option) (*Helper, error) { return nil, nil }
func DriverName(name string) Option { return nil }
func NodeName(name string) Option { return nil }
func KubeClient(client kubernetes.Interface) Option { return nil }
func RegistrarDirectoryPath(path string) Option { return nil }
func PluginDataDirectoryPath(path string) Option { return nil }
func RollingUpdate(uid types.UID) Option { return nil }""",
}
GO_MAIN = """package main
import (
	"context"
	"os"
	"path/filepath"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)
func run(ctx context.Context, driver kubeletplugin.DRAPlugin) error {
%s
	return nil
}
func main() { _ = run(context.Background(), nil); _ = %s }
"""


GO_COMMAND = shutil.which("go")


@pytest.mark.skipif(GO_COMMAND is None, reason="it needs Go")
def test_the_go_code_is_compiled_as_it_is_printed(tmp_path: Path) -> None:
    (code,), (option,) = GO.findall(GUIDE), ROLLING_UPDATE.findall(GUIDE)
    sources = {f"{path}/package.go": f"package {Path(path).name}\n{text}\n" for path, text in GO_PACKAGES.items()}
    for name, text in {**sources, "driver/main.go": GO_MAIN % (code, option)}.items():
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_text(text)
    settings = {"GO111MODULE": "off", "GOPATH": str(tmp_path), "GOFLAGS": "", "GOCACHE": str(tmp_path / "cache")}
    built = subprocess.run(
        [GO_COMMAND or "go", "build", "-o", str(tmp_path / "driver"), "driver"],
        capture_output=True,
        text=True,
        env={**os.environ, **settings},
        check=False,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr
