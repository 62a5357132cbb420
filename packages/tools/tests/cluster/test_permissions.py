"""The permissions that docs/kube-api.md lists, compared with each other and with those of a node's identity."""

import re
from pathlib import Path

import yaml
from devicecore_tools.testing.api_server.node_rules import NODE_VERBS

GUIDE = (Path(__file__).parents[4] / "docs" / "kube-api.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| (?:`([\w.]+)` )?\| `([\w/]+)` \| ([\w, ]+) \| .* \| (.*) \|$", re.MULTILINE)
Permission = tuple[str, str]


def table() -> dict[Permission, str]:
    """Of each resource and verb of the table what a node's own identity may do."""
    return {
        (f"{resource}.{group}" if group else resource, verb): own
        for group, resource, verbs, own in _ROW.findall(GUIDE)
        for verb in verbs.split(", ")
    }


def role() -> set[Permission]:
    """The resources and verbs of the ClusterRole."""
    (text,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    return {
        (f"{resource}.{group}" if group else resource, verb)
        for rule in yaml.safe_load(text)["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_table_and_the_role_say_the_same() -> None:
    assert len(table()) > 20
    assert table().keys() == role()


def test_the_identity_of_a_node_may_do_what_the_table_says() -> None:
    may = {(resource, verb): verb in NODE_VERBS.get(resource, "").split() for resource, verb in table()}
    assert may == {permission: not own.startswith("no") for permission, own in table().items()}
