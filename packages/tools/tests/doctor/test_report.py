"""A report's rows and metrics, and what two readings of a node must agree on."""

import pytest
from attrs import evolve
from devicecore_tools.doctor.account.facts import Facts
from devicecore_tools.doctor.account.precedence import OwnerState
from devicecore_tools.doctor.findings.checks import CHECKS
from devicecore_tools.doctor.findings.report import (
    FREE,
    NOBODY,
    UNKNOWN,
    DeviceRow,
    Watched,
    check,
    patience,
    still_wrong,
)
from devicecore_tools.doctor.look.values import CheckpointSeen, Look, Source
from devicecore_tools.doctor.show.metrics import metrics_text
from tests.doctor import nodes
from tests.doctor.nodes import CLEAN, GPU, NIC, PLANTS, report_of

from devicecore.domain.checkpoint import CheckpointData, judge

SOURCES = tuple(source.name.lower() for source in Source)


def row(look: Look, device: str, place: int = 0) -> DeviceRow:
    return [one for one in report_of(look).devices if one.device == device][place]


def test_a_row_says_who_holds_a_device_who_says_so_and_how_certain_it_is() -> None:
    assert row(CLEAN, "gpu-1") == DeviceRow(
        GPU,
        "gpu-1",
        (1,),
        "Healthy",
        "default/serve",
        "uid-serve",
        "main",
        (Source.CHECKPOINT, Source.POD_RESOURCES),
        OwnerState.LIVE,
    )


def test_a_device_with_two_holders_has_two_rows() -> None:
    rows = [one for one in report_of(nodes.two_owners(CLEAN)).devices if one.device == "nic-0"]
    assert [one.owner for one in rows] == ["default/train", "default/serve"]


def test_devices_are_in_natural_order() -> None:
    look = nodes.with_registered(CLEAN, GPU, "gpu-10", *nodes.GPUS)
    devices = [one.device for one in report_of(look).devices if one.resource == GPU]
    assert devices[-1] == "gpu-10"


def test_a_device_is_free_if_checkpoint_and_kubelet_name_no_holder() -> None:
    free = row(CLEAN, "gpu-7")
    assert (free.owner, free.state, free.pod_uid, free.container) == (FREE, OwnerState.LIVE, "", "")


@pytest.mark.parametrize("missing", ["checkpoint", "pod_resources", "pods"])
def test_unknown_is_never_shown_as_free(missing: str) -> None:
    for one in report_of(nodes.without(CLEAN, missing)).devices:
        assert one.owner != FREE
        if not one.container and not one.pool:
            assert (one.owner, one.state) == (UNKNOWN, OwnerState.UNKNOWN)


def test_a_checkpoint_that_is_not_sound_makes_no_device_free() -> None:
    assert row(nodes.checkpoint_checksum(CLEAN), "gpu-7").owner == UNKNOWN


def test_an_unhealthy_device_without_a_holder_is_not_free() -> None:
    nics = nodes.plugin("nic.sock", nodes.NICS, unhealthy=["nic-3"])
    look = nodes.with_plugins(CLEAN, nodes.plugins_of(CLEAN)[0], nics)
    for known in (look, nodes.without(look, "node")):
        assert (row(known, "nic-3").owner, row(known, "nic-3").health) == (NOBODY, "Unhealthy")


def test_a_device_of_a_driver_with_one_holder_has_no_note() -> None:
    (one,) = [one for one in report_of(nodes.claim_taken_away(CLEAN)).devices if one.device == "tpu-9"]
    assert (one.container, one.note) == ("main", "")


def test_a_device_that_the_kubelet_has_not_listed_yet_is_not_free() -> None:
    assert row(nodes.plugins_differ(CLEAN), "nic-9").owner == NOBODY


