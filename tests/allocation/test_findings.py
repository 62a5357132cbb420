"""The examples in docs/maintain/findings.md: Kubernetes' answer to each follows from one fault in its allocator."""

import re
from pathlib import Path

import pytest
import yaml

from devicecore.domain.allocation import DeviceAllocation
from devicecore.domain.allocation.faults import KubernetesFault, Release
from tests.allocation.causes import outcome
from tests.recorded import Json
from tests.recorded_allocations import allocation_of, devices_of, results_of, situation_of

PAGE = Path(__file__).parents[2] / "docs" / "maintain" / "findings.md"
TEXTS = re.findall(r"<!-- cause: ([a-z-]+) -->\n```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
GATES = ("AdminAccess", "ConsumableCapacity", "DeviceBindingAndStatus", "DeviceTaints", "PartitionableDevices")


def recording_of(text: str) -> Json:
    """Return the objects in a YAML text, in the format of a recording."""
    objects: dict[str, list[Json]] = {}
    for one in yaml.safe_load_all(text):
        objects.setdefault(one["kind"], []).append(one)
    claims = objects["ResourceClaim"]
    allocated = (claim["status"]["allocation"] for claim in claims if "status" in claim)
    results = [one for allocation in allocated for one in allocation["devices"]["results"]]
    return {
        "claims": [claim for claim in claims if "status" not in claim],
        "classes": objects["DeviceClass"],
        "slices": objects["ResourceSlice"],
        "node": {"metadata": {"name": "n1"}},
        "features": {**dict.fromkeys(GATES, True), "PrioritizedList": True, "ListTypeAttributes": False},
        "allocated": {
            "devices": [one for one in results if "shareID" not in one],
            "shared": [one for one in results if "shareID" in one],
            "capacity": [],
        },
    }


def test_the_page_lists_the_unreported_faults() -> None:
    assert {cause for cause, _ in TEXTS} == {fault.value for fault in Release.V1_37.faults if "#" not in fault.value}


@pytest.mark.parametrize(("cause", "text"), TEXTS, ids=[cause for cause, _ in TEXTS])
def test_the_case_of_a_text_is_decided_otherwise_with_its_fault_alone(cause: str, text: str) -> None:
    recording = recording_of(text)
    right = devices_of(results_of(allocation_of(recording)))
    wrong = outcome(situation_of(recording), frozenset({KubernetesFault(cause)}))
    assert wrong != right
    assert (wrong is None) == isinstance(allocation_of(recording), DeviceAllocation)
