"""The GitHub Action and the Dockerfile, run as far as possible without GitHub and without a container engine.

The Action's last step runs in bash, with the environment that GitHub gives it. The Dockerfile's stage for images
runs in a separate root directory, on a copy-on-write view of this machine.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from devicecore_tools.command.commands import devicecore as tree
from devicecore_tools.conformance.faults import PLUGIN

ROOT = Path(__file__).parents[4]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
QUICK = "--only 'lists-*' --only gives-nodes-by-id"

# A stand-in for a container engine: the image, and /subject in it, are overlays of this machine's files.
DOCKER = r"""#!/bin/bash -e
echo "docker $*" >> "$RUNNER_TEMP/docker.log"
case "$1 $2" in
"image inspect") [[ $3 == --format ]] && printf '%s\n' {command} '' || echo '[]' ;;
"build --target") ;;
"run --rm") shift 2; exec unshare --mount "$RUNNER_TEMP/container" "$@" ;;
*) exit 99 ;;
esac
"""
CONTAINER = r"""#!/bin/bash -e
mount -t tmpfs none "$RUNNER_TEMP/layers"
cd "$RUNNER_TEMP/layers"
mkdir image.upper image.work image subject.upper subject.work
mknod image.upper/tmp c 0 0 # hides the directory below it
mknod subject.upper/tmp c 0 0
mount -t overlay -o lowerdir=/,upperdir=image.upper,workdir=image.work none image
mkdir image/tmp image/subject
mount -t overlay -o lowerdir=/,upperdir=subject.upper,workdir=subject.work none image/subject
mount --rbind /proc image/proc
mount --rbind /dev image/dev
while [[ $1 == --* ]]; do
  if [[ $1 == --volume ]]; then
    IFS=: read -r source target _ <<< "$2"
    mkdir -p "image$target"
    mount --rbind "$source" "image$target"
    shift
  fi
  shift
