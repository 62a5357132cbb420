"""`devicecore nodes` on a cluster that is too large: it names what it did not read, and the exit status is 3."""

import json
from itertools import count

import pytest
from devicecore_tools.budget import Budget
from devicecore_tools.command.nodes import _Shown
from devicecore_tools.doctor.reading.cluster import looks_of
from devicecore_tools.doctor.reading.large_documents import parse_documents

from devicecore.domain.errors import DocumentError
from devicecore.domain.json_size import OBJECTS, memory_of

NODES = [
    {"metadata": {"name": f"n{number}"}, "status": {"allocatable": {"x.y/z": "2"}, "capacity": {"x.y/z": "2"}}}
    for number in range(6)
]


def test_nodes_that_were_not_looked_at_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    moments = count()
    budget = Budget(3.0, now=lambda: next(moments))
    answers = {"Node": NODES, "Pod": [], "ResourceSlice": [], "ResourceClaim": [], "Event": []}
    looks = looks_of(answers, budget=budget)
    shown = _Shown(devices=False, wanted=(), as_json=False, selector=None)
    assert shown.once(lambda: looks) == 3
    printed = capsys.readouterr().out
    assert "not read: nodes: n3, n4, n5: the question took more than 3 s of processor time" in printed
    assert "have no devices" not in printed
    assert _Shown(devices=False, wanted=(), as_json=True, selector=None).once(lambda: looks) == 3
    document = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in document["nodes"]] == ["n0", "n1", "n2"]
    assert document["not_read"].keys() == {"nodes"}


def test_documents_share_the_memory_limit() -> None:
    data = json.dumps({"kind": "NodeList", "items": NODES}).encode()
    budget = Budget(documents=memory_of(data, OBJECTS) + 10)
    assert parse_documents(data, "a.json", budget)
    with pytest.raises(DocumentError, match=r"^b.json: it takes some 0 MB of memory, and 0 MB are left for it"):
        parse_documents(data, "b.json", budget)