def test_no_device_of_a_plugin_that_hangs_is_free() -> None:
    """The kubelet has the devices, but does not allocate any of them until the plugin has answered."""
    seen = nodes.plugins_of(CLEAN)
    hanging = evolve(seen[1], problem="no answer to ListAndWatch within 10 s", devices=None, resource=NIC)
    owners = {
        one.owner for one in report_of(nodes.with_plugins(CLEAN, seen[0], hanging)).devices if one.resource == NIC
    }
    assert (FREE in owners, NOBODY in owners) == (False, True)


def test_the_holder_of_a_pod_that_is_gone_or_has_ended_is_stale() -> None:
    gone = row(nodes.without(nodes.of_a_pod_that_is_gone(CLEAN), "pod_resources"), "gpu-7")
    assert (gone.owner, gone.state) == ("uid-gone", OwnerState.STALE)
    look = nodes.with_entries(nodes.without(CLEAN, "pod_resources"), ("uid-done", "main", GPU, {1: ("gpu-7",)}))
    ended = row(look, "gpu-7")
    assert (ended.owner, ended.state) == ("default/done", OwnerState.STALE)


def test_a_holder_that_only_the_checkpoint_names_is_unknown() -> None:
    alone = nodes.without(CLEAN, "pod_resources", "pods")
    assert {one.state for one in report_of(alone).devices if not one.pool} == {OwnerState.UNKNOWN}


def test_a_holder_that_checkpoint_and_pods_name_is_live() -> None:
    one = row(nodes.without(CLEAN, "pod_resources"), "gpu-1")
    assert (one.owner, one.state, one.sources) == ("default/serve", OwnerState.LIVE, (Source.CHECKPOINT, Source.PODS))


def test_the_health_of_a_device_that_no_source_tells_is_unknown() -> None:
    look = nodes.with_entries(nodes.without(CLEAN, "plugins"), ("uid-serve", "main", "example.com/x", {-1: ("x-0",)}))
    assert row(look, "x-0").health == "unknown"
    assert row(nodes.held_not_listed(CLEAN), "gpu-1").health == "not listed"


def test_each_source_is_named_with_the_reason_why_it_was_not_read() -> None:
    lines = report_of(nodes.without(CLEAN, *SOURCES[1:])).sources
    assert [line.was_read for line in lines] == [True] + [False] * (len(SOURCES) - 1)
    assert all(line.was_read == (not line.problem) for line in lines)


@pytest.mark.parametrize("missing", SOURCES)
def test_no_report_needs_any_one_source(missing: str) -> None:
    assert check(Facts(nodes.without(CLEAN, missing))) == ()


@pytest.mark.parametrize("only", SOURCES)
def test_a_report_from_one_source_finds_nothing_and_says_if_that_is_enough(only: str) -> None:
    look = nodes.without(CLEAN, *(one for one in SOURCES if one != only))
    assert check(Facts(look)) == ()
    assert report_of(look).is_enough == (only in {"checkpoint", "pod_resources", "plugins", "claims"})


def test_a_checkpoint_that_does_not_exist_is_not_enough() -> None:
    look = nodes.with_file(nodes.without(CLEAN, *SOURCES), CheckpointSeen(judge(None)))
    assert not report_of(look).is_enough


def test_findings_are_numbered() -> None:
    look = nodes.plugin_silent(nodes.two_owners(CLEAN))
    assert [one.number for one in report_of(look).findings] == [1, 2]


# --- two looks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", PLANTS)
def test_what_only_one_look_finds_is_not_reported(code: str) -> None:
    found = check(Facts(PLANTS[code](CLEAN)))
    assert still_wrong(found, check(Facts(CLEAN))) == ()
    assert still_wrong((), found) == ()
    assert still_wrong(found, found) == found


def test_a_disagreement_about_other_devices_is_a_different_one() -> None:
    """A holder without a pod is found twice, but it holds a different device the second time."""
    first = nodes.with_entries(CLEAN, ("uid-gone", "main", GPU, {1: ("gpu-7",)}))
    second = nodes.with_entries(CLEAN, ("uid-gone", "main", GPU, {1: ("gpu-5",)}))
    assert still_wrong(check(Facts(first)), check(Facts(second))) == ()


