"""Each sentence about devices and claims in Kubernetes' source code is known, or left out for a stated reason.

`tools/collect_sentences.py` collects the sentences and, given the table, names the sentences that the table lacks.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from devicecore_tools.doctor.pod.explanation import explain

FILE = Path(__file__).parent.parent / "data" / "sentences_of_kubernetes.jsonl"
TABLE: list[dict[str, Any]] = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
PLACES = ("devicemanager", "dra", "dynamicresources", "noderesources", "structured")


@pytest.mark.parametrize("place", PLACES)
def test_each_sentence_that_is_known_is_explained(place: str) -> None:
    """`said` is the message as users see it, including what Kubernetes adds around it."""
    known = [one for one in TABLE if one["verdict"] == "known" and one["place"] == place]
    wrong = [one["said"] for one in known if [found.id for found in explain(one["said"])][:1] != [one["id"]]]
    assert known
    assert not wrong


def test_each_unknown_message_has_a_reason() -> None:
    reasons = Counter(one["verdict"] for one in TABLE)
    assert all(verdict == "known" or verdict.startswith("not worth it: ") for verdict in reasons), reasons
    assert not [one["text"] for one in TABLE if one["kind"] in ("event", "status") and one["verdict"] != "known"]
