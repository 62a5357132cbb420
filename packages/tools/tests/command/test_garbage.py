"""Files that are nothing like what a command expects."""

import gzip
from pathlib import Path

import pytest
from devicecore_tools.command.main import main

GARBAGE = {
    "empty": b"",
    "gzip": gzip.compress(b"kind: Pod", mtime=0),
    "binary": bytes(range(256)),
    "a list": b"[]",
    "an empty object": b"{}",
    "truncated": b'{"kind": "Pod", ',
    "deep": b"[" * 100_000,
    "a loop": b"a: &a [*a]",
    "a list as kind": b"kind: [Pod]",
    "null as item": b'{"kind": "List", "apiVersion": "v1", "items": [null]}',
    "half a character": b'{"kind": "\\ud800"}',
    "a tag": b"kind: !!binary aGk=",
}
NAMES = {"FILE": "file", "POD": "pod", "FLEET": "fleet", "ROOT": "root", "NEW": "new"}
COMMANDS = """
doctor --root docs/nodes/leak --pods FILE
doctor --root docs/nodes/leak --node FILE --events FILE --resourceclaims FILE --slices FILE
doctor --root docs/nodes/leak --claims FILE
doctor --checkpoint FILE
doctor --root docs/nodes/leak --node-name a --kubeconfig FILE
why FILE
why claim FILE
why FILE --slices FILE --claims FILE
why train --kubeconfig FILE
fits FILE --node docs/nodes/leak
fits POD --node FILE
fits POD --node docs/nodes/leak --slices FILE --claims FILE
nodes FILE
nodes --kubeconfig FILE
checkpoint show FILE
checkpoint repair FILE NEW
checkpoint repair --pods FILE docs/nodes/leak NEW
checkpoint diff FILE docs/nodes/leak
conformance compare FILE FILE
conformance driver --claims FILE /no/driver
fleet FILE --kubeconfig /no/kubeconfig
fleet FLEET --kubeconfig FILE
kubelet --root ROOT --machine FILE --cpu-manager-policy static --once --wait 0
""".strip().splitlines()


@pytest.mark.parametrize("command", COMMANDS)
def test_any_file_is_used_or_refused_in_a_sentence(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bug would make `main` raise an exception."""
    (tmp_path / "root").mkdir(mode=0o755)
    (tmp_path / "fleet").write_text("nodes: [{name: a}]\n")
    (tmp_path / "pod").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, image: i}]}\n"
    )
    words = [str(tmp_path / NAMES[word]) if word in NAMES else word for word in command.split()]
    for kind, content in GARBAGE.items():
        (tmp_path / "file").write_bytes(content)
        status = main(words)
        said = capsys.readouterr().err
        assert status in range(5), kind
        assert "Traceback" not in said, kind
        assert said or status != 2, kind