def test_a_node_that_stays_not_ready_is_one_finding_whatever_its_message() -> None:
    """A real kubelet adds `container runtime is down` to the message after half a minute."""
    first, second = (
        nodes.with_node(CLEAN, evolve(nodes.node_of(CLEAN), ready="False", why_not_ready=why))
        for why in ("KubeletNotReady: container runtime not ready", "KubeletNotReady: [container runtime is down]")
    )
    found = check(Facts(second))
    assert still_wrong(check(Facts(first)), found) == found != ()


def test_a_finding_that_changes_once_is_confirmed_later() -> None:
    """For example, the finding about a driver that is gone changes when the kubelet deletes the driver's slices."""
    first, second = check(Facts(nodes.sources_disagree(CLEAN))), check(Facts(nodes.two_owners(CLEAN)))
    watched = Watched.first(first, 0.0, 2.0).then(first, 1.0)
    assert (watched.confirmed, watched.rest(first[0])) == ((), 1.0)
    watched = watched.then(second, 2.5)
    assert (watched.confirmed, watched.changing, watched.rest(second[0])) == ((), second, 2.0)
    assert watched.then(second, 4.5).confirmed == second
    assert Watched.first(first, 0.0, 0.0).confirmed == ()  # seen only once
    assert Watched.first(first, 0.0, 0.0).then(first, 0.1).confirmed == first


def test_findings_about_the_node_wait_longer_than_a_kubelet_takes_to_write_it() -> None:
    assert patience(()) == 0
    assert patience(check(Facts(nodes.two_owners(CLEAN)))) == 1
    assert patience(check(Facts(nodes.node_status_differs(nodes.two_owners(CLEAN))))) > 10


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_metrics_count_devices_free_devices_sources_and_findings() -> None:
    lines = metrics_text(report_of(nodes.two_owners(CLEAN))).splitlines()
    assert f'devicecore_doctor_devices{{resource_name="{NIC}",state="live"}} 4' in lines
    assert f'devicecore_doctor_free_devices{{resource_name="{GPU}"}} 5' in lines
    assert 'devicecore_doctor_source_read{source="pods"} 1' in lines
    assert 'devicecore_doctor_findings{code="two-owners"} 1' in lines
    assert 'devicecore_doctor_findings{code="plugin-late"} 0' in lines
    assert len([line for line in lines if "_findings{" in line]) == len(CHECKS)


def test_metrics_do_not_count_a_device_as_free_if_its_holder_is_unknown() -> None:
    lines = metrics_text(report_of(nodes.without(CLEAN, "pod_resources"))).splitlines()
    assert f'devicecore_doctor_free_devices{{resource_name="{GPU}"}} 0' in lines


def test_a_pod_that_is_called_free_makes_no_device_free() -> None:
    look = nodes.with_entries(nodes.without(CLEAN, "pod_resources", "pods"), ("free", "", GPU, {1: ("gpu-7",)}))
    held = row(look, "gpu-7")
    assert (held.owner, held.is_held) == ("free", True)
    assert f'devicecore_doctor_free_devices{{resource_name="{GPU}"}} 0' in metrics_text(report_of(look)).splitlines()


def test_labels_of_metrics_are_escaped() -> None:
    data = CheckpointData(None, {'a"b\\c\nd': ("x",)})
    look = nodes.with_file(CLEAN, evolve(nodes.file_of(CLEAN), data=data))
    assert r'resource_name="a\"b\\c\\nd"' in metrics_text(report_of(look))


def test_a_device_that_only_the_file_gives_to_a_pod_that_is_gone_is_free() -> None:
    """The kubelet's answer confirms that the pod is gone, so the pod's devices can be allocated again."""
    assert row(nodes.of_a_pod_that_is_gone(CLEAN), "gpu-7").owner == FREE
