"""What a trial of claims keeps of a large cluster."""

import weakref
from collections.abc import Iterator

from devicecore_tools.doctor.pod.cluster_objects import objects_of

from devicecore.domain.documents import Value


class Parsed(dict[str, object]):
    """A document as it was parsed, of which a test sees whether it is still there."""


def test_a_document_is_forgotten_before_the_next_one_is_read() -> None:
    """Each file of a large cluster may take 200 MB. A Node keeps nothing of the list in which it was."""
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": "n1", "pool": pool, "devices": [{"name": "gpu-0"}]}
    items: list[object] = [
        {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec},
        {"kind": "Node", "metadata": {"name": "n1"}},
        {"kind": "DeviceClass", "metadata": {"name": "gpu"}},
    ]

    def documents() -> Iterator[Value]:
        parsed = Parsed(items=items)
        known = weakref.ref(parsed)
        first = Value(parsed, "slices.json")
        del parsed
        yield first
        del first
        assert known() is None
        yield Value({"kind": "Node", "metadata": {"name": "n2"}}, "nodes.json")

    found = objects_of(documents())
    assert [node.name for node in found.nodes] == ["n1", "n2"]
    assert [str(key) for key in found.devices] == ["gpu.example.com/n1/gpu-0"]
