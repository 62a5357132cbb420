"""`devicecore checkpoint repair`, `diff` and `convert`."""

import base64
import contextlib
import io
import json
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from devicecore_tools.command.main import main

from devicecore.domain.checkpoint import CheckpointData, FileVerdict, PodDevicesEntry, decode, encode, judge
from tests.recorded import share

Run = Callable[..., "subprocess.CompletedProcess[str]"]

DATA = Path(__file__).parents[4] / "tests" / "data" / "checkpoint"
GPU = "example.com/gpu"


def entry(pod: str, *ids: str, answer: bytes = b"") -> PodDevicesEntry:
    return PodDevicesEntry(pod, "main", GPU, {1: ids}, answer)


def written(path: Path, *entries: PodDevicesEntry, registered: tuple[str, ...] = ("gpu-1", "gpu-2")) -> str:
    path.write_bytes(encode(CheckpointData(entries or None, {GPU: registered})))
    return str(path)


@pytest.fixture
def two_owners(tmp_path: Path) -> str:
    """A file in which two pods hold gpu-1 and one response is unreadable."""
    entries = [entry("uid-1", "gpu-1"), entry("uid-2", "gpu-1", "gpu-2"), entry("uid-3", "gpu-3", answer=b"\xff")]
    return written(tmp_path / "two-owners", *entries)


def call(*arguments: str) -> int:
    """Run the command in this process, discard its output and return its exit status."""
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())), contextlib.redirect_stderr(io.StringIO()):
        return main(arguments)


# --- repair -----------------------------------------------------------------------------------------------------------


def test_repair_lists_two_owners_and_writes_nothing(devicecore: Run, two_owners: str, tmp_path: Path) -> None:
    new = tmp_path / "new"
    ran = devicecore("checkpoint", "repair", two_owners, str(new))
    assert (ran.returncode, new.exists()) == (1, False)
    assert f"undecided: 2 pods hold gpu-1 of {GPU}: uid-1, uid-2\n" in ran.stdout
    assert ran.stderr.endswith("nothing is written: use --keep UID to name the pod that keeps each device\n")
    document = json.loads(devicecore("checkpoint", "repair", "--json", two_owners, str(new)).stdout)
    undecided = {"resource": GPU, "device": "gpu-1", "pods": ["uid-1", "uid-2"]}
    assert (document["written"], document["undecided"]) == (None, [undecided])


def test_repair_keeps_the_devices_of_the_pod_that_is_named(devicecore: Run, two_owners: str, tmp_path: Path) -> None:
    new, before = tmp_path / "new", Path(two_owners).read_bytes()
    ran = devicecore("checkpoint", "repair", "--keep", "uid-1", two_owners, str(new))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        f"dropped: container main of pod uid-3: {GPU}: gpu-3: the plugin's answer in this entry cannot be read",
        f"dropped: container main of pod uid-2: {GPU}: gpu-1: another pod keeps the device",
        f"wrote {new}: 2 entries, 2 dropped, as listed above",
    ]
    assert judge(new.read_bytes()).verdict is FileVerdict.OK
    assert decode(new.read_bytes()).data.entries == (entry("uid-1", "gpu-1"), entry("uid-2", "gpu-2"))
    assert stat.S_IMODE(new.stat().st_mode) == 0o600
    assert Path(two_owners).read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "two-owners"]


def test_repair_removes_a_byte_order_mark(devicecore: Run, two_owners: str, tmp_path: Path) -> None:
    """Windows editors write byte-order marks, and a kubelet reads nothing from a file that starts with one."""
    (marked := tmp_path / "marked").write_bytes(b"\xef\xbb\xbf" + Path(two_owners).read_bytes())
    ran = devicecore("checkpoint", "repair", "--keep", "uid-1", str(marked), str(tmp_path / "new"))
    assert (ran.returncode, "lost: a byte-order mark" in ran.stdout, "byte-order" in ran.stderr) == (0, True, True)
    assert len(decode((tmp_path / "new").read_bytes()).data.entries or ()) == 2


def test_repair_refuses_a_second_list_of_pods(devicecore: Run, two_owners: str, tmp_path: Path) -> None:
    """Otherwise, the pods in the first list would count as gone, and would lose their devices."""
    lists = ("--pods", str(tmp_path / "a"), "--pods", str(tmp_path / "b"))
    ran = devicecore("checkpoint", "repair", *lists, two_owners, str(tmp_path / "new"))
    assert (ran.returncode, "--pods was given twice: " in ran.stderr) == (2, True)


