"""The permissions that docs/cluster-node.md lists."""

import re
from collections.abc import Iterable
from pathlib import Path

import yaml
from devicecore_tools.testing.api_server import Request

GUIDE = (Path(__file__).parents[4] / "docs" / "cluster-node.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| (?:`([\w.]+)` )?\| `([\w/]+)` \| ([\w, ]+) \| .* \| (.*) \|$", re.MULTILINE)
Permission = tuple[str, str]


def table() -> dict[Permission, str]:
    """Return the guide's table: whether a node's own identity may do this, by resource and verb."""
    return {
        (f"{resource}.{group}" if group else resource, verb): own
        for group, resource, verbs, own in _ROW.findall(GUIDE)
        for verb in verbs.split(", ")
    }


def role() -> set[Permission]:
    """Return the resources and verbs that the guide's ClusterRole allows."""
    (text,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    return {
        (f"{resource}.{group}" if group else resource, verb)
        for rule in yaml.safe_load(text)["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def unlisted(requests: Iterable[Request]) -> set[Permission]:
    """Return the permissions that these requests needed but docs/cluster-node.md does not list."""
    listed = {(resource.partition(".")[0], verb) for resource, verb in role()}
    return {(one.resource, one.verb) for one in requests} - listed
