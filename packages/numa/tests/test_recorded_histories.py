"""Histories recorded from Kubernetes' own managers (`make recordings`)."""

import json

import pytest

from tests import recorded
from tests.oracle import numa
from tests.oracle.asking import Json, differences

HISTORIES = list(recorded.lines("numa/histories.jsonl"))


@pytest.mark.parametrize("history", HISTORIES, ids=[one["id"] for one in HISTORIES])
def test_a_history_has_the_outcome_that_it_has_in_a_kubelet(history: Json) -> None:
    ours = numa.played(history["case"]).ours
    for mine, theirs in zip(ours, history["expect"], strict=True):
        assert list(differences(numa.comparable(json.loads(json.dumps(mine))), numa.comparable(theirs))) == []


@pytest.mark.parametrize("history", HISTORIES, ids=[one["id"] for one in HISTORIES])
def test_a_kubelets_state_file_is_written_again_byte_for_byte(history: Json) -> None:
    for name, text in history["files"].items():
        assert numa.encoded_again(name, text.encode()) == text.encode()
