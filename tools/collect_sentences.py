"""Collect the messages about devices and claims in Kubernetes' sources: errors, log lines, events and statuses.

Law: messages are printed in the order of files and lines, so the same sources produce the same output. The tools' tests
keep a verdict on each message in `sentences_of_kubernetes.jsonl`.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

RELEASES = {"1.36.3": "v0.36.3", "1.37.2": "v0.37.2"}
PLACES = (
    ("devicemanager", "kubernetes", "pkg/kubelet/cm/devicemanager"),
    ("dra", "kubernetes", "pkg/kubelet/cm/dra"),
    ("dynamicresources", "kubernetes", "pkg/scheduler/framework/plugins/dynamicresources"),
    ("noderesources", "kubernetes", "pkg/scheduler/framework/plugins/noderesources"),
    ("structured", "dynamic-resource-allocation", "structured"),
)
_CALL = re.compile(
    r"(?P<call>fmt\.Errorf|errors\.New|logger\.Error|klog\.Error\w*|logger\.V\(\d\)\.Info|loggerV\.Info|logger\.Info|"
    r"klog\.\w*Info\w*|Eventf|statusUnschedulable|statusError|fwk\.NewStatus|fmt\.Sprintf|logger\.Warning|Reason:)\b"
    r"(?:\((?P<before>(?:[^\"`()]|\((?:[^()\"]|\([^()]*\))*\)){0,200}))?"
    r"(?P<text>\s?\"(?:[^\"\\]|\\.)+\"|\s?`[^`]+`)"
)
_KINDS = {"Eventf": "event", "fwk.NewStatus": "status", "statusUnschedulable": "status", "Reason:": "status"}


def sentences(release: str, modules: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the place in `PLACES`, the kind and the text of each message of a release."""
    versions = {"kubernetes": f"v{release}", "dynamic-resource-allocation": RELEASES[release]}
    for place, module, folder in PLACES:
        root = modules / "k8s.io" / f"{module}@{versions[module]}" / folder
        for file in sorted(root.rglob("*.go")):
            if file.name.endswith("_test.go") or "testing" in str(file.parent):
                continue
            for found in _CALL.finditer(file.read_text(encoding="utf-8")):
                call, text = found["call"], found["text"].strip()
                words = json.loads(text) if text.startswith('"') and "\\'" not in text else text.strip('`"')
                if len(words.split()) > 1:
                    yield place, _kind(call), words


def _kind(call: str) -> str:
    if call in _KINDS:
        return _KINDS[call]
    if "Info" in call:
        return "progress"
    return "log" if "Error" in call and call not in {"fmt.Errorf", "statusError"} else "error"


def collected() -> dict[tuple[str, str], tuple[str, list[str]]]:
    """Return the kind and the releases of each message, by place and text."""
    cache = subprocess.run(["go", "env", "GOMODCACHE"], capture_output=True, text=True, check=True).stdout.strip()
    found: dict[tuple[str, str], tuple[str, list[str]]] = {}
    for release in RELEASES:
        for place, kind, text in sentences(release, Path(cache)):
            releases = found.setdefault((place, text), (kind, []))[1]
            if release not in releases:
                releases.append(release)
    return found


def main() -> int:
    """Write those messages that are not in the given tables, as lines of JSON. Return the exit status."""
    known = set()
    for table in sys.argv[1:]:
        rows = map(json.loads, Path(table).read_text(encoding="utf-8").splitlines())
        known |= {(one["place"], one["text"]) for one in rows}
    lacking = {key: of for key, of in collected().items() if key not in known}
    for (place, text), (kind, releases) in lacking.items():
        sys.stdout.write(json.dumps({"place": place, "kind": kind, "releases": releases, "text": text}) + "\n")
    return 1 if known and lacking else 0


if __name__ == "__main__":
    sys.exit(main())