def test_repair_refuses_a_pod_that_is_not_in_the_file(devicecore: Run, two_owners: str, tmp_path: Path) -> None:
    ran = devicecore("checkpoint", "repair", "--keep", "uid-9", two_owners, str(tmp_path / "new"))
    assert (ran.returncode, "--keep uid-9: no entry in" in ran.stderr) == (2, True)
    assert "belongs to a pod with this UID. UIDs that can be kept: uid-1, uid-2, uid-3." in ran.stderr


def test_repair_fixes_a_wrong_checksum_and_keeps_the_format(devicecore: Run, tmp_path: Path) -> None:
    """The file published from a v1.13 node has format 1 and a wrong checksum."""
    old, new = DATA / "v1.13-one-pod.json", tmp_path / "new"
    ran = devicecore("checkpoint", "repair", str(old), str(new))
    assert (ran.returncode, "warning: checkpoint is corrupted" in ran.stderr) == (0, True)
    assert ran.stdout == f"wrote {new}: 1 entry, nothing was dropped\n"
    report = judge(new.read_bytes())
    assert (report.verdict, report.format) == (FileVerdict.OK, 1)
    assert decode(new.read_bytes()).data == decode(old.read_bytes()).data


def test_a_list_without_entries_is_not_a_checkpoint(devicecore: Run, tmp_path: Path) -> None:
    """Kubernetes 1.37.2 calls a checkpoint that contains only `[]` malformed."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("[]")
    for command in (["repair"], ["convert", "--to", "2", "-o", str(new)]):
        ran = devicecore("checkpoint", *command, str(old), *([str(new)] if command == ["repair"] else []))
        assert (ran.returncode, new.exists()) == (1, False)
        assert "got a list without entries" in ran.stderr
    found = devicecore("doctor", "--checkpoint", str(old))
    assert (found.returncode, "1 finding: the checkpoint cannot be read" in found.stdout) == (1, True)


@pytest.mark.parametrize("command", [["verify"], ["show"], ["repair"], ["convert", "--to", "2"], ["diff"]])
def test_a_missing_file_has_the_status_of_an_unreadable_one(
    devicecore: Run, tmp_path: Path, command: list[str]
) -> None:
    more = {"repair": [str(tmp_path / "new")], "diff": [str(DATA)]}.get(command[0], [])
    assert devicecore("checkpoint", *command, str(tmp_path / "none"), *more).returncode == 2


def test_repair_names_the_kubelets_that_cannot_read_what_it_writes(devicecore: Run, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_bytes(encode(CheckpointData((PodDevicesEntry("uid-1", "main", GPU, {0: ("gpu-1",)}, b""),), {}), 1))
    ran = devicecore("checkpoint", "repair", str(old), str(tmp_path / "new"))
    warning = "kubelets after 1.29 cannot read format 1, and start without any allocation"
    assert (ran.returncode, warning in ran.stderr) == (0, True)
    assert warning in devicecore("doctor", "--checkpoint", str(old)).stdout


def test_a_file_that_cannot_be_written_is_called_by_the_name_that_was_given(devicecore: Run, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "missing" / "new"
    old.write_bytes(encode(CheckpointData((entry("uid-1", "gpu-1"),), {GPU: ()})))
    ran = devicecore("checkpoint", "repair", str(old), str(new))
    said = f"devicecore checkpoint repair: {new}: it cannot be written: No such file or directory\n"
    assert (ran.returncode, ran.stderr.endswith(said)) == (2, True)


def test_repair_keeps_the_readable_part_of_a_malformed_file(devicecore: Run, tmp_path: Path) -> None:
    file, new = tmp_path / "file", tmp_path / "new"
    document = json.loads(encode(CheckpointData((entry("uid-1", "gpu-1"), entry("uid-2", "gpu-2")), {GPU: ()})))
    document["Data"]["PodDeviceEntries"][0]["DeviceIDs"] = {"\x1b[31m": ["gpu-1"]}
    file.write_text(json.dumps(document))
    ran = devicecore("checkpoint", "repair", str(file), str(new))
    assert (ran.returncode, "\x1b" in ran.stdout) == (0, False)
    assert ran.stdout.startswith("dropped: entry 1: DeviceIDs")
    assert decode(new.read_bytes()).data.entries == (entry("uid-2", "gpu-2"),)


@pytest.mark.parametrize("text", ["", "{", '{"Data":{"PodDeviceEntries":[{"PodUID":', "[7]", '{"Data":7}'])
def test_repair_says_that_nothing_can_be_read(devicecore: Run, tmp_path: Path, text: str) -> None:
    file, new = tmp_path / "file", tmp_path / "new"
    file.write_text(text)
    ran = devicecore("checkpoint", "repair", str(file), str(new))
    assert (ran.returncode, ran.stdout, len(ran.stderr.splitlines()), new.exists()) == (1, "", 1, False)
    assert "its entries cannot be read: " in ran.stderr


def test_repair_keeps_the_entries_if_only_the_checksum_is_unreadable(devicecore: Run, tmp_path: Path) -> None:
    file, new = tmp_path / "file", tmp_path / "new"
    document = json.loads(encode(CheckpointData((entry("uid-1", "gpu-1"),), {GPU: ()})))
    file.write_text(json.dumps({**document, "Checksum": "none"}))
    ran = devicecore("checkpoint", "repair", str(file), str(new))
    assert (ran.returncode, ran.stdout.startswith("dropped: the file as a whole: Checksum: ")) == (0, True)
    assert decode(new.read_bytes()).data.entries == (entry("uid-1", "gpu-1"),)


@pytest.mark.parametrize("text", ["{}", "null", '{"kind":"PodList","items":[]}'])
def test_repair_does_not_turn_another_document_into_a_checkpoint(devicecore: Run, tmp_path: Path, text: str) -> None:
    """A kubelet would read any JSON object as a checkpoint without entries and without a checksum."""
    new = tmp_path / "new"
    ran = devicecore("checkpoint", "repair", "-", str(new), stdin=text)
    assert (ran.returncode, new.exists(), "may not be a checkpoint at all" in ran.stderr) == (1, False, True)


def test_repair_never_overwrites_the_file_it_reads(devicecore: Run, tmp_path: Path) -> None:
    """Even with --force, the input file is not overwritten, whether under its own name or through a link."""
    file = written(tmp_path / "file", entry("uid-1", "gpu-1"))
    (tmp_path / "link").hardlink_to(file)
    (tmp_path / "kubelet_internal_checkpoint").symlink_to(file)
    for new in (file, str(tmp_path / "link"), str(tmp_path / "kubelet_internal_checkpoint")):
        ran = devicecore("checkpoint", "repair", "--force", file, new)
        assert (ran.returncode, "is the input file" in ran.stderr) == (2, True)


def test_repair_overwrites_another_file_only_by_force(devicecore: Run, tmp_path: Path) -> None:
    file, new = written(tmp_path / "file", entry("uid-1", "gpu-1")), tmp_path / "new"
    new.write_text("precious")
    ran = devicecore("checkpoint", "repair", file, str(new))
    assert (ran.returncode, "exists" in ran.stderr, new.read_text()) == (2, True, "precious")
    assert devicecore("checkpoint", "repair", "--force", file, str(new)).returncode == 0
    assert new.read_bytes() == Path(file).read_bytes()
    ran = devicecore("checkpoint", "repair", file, str(tmp_path / "nowhere" / "new"))
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1)


def pods(*phases: tuple[str, str]) -> str:
    """Return what `kubectl get pods -o json` prints for pods with these UIDs and phases."""
    items = [
        {
            "kind": "Pod",
            "metadata": {"uid": uid, "name": uid, "namespace": "default"},
            "spec": {"containers": [{"name": "main"}]},
            "status": {"phase": phase},
        }
        for uid, phase in phases
    ]
    return json.dumps({"kind": "List", "apiVersion": "v1", "items": items})


def test_repair_drops_entries_of_pods_that_are_gone_or_ended(devicecore: Run, two_owners: str, tmp_path: Path) -> None:
    """One of the two owners of gpu-1 is gone or has ended, so --keep is not needed."""
    new, file = tmp_path / "new", tmp_path / "pods.json"
    file.write_text(pods(("uid-1", "Running"), ("uid-2", "Failed"), ("uid-9", "Running")))
    ran = devicecore("checkpoint", "repair", "--pods", str(file), two_owners, str(new))
    assert (ran.returncode, ran.stderr) == (0, "")
    dropped = f"dropped: container main of pod uid-2: {GPU}: gpu-1, gpu-2: the pod is gone or has ended"
    assert ran.stdout.splitlines()[0] == dropped
    assert decode(new.read_bytes()).data.entries == (entry("uid-1", "gpu-1"),)
    arguments = ["--json", "--force", "--pods", "-", two_owners, str(new)]
    ran = devicecore("checkpoint", "repair", *arguments, stdin=pods(("uid-2", "Running")))
    assert [(one["pod"], one["reason"]) for one in json.loads(ran.stdout)["dropped"]] == [
        ("uid-1", "the pod is gone or has ended"),
        ("uid-3", "the plugin's answer in this entry cannot be read"),
    ]


@pytest.mark.parametrize(
    ("uids", "why"),
    [
        ((), "it is empty"),
        (("uid-2",), "it contains the pods of only one namespace"),
        (("uid-8", "kube-system"), "contains none of"),
    ],
)
def test_repair_does_not_treat_a_pod_missing_from_a_partial_list_as_gone(
    devicecore: Run, two_owners: str, tmp_path: Path, uids: tuple[str, ...], why: str
) -> None:
    new, items = tmp_path / "new", json.loads(pods(*((uid, "Running") for uid in uids)))
    for item in items["items"]:
        item["metadata"]["namespace"] = "kube-system" if item["metadata"]["uid"] == "kube-system" else "default"
    ran = devicecore("checkpoint", "repair", "--pods", "-", two_owners, str(new), stdin=json.dumps(items))
    assert (ran.returncode, why in ran.stderr, "--force" in ran.stderr, new.exists()) == (1, True, True, False)
    forced = ("checkpoint", "repair", "--force", "--pods", "-", two_owners, str(new))
    assert devicecore(*forced, stdin=json.dumps(items)).returncode == 0


@pytest.mark.parametrize("node", ["n1", ""])
def test_pods_of_other_nodes_tell_repair_nothing_about_other_namespaces(
    devicecore: Run, two_owners: str, tmp_path: Path, node: str
) -> None:
    """A list with one pod from each of two nodes may still lack pods of this node in other namespaces.

    Two pods from the other node, in different namespaces, show that the list is not limited to one namespace.
    """
    new, items = tmp_path / "new", json.loads(pods(("uid-2", "Running"), ("uid-8", "Running")))
    here, other = items["items"]
    here["spec"]["nodeName"], other["spec"]["nodeName"] = node, "n2"
    other["metadata"]["namespace"] = "kube-system"
    arguments = ("checkpoint", "repair", "--pods", "-", two_owners, str(new))
    ran = devicecore(*arguments, stdin=json.dumps(items))
    assert (ran.returncode, "it contains the pods of only one namespace of each node" in ran.stderr) == (1, True)
    assert not new.exists()
    second = {**other, "metadata": {"uid": "uid-7", "name": "uid-7", "namespace": "default"}}
    together = {**items, "items": [here, other, second]}
    assert devicecore(*arguments, stdin=json.dumps(together)).returncode == 0
    new.unlink()
    other["spec"]["nodeName"] = node
    assert devicecore(*arguments, stdin=json.dumps(items)).returncode == 0


def test_repair_treats_a_list_whose_pods_share_a_label_as_partial(
    devicecore: Run, two_owners: str, tmp_path: Path
) -> None:
    """`kubectl get pods -A -l app=x` lists pods of all namespaces. Labels that controllers add prove nothing."""
    new, items = tmp_path / "new", json.loads(pods(("uid-2", "Running"), ("uid-8", "Running")))
    items["items"][1]["metadata"]["namespace"] = "kube-system"
    for one in items["items"]:
        one["metadata"]["labels"] = {"app": "x", "pod-template-hash": "1"}
    arguments = ("checkpoint", "repair", "--pods", "-", two_owners, str(new))
    ran = devicecore(*arguments, stdin=json.dumps(items))
    assert (ran.returncode, "has the label app=x, as if chosen by a selector" in ran.stderr) == (1, True)
    del items["items"][0]["metadata"]["labels"]["app"]
    assert devicecore(*arguments, stdin=json.dumps(items)).returncode == 0


def test_repair_writes_nothing_if_the_pods_cannot_be_read(devicecore: Run, two_owners: str, tmp_path: Path) -> None:
    new = tmp_path / "new"
    for text in ("", "{", '{"kind":"Node"}', "[]"):
        ran = devicecore("checkpoint", "repair", "--pods", "-", two_owners, str(new), stdin=text)
        assert (ran.returncode, len(ran.stderr.splitlines()), new.exists()) == (2, 1, False)
    ran = devicecore(
        *("checkpoint", "repair", "--pods", "-", "--keep", "uid-1", two_owners, str(new)),
        stdin=pods(("uid-2", "Running")),
    )
    assert (ran.returncode, "the pod is not in --pods" in ran.stderr, new.exists()) == (2, True, False)


NEWER = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"example.com/gpu",'
    b'"DeviceIDs":{"0":["gpu-1"]},"AllocResp":"","Claim":"x"},{"PodUID":"v","containername":"c",'
    b'"ResourceName":"example.com/gpu","DeviceIDs":null,"AllocResp":"","Claim":"y"}],'
    b'"RegisteredDevices":{"Claim":["a"]},"Epoch\\u001b":7},"Checksum":1,"BootID":"b"}'
)


def test_fields_that_current_kubelets_do_not_know_are_listed_as_lost(devicecore: Run, tmp_path: Path) -> None:
    file, new = tmp_path / "file", tmp_path / "new"
    file.write_bytes(NEWER)
    document = json.loads(devicecore("checkpoint", "repair", "--json", str(file), str(new)).stdout)
    assert document["lost"] == [
        "the field 'Epoch\\x1b' of Data, which this version does not know",
        "the field 'Claim' of entry 1 and of 1 further place, which this version does not know",
    ]
    assert b'Claim":"' not in new.read_bytes()
    assert b'"BootID":"b"' in new.read_bytes()  # fields next to Data are not part of the checksum, and are kept
    ran = devicecore("checkpoint", "repair", "--force", str(file), str(new))
    assert "\nlost: the field 'Claim' of entry 1" in ran.stdout
    assert ran.stdout.endswith("2 entries, 2 dropped, as listed above\n")
    ran = devicecore("checkpoint", "repair", str(new), str(tmp_path / "again"))
    assert "lost" not in ran.stdout


def test_convert_says_which_fields_are_lost(devicecore: Run, tmp_path: Path) -> None:
    file = tmp_path / "file"
    sound = encode(CheckpointData((entry("u", "gpu-1"),), {}))
    file.write_bytes(sound.replace(b'"PodUID"', b'"Claim":"x","PodUID"'))
    ran = devicecore("checkpoint", "convert", "--to", "2", str(file))
    assert (ran.returncode, ran.stdout) == (0, sound.decode())
    assert "lost: the field 'Claim' of entry 1, which this version does not know" in ran.stderr
    assert "Missing option '--to'. Choose from: 1, 2" in devicecore("checkpoint", "convert", str(file)).stderr


# --- diff -------------------------------------------------------------------------------------------------------------


def test_diff_names_each_change(devicecore: Run, tmp_path: Path) -> None:
    before = written(tmp_path / "before", entry("uid-1", "gpu-1"), entry("uid-2", "gpu-2"), entry("uid-3", "gpu-3"))
    changed = PodDevicesEntry("uid-3", "main", GPU, {0: ("gpu-3",)}, b"x")
    after_entries = [entry("uid-4", "gpu-1"), changed, entry("uid-5", "gpu-\x1b4")]
    after = written(tmp_path / "after", *after_entries, registered=("gpu-2", "gpu-10"))
    ran = devicecore("checkpoint", "diff", before, after)
    *lines, last = ran.stdout.splitlines()
    assert (ran.returncode, ran.stderr) == (1, "")
    assert lines == [
        f"removed: container main of pod uid-2: {GPU}: gpu-2",
        rf"added: container main of pod uid-5: {GPU}: gpu-\x1b4",
        f"moved: {GPU}: gpu-1: from container main of pod uid-1 to container main of pod uid-4",
        f"changed: container main of pod uid-3: {GPU}: the plugin's answer and the NUMA nodes differ",
        f"registered: {GPU}: added gpu-10; removed gpu-1",
    ]
    assert last.startswith("files: (format 2, 3 entries, 1 resource, checksum ")
    ran = devicecore("checkpoint", "diff", "--json", before, after)
    document = json.loads(ran.stdout)
    assert (ran.returncode, [file["file"] for file in document["files"]]) == (1, [before, after])
    assert document["removed"] == [{"pod": "uid-2", "container": "main", "resource": GPU, "device": "gpu-2"}]


def test_diff_of_a_file_with_itself_is_empty(devicecore: Run, two_owners: str) -> None:
    ran = devicecore("checkpoint", "diff", two_owners, two_owners)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_diff_says_if_only_the_order_differs(devicecore: Run, tmp_path: Path) -> None:
    entries = entry("uid-1", "gpu-1"), entry("uid-2", "gpu-2")
    files = written(tmp_path / "one", *entries), written(tmp_path / "other", *entries[::-1])
    ran = devicecore("checkpoint", "diff", *files)
    assert (ran.returncode, len(ran.stdout.splitlines()), ran.stdout.startswith("files: ")) == (1, 1, True)


@pytest.mark.parametrize("problem", ["nowhere", "broken"])
def test_diff_cannot_compare_what_cannot_be_read(devicecore: Run, tmp_path: Path, problem: str) -> None:
    (tmp_path / "broken").write_text("{")
    good = written(tmp_path / "good")
    ran = devicecore("checkpoint", "diff", good, str(tmp_path / problem))
    assert (ran.returncode, ran.stdout, len(ran.stderr.splitlines())) == (2, "", 1)


# --- convert ----------------------------------------------------------------------------------------------------------


def test_convert_says_that_numa_nodes_are_lost(devicecore: Run, two_owners: str, tmp_path: Path) -> None:
    new, back = tmp_path / "new", tmp_path / "back"
    ran = devicecore("checkpoint", "convert", "--to", "1", "-o", str(new), two_owners)
    assert (ran.returncode, ran.stdout) == (0, f"wrote {new}: 3 entries, in format 1\n")
    assert "lost: the NUMA nodes of 3 devices that are not only on NUMA node 0" in ran.stderr
    assert judge(new.read_bytes()).format == 1
    ran = devicecore("checkpoint", "convert", "--json", "--to", "2", "-o", str(back), str(new))
    document = json.loads(ran.stdout)
    assert (document["from"], document["to"], document["written"]) == (1, 2, str(back))
    assert document["notes"][0].startswith("assumed: NUMA node 0 for all devices")
    ran = devicecore("checkpoint", "diff", two_owners, str(new))
    assert [line.partition(":")[0] for line in ran.stdout.splitlines()] == ["files"]


def test_convert_prints_the_file(devicecore: Run, two_owners: str) -> None:
    ran = devicecore("checkpoint", "convert", "--to", "2", two_owners)
    assert (ran.returncode, ran.stderr, ran.stdout.encode()) == (0, "", Path(two_owners).read_bytes())


def test_convert_does_not_hide_a_wrong_checksum(devicecore: Run) -> None:
    ran = devicecore("checkpoint", "convert", "--to", "2", str(DATA / "v1.13-one-pod.json"))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.endswith("; nothing is written\n")


# --- any file ---------------------------------------------------------------------------------------------------------


def recorded() -> Iterator[bytes]:
    """Yield the recorded files, and after some of them a truncated copy."""
    for number, line in enumerate((DATA / "decode.jsonl").read_text().splitlines()):
        blob = base64.b64decode(json.loads(line)["file_b64"])
        yield blob
        if number % 10 == 0:
            yield blob[: len(blob) // 2]


def test_no_recorded_file_makes_a_command_crash(tmp_path: Path) -> None:
    """The commands return an exit status instead of raising an error.

    The file that `repair` writes is ok, and repairing it again changes nothing.

    `make test` uses a sixth of the files. `unit/test_checkpoint_vectors.py` checks all of them.
    """
    file, new, again = (tmp_path / name for name in ("file", "new", "again"))
    statuses = set()
    for number, blob in enumerate(share(list(recorded()), of=6)):
        file.write_bytes(blob)
        new.unlink(missing_ok=True)
        status = call("checkpoint", "repair", str(file), str(new))
        statuses.add(status)
        assert new.exists() == (status == 0)
        if status == 0:
            assert judge(new.read_bytes()).verdict is FileVerdict.OK
        if status == 0 and number % 10 == 0:
            assert call("checkpoint", "repair", "--force", str(new), str(again)) == 0
            assert again.read_bytes() == new.read_bytes()
        if number % 2:
            assert call("checkpoint", "diff", str(file), str(file)) in {0, 2}
        else:
            assert call("checkpoint", "convert", "--to", "1", str(file)) in {0, 1}
    assert statuses == {0, 1}


@pytest.mark.parametrize("command", ["repair", "diff", "convert"])
def test_large_files_are_read(tmp_path: Path, command: str) -> None:
    """The file has 1,000 pods with 10 devices each, which is more than on any real node."""
    ids = [tuple(f"gpu-{pod}-{number}" for number in range(10)) for pod in range(1000)]
    entries = [entry(f"uid-{pod}", *of_pod) for pod, of_pod in enumerate(ids)]
    file = written(tmp_path / "file", *entries, registered=tuple(id_ for of_pod in ids for id_ in of_pod))
    arguments = {"repair": [file, str(tmp_path / "new")], "diff": [file, file], "convert": ["--to", "1", file]}
    assert call("checkpoint", command, *arguments[command]) == 0