done
shift
chroot image sh -e -c {prepare}
exec chroot image sh -c 'cd /workspace && exec "$@"' sh {devicecore} conformance "$@"
"""


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions, with continued lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [(line.split(maxsplit=1)[0], " ".join(line.split()[1:])) for line in lines if line.strip()]


def stages() -> dict[str, list[tuple[str, str]]]:
    """Return each stage's instructions, by the stage's name."""
    found: dict[str, list[tuple[str, str]]] = {}
    for instruction, text in instructions():
        if instruction == "FROM":
            found[text.split(" AS ")[1]] = []
        elif found:
            found[list(found)[-1]].append((instruction, text))
    return found


def action(tmp_path: Path, **inputs: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """Run the Action's last step as GitHub would, and return the result and the step's outputs."""
    (step,) = [step for step in STEPS if step.get("id") == "run"]
    values = {name: spec["default"] for name, spec in ACTION["inputs"].items()} | {"release": "v1.2.3"} | inputs
    environment = {
        name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: values[found[1]], text)
        for name, text in step["env"].items()
    }
    temporary, workspace, output = tmp_path / "runner", tmp_path / "workspace", tmp_path / "output"
    for directory in (temporary, workspace):
        directory.mkdir()
    (temporary / "devicecore").symlink_to(sys.prefix)  # as the previous step leaves it
    script = tmp_path / "step.sh"
    script.write_text(step["run"], encoding="utf-8")
    if inputs.get("image"):
        stand_in_for_docker(temporary)
    ran = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", script],  # noqa: S607 - as the service calls it
        cwd=workspace,
        env={
            **environment,
            "PATH": f"{temporary}:{os.environ['PATH']}",
            "GITHUB_OUTPUT": str(output),
            "GITHUB_ACTION_PATH": str(ROOT),
            "RUNNER_TEMP": str(temporary),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    lines = output.read_text().splitlines() if output.exists() else []
    return ran, dict(line.split("=", 1) for line in lines)


def stand_in_for_docker(temporary: Path) -> None:
    """Put a stand-in for `docker` on the PATH of a step."""
    prepare = " && ".join(text for instruction, text in stages()["image"] if instruction == "RUN")
    devicecore = Path(sys.prefix) / "bin" / "devicecore"
    words = {
        "{command}": shlex.join([sys.executable, str(PLUGIN), "{dir}"]),
        "{prepare}": shlex.quote(prepare),
        "{devicecore}": str(devicecore),
    }
    (temporary / "layers").mkdir()
    for name, text in (("docker", DOCKER), ("container", CONTAINER)):
        for placeholder, value in words.items():
            text = text.replace(placeholder, value)  # noqa: PLW2901 - it is the same text
        (temporary / name).write_text(text, encoding="utf-8")
        (temporary / name).chmod(0o755)


# --- the Action -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["command", "options"])
def test_a_missing_quote_is_reported_with_the_name_of_the_input(tmp_path: Path, name: str) -> None:
    ran, _ = action(tmp_path, **({"command": "./my-plugin"} | {name: "--only 'lists-*"}))
    assert ran.returncode == 2
    assert f"::error::the input {name} cannot be split into words: is a quote missing?" in ran.stdout


def test_inputs_reach_commands_as_variables_only() -> None:
    # GitHub inserts ${{ }} into a script without quoting, so an input could be a command.
    assert not [step["name"] for step in STEPS if "${{" in step.get("run", "")]
    used = set(re.findall(r"inputs\.(\w+)", (ROOT / "action.yml").read_text()))
    assert used == set(ACTION["inputs"])


def test_each_output_is_written_by_the_step_that_it_names(tmp_path: Path) -> None:
    _, outputs = action(tmp_path, command="false")
    named = {name: spec["value"] for name, spec in ACTION["outputs"].items()}
    assert named == {name: f"${{{{ steps.run.outputs.{name} }}}}" for name in outputs}


def test_the_action_writes_its_reports_and_passes_with_a_good_plugin(tmp_path: Path) -> None:
    command = f"'{sys.executable}' '{PLUGIN}' {{dir}}"
    ran, outputs = action(tmp_path, command=command, options=QUICK, reports="my reports")
    assert ran.returncode == 0, ran.stderr
    assert outputs == {"junit": "my reports/junit.xml", "card": "my reports/card.html", "badge": "my reports/card.svg"}
    files = {name: (tmp_path / "workspace" / path).read_text() for name, path in outputs.items()}
    assert '<testcase classname="conformance.must" name="gives-nodes-by-id"' in files["junit"]
    assert "<dd>v1.2.3</dd>" in files["card"]
    assert "v1.2.3: 7 passed, 3 not applicable" in files["badge"]


@pytest.mark.slow
def test_the_action_tests_dra_drivers(tmp_path: Path) -> None:
    directories = "--registry {registry} --plugin-dir {plugins} --cdi-dir {cdi}"
    devicecore = Path(sys.prefix) / "bin" / "devicecore"
    command = f"'{devicecore}' dra-driver simulated --name gpu.example.com {directories}"
    ran, outputs = action(tmp_path, command=command, kind="driver", options="--only 'announces-*' --only '*-cdi-names'")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "DRA driver conformance: v1.2.3: " in (tmp_path / "workspace" / outputs["badge"]).read_text()


@pytest.mark.slow
def test_the_action_fails_with_a_faulty_plugin_and_keeps_its_reports(tmp_path: Path) -> None:
    ran, outputs = action(tmp_path, command=f"'{sys.executable}' '{PLUGIN}' {{dir}} by-position", options=QUICK)
    assert ran.returncode == 1
    assert '<testsuite name="devicecore conformance" tests="10" failures="1"' in (
        tmp_path / "workspace" / outputs["junit"]
    ).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({}, "::error::devicecore conformance needs the input command or image."),
        ({"command": "./plugin 'open"}, "unmatched single quote"),
        pytest.param(
            {"command": "true", "options": "--only nonsense"},
            "--only nonsense: there is no such check",
            marks=pytest.mark.slow,
        ),
        ({"command": "/no/such/plugin $(touch /tmp/x)"}, "cannot run `/no/such/plugin '$(touch' '/tmp/x)'`"),
    ],
)
def test_a_wrong_input_fails_the_action_with_a_sentence(tmp_path: Path, inputs: dict[str, str], sentence: str) -> None:
    ran, _ = action(tmp_path, **inputs)
    assert ran.returncode != 0
    assert sentence in ran.stdout + ran.stderr


# --- the Dockerfile ---------------------------------------------------------------------------------------------------


def test_the_dockerfile_copies_what_exists_and_installs_known_extras() -> None:
    known = stages()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    context = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for name, steps in known.items():
        for instruction, text in steps:
            assert instruction in {"COPY", "ENTRYPOINT", "ENV", "RUN", "USER", "WORKDIR"}, f"{name}: {instruction}"
            if instruction == "COPY" and (source := re.match(r"--from=(\w+)", text)):
                assert source[1] in known
            elif instruction == "COPY":
                copied = text.split()[:-1]
                assert context >= set(copied)
                assert all((ROOT / path).exists() for path in copied)
            for extras in re.findall(r"devicecore-tools\[([\w,]+)\]", text):
                assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert list(known)[-1] == "binary"  # the stage that `docker build` builds by default


def test_the_manifests_for_kind_use_images_and_options_that_exist() -> None:
    """Each image is a stage in the Dockerfile, and the image's entry point has all options that the manifest uses."""
    files = sorted((ROOT / "deploy" / "kind").glob("*.yaml"))
    documents = [one for file in files for one in yaml.safe_load_all(file.read_text(encoding="utf-8")) if one]
    specs = [one["spec"]["template"]["spec"] for one in documents if one["kind"] == "DaemonSet"]
    containers = [container for spec in specs for container in spec["containers"]]
    assert {one["image"] for one in containers} == {"devicecore-plugin", "devicecore-driver"}
    for container in containers:
        steps = dict(stages()[container["image"].removeprefix("devicecore-")])
        program, *words = json.loads(steps["ENTRYPOINT"])
        assert program == "devicecore"
        command: click.Command = tree
        for word in words:
            assert isinstance(command, click.Group)
            found = command.get_command(click.Context(command), word)
            assert found is not None
            command = found
        known = {name for option in command.params for name in option.opts}
        assert {word.partition("=")[0] for word in container["args"]} <= known


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount an overlay and change the root directory")
@pytest.mark.parametrize("command", ["", f"'{sys.executable}' '{PLUGIN}' {{dir}}"])
def test_a_plugin_in_an_image_is_tested_in_its_own_root_directory(tmp_path: Path, command: str) -> None:
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:  # noqa: S607 - wherever it is
        pytest.skip("this machine allows no mount namespace")
    if any(path.is_relative_to("/tmp") for path in (ROOT, Path(sys.prefix))):  # noqa: S108 - nothing is created there
        pytest.skip("the image has a /tmp of its own, which hides this checkout or its Python")
    ran, outputs = action(tmp_path, image="example.com/plugin:v1", command=command, options=QUICK)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert 'failures="0"' in (tmp_path / "workspace" / outputs["junit"]).read_text()
    calls = (tmp_path / "runner" / "docker.log").read_text().splitlines()
    assert [call.split()[1] for call in calls] == ["image", *(() if command else ["image"]), "build", "run"]
    build = f"build --target image --build-arg IMAGE=example.com/plugin:v1 --tag devicecore-conformance {ROOT}"
    assert build in calls[-2]
    assert calls[-1].endswith(f"-- chroot /subject {sys.executable} {PLUGIN} {{dir}}")
