"""Pods from a directory of manifests that people edit while devicecore reads it."""

import json
import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from devicecore.adapters.manifests import Changes, ManifestError, ManifestPods, read_pods
from devicecore.adapters.manifests.directory import MAX_BYTES_AT_ONCE
from devicecore.domain.documents import described
from devicecore.domain.errors import DirectoryError
from devicecore.domain.model import Container, ContainerKey, Pod, PodUid
from devicecore.system.documents import MAX_DOCUMENT_SIZE, read_documents
from tests.hostile_documents import HOSTILE

GPU = "acme.io/gpu"
POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: train
  namespace: prod
spec:
  initContainers:
  - name: setup
    resources: {limits: {acme.io/gpu: 4}}
  - name: proxy
    restartPolicy: Always
    resources: {limits: {acme.io/gpu: "1"}}
  containers:
  - name: main
    image: busybox
    resources:
      requests: {acme.io/gpu: 7}
      limits:
        cpu: 500m
        ephemeral-storage: 100m
        hugepages-2Mi: 4Mi
        kubernetes.io/batteries: 500m
        memory: 1.5Gi
        acme.io/gpu: 2
        acme.io/many: 3000m
  - name: idle
"""


def manifest(name: str, size: int = 1, **metadata: str) -> str:
    spec = {"containers": [{"name": "main", "resources": {"limits": {GPU: size}}}]}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec})


def with_size(size: str) -> str:
    return POD.replace("acme.io/gpu: 2", f"acme.io/gpu: {size}")


def names(pods: tuple[Pod, ...]) -> list[str]:
    return [pod.name for pod in pods]


# --- the contents of a manifest -------------------------------------------------------------------------------------


def test_a_pod_is_read_as_the_device_manager_needs_it() -> None:
    (pod,) = read_pods(POD, "train.yaml")
    assert pod == Pod(
        pod.uid,
        name="train",
        namespace="prod",
        containers=(
            Container(
                "main",
                {
                    "cpu": 1,
                    "ephemeral-storage": 1,
                    "hugepages-2Mi": 4_194_304,
                    "kubernetes.io/batteries": 1,
                    "memory": 1_610_612_736,
                    GPU: 2,
                    "acme.io/many": 3,
                },
                requests={GPU: 7},
            ),
            Container("idle"),
        ),
        init_containers=(Container("setup", {GPU: 4}), Container("proxy", {GPU: 1}, restartable=True)),
    )


def test_a_file_may_have_many_documents_and_lists_in_yaml_and_json() -> None:
    assert names(read_pods(f"---\n{POD}---\n# nothing\n---\n{manifest('other')}\n", "x")) == ["train", "other"]
    both = f"{manifest('a')}\n\n{manifest('b')}"
    assert names(read_pods(both, "x")) == ["a", "b"]
    listed = f'{{"apiVersion": "v1", "kind": "List", "items": [{manifest("a")}, {manifest("b")}]}}'
    assert names(read_pods(listed, "x")) == ["a", "b"]
    nameless = manifest("a").replace('"apiVersion": "v1", "kind": "Pod", ', "")
    assert names(read_pods(f'{{"apiVersion": "v1", "kind": "PodList", "items": [{nameless}]}}', "x")) == ["a"]
    annotated = json.loads(manifest("a", note="\U0001f600 \u2028 \t"))  # YAML has no surrogate pairs
    assert names(read_pods(json.dumps(annotated, indent="\t"), "x")) == ["a"]


def test_merge_keys_and_aliases_are_followed() -> None:
    text = POD.replace("{limits: {acme.io/gpu: 4}}", "&four {limits: {acme.io/gpu: 4}}")
    text = text.replace("  - name: idle", "  - {name: idle, resources: {<<: *four}}")
    assert read_pods(text, "x")[0].container("idle").limits == {GPU: 4}


@pytest.mark.parametrize("quantity", ["1.5", "500m", "1n", "'0.5'", "'1.1e0'", "1.0001Ki"])
def test_a_fraction_of_a_device_is_refused_as_kubernetes_does(quantity: str) -> None:
    with pytest.raises(ManifestError) as refused:
        read_pods(with_size(quantity), "x")
    error = refused.value
    assert (error.line, error.field) == (24, f"spec.containers[0].resources.limits[{GPU}]")
    assert error.problem == f"expected an integer, got {quantity.strip(chr(39))}"


@pytest.mark.parametrize(
    "name",
    [
        *("acme.io/GPU_x/y", "Acme/gpu", "acme.io/", "/gpu", "gpu", "pods", "hugepages-", "requests.acme.io/gpu"),
        *("x" * 64, f"acme.io/{'x' * 64}", f"{'x' * 254}/gpu", "a_b.kubernetes.io/gpu", "acme.io/gpu\u00e9"),
    ],
)
def test_a_resource_that_no_container_can_have_is_refused_as_kubernetes_does(name: str) -> None:
    with pytest.raises(ManifestError) as refused:
        read_pods(POD.replace("acme.io/gpu: 2", f"{name}: 2"), "x")
    error = refused.value
    field = f"[{name}]" if "/" in name else f".{name}"
    assert (error.line, error.field) == (24, f"spec.containers[0].resources.limits{field}")
    assert error.problem == f"expected a container resource such as cpu or example.com/gpu, got {described(name)}"


def test_a_uid_is_taken_or_made_of_the_file_and_all_the_pod_says() -> None:
    def uid(text: str, file: str = "a.yaml") -> str:
        return read_pods(text, file)[0].uid

    assert uid(manifest("train", uid="mine")) == "mine"
    assert len(uid(manifest("train"))) == 32
    assert uid(manifest("train")) == uid(f"# another look\n{json.dumps(json.loads(manifest('train')), indent=3)}")
    others = [uid(manifest("train", 2)), uid(manifest("other")), uid(manifest("train"), "b.yaml")]
    # this pod has one more field, so it counts as a different pod, as it does for a kubelet
    labeled = uid(manifest("train", namespace="default"))
    assert len({uid(manifest("train")), *others, labeled}) == 5


QUANTITY = "a quantity such as 2, 500m or 1.5Gi"
UNQUOTED = ": put the value in quotes"
NEITHER = "expected a v1 Pod or a resource.k8s.io/v1 ResourceClaim, got"
FROM_TEMPLATE = (
    ". Its pods are created from spec.template: write it as a Pod, or use one of its pods: kubectl get pod NAME -o yaml"
)
NOTHING = "expected a pod or a ResourceClaim, got nothing"
BOMB = f"a0: &a0 [{'0,' * 50}]\n" + "\n".join(f"a{n}: &a{n} [{f'*a{n - 1},' * 50}]" for n in range(1, 9))


MISTAKES: Mapping[str, tuple[str, int | None, str, str]] = {
    "name": (POD.replace("- name: main", "- nom: main"), 14, "spec.containers[0].name", "it is missing"),
    "number": (POD.replace("name: train", "name: 7"), 4, "metadata.name", f"expected a string, got 7{UNQUOTED}"),
    "word that means false": (
        POD.replace("name: train", "name: n"),
        *(4, "metadata.name", f"expected a string, got false, which is also how YAML reads n, no and off{UNQUOTED}"),
    ),
    "two of a name": (
        POD.replace("name: idle", "name: main"),
        *(26, "spec.containers[1].name", "two containers have the name 'main'"),
    ),
    "limits outside resources": (
        manifest("a").replace('"resources": {"limits": {"acme.io/gpu": 1}}', '"limits": {"acme.io/gpu": 1}'),
        *(None, "spec.containers[0].limits", "there is no such field; write it into resources"),
    ),
    "limits of the pod": (
        manifest("a").replace('"containers"', '"resources": {"limits": {"acme.io/gpu": 1}}, "containers"'),
        *(None, f"spec.resources.limits[{GPU}]"),
        "a pod as a whole has no limit for devices; write it into spec.containers[].resources",
    ),
    "object": (
        manifest("a").replace("[{", "{").replace("}]", "}"),
        *(None, "spec.containers", "expected a list, got an object"),
    ),
    "list": ("apiVersion: v1\nkind: Pod\nmetadata: [a]", 3, "metadata", "expected an object, got a list"),
    "containers": (
        POD[: POD.index("  containers")],
        *(7, "spec.containers", "expected at least one container, got none"),
    ),
    "kind": ("apiVersion: apps/v1\nkind: Deployment", 2, "kind", f"{NEITHER} 'Deployment' of 'apps/v1'{FROM_TEMPLATE}"),
    "kind in a list": (
        f"apiVersion: v1\nkind: List\nitems:\n- {manifest('a')}\n- kind: Job\n  apiVersion: x/v1",
        *(5, "items[1].kind", f"{NEITHER} 'Job' of 'x/v1'{FROM_TEMPLATE}"),
    ),
    "key": ("? [a]\n: b", 1, "", "expected a string as a key, got a list"),
    "JSON": (manifest("a")[:-2] + "\n,]", 2, "", "did not find expected node content"),
    "endless": ("a: &a [*a]", 1, "", "*a is part of itself"),
    "deep": ("[" * 200_000, 1, "", "it is nested deeper than 100 levels"),
    "empty": ("", None, "", NOTHING),
    "comment": ("---\n# soon\n", None, "", NOTHING),
    "twice": (f"{POD}---\n{POD}", None, "", "pod prod/train is in this file twice"),
    **{
        f"quantity {size}": (with_size(size), 24, f"spec.containers[0].resources.limits[{GPU}]", problem)
        for size, problem in {
            "2x": f'"2x" is not {QUANTITY}',
            "-2": "expected 0 or more, got -2",
            "yes": f"expected {QUANTITY}, got true",
            "[2]": f"expected {QUANTITY}, got a list",
            "0b": f'"0b" is not {QUANTITY}',
        }.items()
    },
}


@pytest.mark.parametrize(("text", "line", "field", "problem"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_reported_with_line_and_field(text: str, line: int | None, field: str, problem: str) -> None:
    with pytest.raises(ManifestError) as refused:
        read_pods(text, "train.yaml")
    error = refused.value
    assert (error.file, error.line, error.field, error.problem) == ("train.yaml", line, field, problem)
    assert str(error).startswith("train.yaml:" if line is None else f"train.yaml:{line}: ")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{POD}  oops", "could not find expected ':'"),
        ("a: \x00", "characters are not allowed"),
        (BOMB, "it has more than 50000 values"),
    ],
    ids=["YAML", "control character", "bomb"],
)
def test_a_mistake_that_the_parser_finds_is_reported(text: str, problem: str) -> None:
    with pytest.raises(ManifestError) as refused:
        read_pods(text, "train.yaml")
    assert problem in refused.value.problem
    assert str(refused.value).startswith("train.yaml:")


# --- a directory of manifests -----------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "manifests").mkdir()
    return tmp_path / "manifests"


def source(place: Path, boot: str = "boot-1") -> ManifestPods:
    return ManifestPods(place, place.parent / "pods.json", boot_id=boot)


def polled(place: Path, **files: str) -> ManifestPods:
    """Write these JSON files, and return a source that has read them."""
    for name, text in files.items():
        (place / f"{name}.json").write_text(text)
    pods = source(place)
    pods.poll()
    return pods


def test_pods_follow_files_that_appear_change_and_disappear(place: Path) -> None:
    pods = source(place)
    assert (pods.poll(), pods.pods) == (Changes(), ())
    (place / "b.json").write_text(manifest("b"))
    (place / "a.yaml").write_text(POD)
    changes = pods.poll()
    assert (names(changes.added), changes.removed) == (["train", "b"], ())
    assert pods.active_pods() == {pod.uid for pod in changes.added}
    assert pods.poll() == Changes()
    (place / "b.json").write_text(manifest("b", 2))
    changes = pods.poll()
    assert (names(changes.added), names(changes.removed)) == (["b"], ["b"])
    assert changes.added[0].uid != changes.removed[0].uid
    (place / "a.yaml").unlink()
    assert names(pods.poll().removed) == ["train"]
    assert names(pods.pods) == ["b"]


def test_a_change_that_keeps_size_and_time_is_seen_for_two_seconds(place: Path) -> None:
    """As in git, a file that was read soon after it was written is read once more."""
    file = place / "a.json"
    file.write_text(manifest("a", 1))
    when = file.stat().st_mtime_ns
    pods = source(place)
    pods.poll()
    file.write_text(manifest("a", 2))
    os.utime(file, ns=(when, when))
    assert pods.poll().added[0].containers[0].limits == {GPU: 2}


def test_a_file_that_has_settled_is_not_read_again(place: Path) -> None:
    file = place / "a.json"
    file.write_text(manifest("a"))
    long_ago = time.time() - 60
    os.utime(file, (long_ago, long_ago))
    pods = source(place)
    pods.poll()
    before = file.stat().st_atime_ns
    file.chmod(0)
    pods.poll()
    assert pods.problems == ()
    assert file.stat().st_atime_ns == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become the user nobody")
def test_a_file_that_becomes_readable_again_is_reported(directory: Path) -> None:
    """The report does not depend on a change of the file's times or content."""
    place = directory / "manifests"
    place.mkdir()
    directory.chmod(0o755)
    file = place / "a.json"
    file.write_text(manifest("a"))
    pods = source(place)
    pods.poll()
    file.chmod(0)
    long_ago = time.time() - 60
    os.utime(file, (long_ago, long_ago))
    os.seteuid(65534)
    try:
        assert [str(problem) for problem in pods.poll().problems] == ["a.json: Permission denied"]
        assert pods.poll() == Changes()
    finally:
        os.seteuid(0)
    assert pods.poll() == Changes(mended=("a.json",))


def test_a_pod_that_changes_and_keeps_its_uid_is_released_and_admitted(place: Path) -> None:
    pods = polled(place, a=manifest("a", 1, uid="u"))
    (place / "a.json").write_text(manifest("a", 2, uid="u"))
    changes = pods.poll()
    assert [pod.uid for pod in (*changes.removed, *changes.added)] == ["u", "u"]


def test_a_file_that_becomes_unusable_keeps_its_pods_and_affects_no_other(place: Path) -> None:
    pods = polled(place, a=manifest("a"), b=manifest("b"))
    (place / "a.json").write_text("{")
    (place / "c.json").write_text("[")
    (place / "b.json").write_text(manifest("b", 2))
    changes = pods.poll()
    assert (names(changes.added), names(changes.removed)) == (["b"], ["b"])
    assert [problem.file for problem in changes.problems] == ["a.json", "c.json"]
    assert pods.problems == changes.problems
    assert names(pods.pods) == ["a", "b"]
    assert pods.poll() == Changes()  # the changes and problems are reported only once
    (place / "a.json").write_text(manifest("a"))
    (place / "c.json").unlink()
    assert pods.poll() == Changes(mended=("a.json", "c.json"))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\n\xff", "expected UTF-8 text, got other bytes"),
        (
            b"#" * (MAX_DOCUMENT_SIZE + 1),
            f"it is {MAX_DOCUMENT_SIZE + 1} bytes long, expected at most {MAX_DOCUMENT_SIZE}",
        ),
        # the file is empty, as if someone were about to write it
        (b"", "expected a pod or a ResourceClaim, got nothing"),
    ],
    ids=["not text", "too long", "empty"],
)
def test_a_file_that_is_not_text_is_reported(place: Path, content: bytes, problem: str) -> None:
    (place / "a.json").write_bytes(content)
    pods = source(place)
    assert [one.problem for one in pods.poll().problems] == [problem]


def test_a_byte_order_mark_is_ignored(place: Path) -> None:
    (place / "a.json").write_text(manifest("a"), encoding="utf-8-sig")
    assert names(source(place).poll().added) == ["a"]


def test_hidden_files_backups_and_directories_are_ignored(place: Path) -> None:
    for name in (".a.yaml", "a.yaml~", "#a.yaml#"):
        (place / name).write_text(POD)
    (place / "below").mkdir()
    (place / "below" / "a.yaml").write_text(POD)
    (place / "link.yaml").symlink_to(place / ".a.yaml")
    pods = source(place)
    assert names(pods.poll().added) == ["train"]
    assert pods.problems == ()


UNREADABLE: Mapping[str, tuple[Callable[[Path], None], str]] = {
    "a link to nothing": (
        lambda file: file.symlink_to(file.parent.parent / "missing"),
        "it is a link to a file that does not exist",
    ),
    "a link to itself": (lambda file: file.symlink_to(file.name), "Too many levels of symbolic links"),
    "a pipe": (os.mkfifo, "expected a file, got a pipe, a socket or a device"),
    "a directory": (Path.mkdir, "expected a file, got a directory"),
}


@pytest.mark.parametrize(("make", "problem"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_manifest_that_is_unreadable_for_a_while_keeps_its_pod(
    place: Path, make: Callable[[Path], None], problem: str
) -> None:
    file = place / "a.json"
    file.write_text(manifest("a"))
    pods = source(place)
    pods.poll()
    file.rename(place / ".aside")
    make(file)
    changes = pods.poll()
    assert [str(one) for one in changes.problems] == [f"a.json: {problem}"]
    assert (changes.removed, names(pods.pods)) == ((), ["a"])
    assert pods.poll() == Changes()
    (Path.rmdir if file.is_dir() else Path.unlink)(file)
    (place / ".aside").rename(file)
    assert pods.poll() == Changes(mended=("a.json",))


def test_a_file_with_a_pod_of_another_file_is_refused(place: Path) -> None:
    pods = polled(place, b=manifest("a", uid="u"))
    (place / "a.json").write_text(manifest("a", 2))
    (place / "c.json").write_text(manifest("c", uid="u"))
    changes = pods.poll()
    assert [str(problem) for problem in changes.problems] == [
        "a.json: pod default/a is also in b.json",
        "c.json: uid u is also in b.json",
    ]
    assert names(pods.pods) == ["a"]
    (place / "b.json").unlink()
    changes = pods.poll()
    assert (names(changes.added), changes.mended) == (["a", "c"], ("a.json", "c.json"))


def test_two_files_can_exchange_their_pods(place: Path) -> None:
    pods = polled(place, a=manifest("x"), b=manifest("y"))
    (place / "a.json").write_text(manifest("y"))
    (place / "b.json").write_text(manifest("x"))
    changes = pods.poll()
    assert (names(changes.added), names(changes.removed), changes.problems) == (["y", "x"], ["x", "y"], ())


def test_a_broken_file_keeps_its_pod_from_other_files(place: Path) -> None:
    pods = polled(place, a=manifest("x"), b=manifest("y"))
    (place / "a.json").write_text(manifest("y"))
    (place / "b.json").write_text("broken: {")
    changes = pods.poll()
    assert (changes.added, changes.removed) == ((), ())
    assert [problem.file for problem in changes.problems] == ["a.json", "b.json"]
    assert names(pods.pods) == ["x", "y"]


def test_a_directory_that_disappears_removes_no_pod(place: Path) -> None:
    pods = polled(place, a=manifest("a"))
    place.rename(place.parent / "elsewhere")
    changes = pods.poll()
    assert [str(problem) for problem in changes.problems] == [f"{place}: No such file or directory"]
    assert names(pods.pods) == ["a"]
    (place.parent / "elsewhere").rename(place)
    assert pods.poll().mended == (str(place),)


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("missing", "file"):
        with pytest.raises(DirectoryError, match=name):
            ManifestPods(tmp_path / name, tmp_path / "pods.json")


# --- restarts (kubelet.md 4.5) ----------------------------------------------------------------------------------------


def test_sources_are_ready_once_the_first_pods_had_their_turn(place: Path) -> None:
    pods = source(place)
    pods.mark_ready()
    assert not pods.sources_ready()  # nothing has been read yet
    pods.poll()
    assert not pods.sources_ready()
    pods.mark_ready()
    assert pods.sources_ready()


def running(pods: ManifestPods) -> set[tuple[str, str]]:
    return {(key.pod, key.container) for key in pods.running_containers()}


def test_after_a_restart_the_containers_of_pods_that_ran_still_run(place: Path) -> None:
    """The exceptions are init containers that end, and all containers after a reboot."""
    pods = source(place)
    (place / "a.yaml").write_text(POD)
    (place / "b.json").write_text(manifest("b", uid="b"))
    (place / "c.json").write_text(manifest("c", uid="c"))
    uid = pods.poll().added[0].uid
    for marked in (uid, PodUid("c")):
        pods.mark_running(marked)
    assert pods.running_containers() == ()
    (place / "c.json").unlink()
    pods.poll()
    again = source(place)
    assert running(again) == {(uid, "proxy"), (uid, "main"), (uid, "idle")}
    assert all(isinstance(key, ContainerKey) for key in again.running_containers())
    assert names(again.poll().added) == ["train", "b"]
    assert running(source(place, boot="boot-2")) == set()


def test_after_a_restart_a_broken_file_keeps_its_pod(place: Path) -> None:
    pods = source(place)
    (place / "a.json").write_text(manifest("a"))
    (place / "b.json").write_text(manifest("b"))
    before = pods.poll().added
    (place / "a.json").write_text("{")
    (place / "b.json").unlink()
    changes = source(place).poll()
    assert changes.added == before[:1]
    assert len(changes.problems) == 1


STATES: Mapping[str, str] = {
    "nested without end": "[" * 100_000,
    "a number with too many digits": '{"boot": ' + "9" * 10_000 + "}",
    "no JSON": "{",
    "something else": "[]",
    "parts missing": '{"boot": "boot-1"}',
    "an unusable manifest": '{"boot": "boot-1", "files": {"a.json": "["}, "running": ["u"]}',
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_a_broken_state_file_is_ignored(place: Path, state: str, caplog: pytest.LogCaptureFixture) -> None:
    (place.parent / "pods.json").write_text(state)
    (place / "a.json").write_text(manifest("a", uid="u"))
    pods = source(place)
    assert pods.running_containers() == ()
    assert names(pods.poll().added) == ["a"]
    assert "subscriptable" not in caplog.text  # part of a message from Python


def test_a_state_that_cannot_be_written_is_logged(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    (place / "a.json").write_text(manifest("a", uid="u"))
    pods = ManifestPods(place, place.parent / "missing" / "pods.json")
    assert names(pods.poll().added) == ["a"]
    pods.mark_running(PodUid("u"))
    assert caplog.text.count("cannot record the running pods") == 1


def test_the_state_file_is_private_and_no_link_is_followed(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    foreign = place.parent / "foreign"
    foreign.write_text("precious")
    state = place.parent / "pods.json"
    for link in (state, place.parent / ".pods.json.new"):
        link.symlink_to(foreign)
    (place / "a.json").write_text(manifest("a", uid="u"))
    pods = source(place)
    assert "it is a symbolic link, expected a regular file" in caplog.text
    pods.poll()
    assert (state.is_symlink(), stat.S_IMODE(state.stat().st_mode)) == (False, 0o600)
    state.unlink()
    state.symlink_to(foreign)
    pods.mark_running(PodUid("u"))
    assert foreign.read_text() == "precious"
    assert running(source(place)) == {("u", "main")}


def test_a_pipe_in_place_of_the_state_file_blocks_nothing(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(place.parent / "pods.json")
    (place / "a.json").write_text(manifest("a"))
    assert names(source(place).poll().added) == ["a"]
    assert "expected a regular file" in caplog.text


# --- hostile manifests ------------------------------------------------------------------------------------------------


@pytest.mark.no_cover  # this test is large
def test_a_hostile_manifest_does_not_delay_other_pods(place: Path) -> None:
    for number, text in enumerate(HOSTILE.values()):
        (place / f"{number:02}.yaml").write_text(text)
    (place / "a.json").write_text(manifest("a"))
    pods = source(place)
    polls = [pods.poll() for _ in HOSTILE]
    assert not polls[0].is_complete
    assert polls[-1].is_complete
    assert [pod.name for changes in polls for pod in changes.added] == ["a"]
    assert len(pods.problems) == len(HOSTILE)
    for problem in pods.problems:
        assert str(problem).isprintable()
        assert len(str(problem)) < 200
    (place / "a.json").write_text(manifest("a", 2))
    assert "a" in [pod.name for _ in HOSTILE for pod in pods.poll().added]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (manifest("a\nb"), "metadata.name"),
        (manifest("\x1b[31m"), "metadata.name"),
        (manifest("a" * 254), "metadata.name"),
        (manifest("a", namespace="\u202e"), "metadata.namespace"),
        (manifest("a", uid="a b"), "metadata.uid"),
        (manifest("a").replace("main", "Main"), "spec.containers[0].name"),
        (manifest("a").replace('"Pod"', '"\\u001b[31m"'), "kind"),
        (manifest("a").replace(GPU, "\\u001b" * 1000), "spec.containers[0].resources.limits.\\x1b\\x1b"),
    ],
)
def test_names_from_a_manifest_are_checked_before_they_are_shown(text: str, field: str) -> None:
    with pytest.raises(ManifestError) as refused:
        read_pods(text, "x\n.yaml")
    assert refused.value.field.startswith(field)
    assert str(refused.value).startswith("x\\n.yaml: ")
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("written", "value"),
    [
        *(("yes", True), ("y", True), ("off", False), ("~", None), ("Null", None), ("", None)),
        *(("010", 8), ("0o10", 8), ("0x1F", 31), ("-0b11", -3), ("1_000", 1000), ("1e3", 1000.0), ("08", 8.0)),
        *(("1:30", "1:30"), ("2026-01-01", "2026-01-01"), ("1e999", "1e999"), ("'5'", "5"), ("!!str 5", "5")),
        *(("!!int '5'", 5), ("! 5", "5"), (".inf", ".inf"), ("0x" + "f" * 17, "0x" + "f" * 17), ("9" * 21, 1e21)),
    ],
)
def test_scalars_mean_what_they_mean_to_kubernetes(written: str, value: object) -> None:
    (document,) = read_documents(f"a: {written}\nb: 1", "x")
    assert document.data == {"a": value, "b": 1}


def test_the_first_source_of_a_merge_and_the_own_keys_have_precedence() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {x: 2, y: 2, z: 2}\nc: {<<: [*a, *b], x: 3, '<<': 4}"
    (document,) = read_documents(text, "x")
    assert document["c"].data == {"x": 3, "y": 1, "z": 2, "<<": 4}


# --- many manifests ---------------------------------------------------------------------------------------------------


@pytest.mark.no_cover  # this test is large
def test_many_manifests_are_read_in_parts(place: Path) -> None:
    count = MAX_BYTES_AT_ONCE // len(manifest("p0000")) + 10
    for number in range(count):
        (place / f"{number:05}.json").write_text(manifest(f"p{number:04}"))
    pods = source(place)
    first = pods.poll()
    pods.mark_ready()
    assert (first.is_complete, pods.sources_ready()) == (False, False)
    second = pods.poll()
    assert (len(first.added) + len(second.added), second.is_complete) == (count, True)
    (place / "00000.json").unlink()
    assert names(pods.poll().removed) == ["p0000"]


def large_manifest(name: str) -> str:
    containers = [{"name": f"c{number}", "image": "x" * 150} for number in range(900)]
    return json.dumps({**json.loads(manifest(name)), "spec": {"containers": containers}})


def test_large_manifests_do_not_delay_a_small_one(place: Path) -> None:
    for number in range(25):
        (place / f"{number:02}.json").write_text(large_manifest(f"large{number}"))
    pods = source(place)
    assert len(pods.poll().added) == 1
    (place / "z.json").write_text(manifest("small"))
    second = pods.poll()
    assert (len(second.added), "small" in names(second.added), second.is_complete) == (2, True, False)


def test_a_large_manifest_has_its_turn_while_small_ones_change(place: Path) -> None:
    (place / "a.json").write_text(large_manifest("a"))
    (place / "z.json").write_text(large_manifest("z"))
    pods = source(place)
    found: list[str] = []
    for look in range(1, 7):
        for number in range(3):
            padding = " " * (MAX_BYTES_AT_ONCE // 3)
            (place / f"p{number}.json").write_text(manifest(f"p{number}", look) + padding)
        found += [name for name in names(pods.poll().added) if name in {"a", "z"}]
    assert found == ["a", "z"]


def test_a_pod_has_a_limit_of_containers() -> None:
    containers = [{"name": f"c{number}"} for number in range(1_001)]
    spec = {"containers": containers[:-1], "initContainers": containers[-1:]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
    with pytest.raises(ManifestError) as refused:
        read_pods(json.dumps(pod), "x.json")
    assert str(refused.value) == "x.json: spec: expected at most 1000 containers, got 1001"
    assert read_pods(json.dumps({**pod, "spec": {"containers": containers[:-1]}}), "x.json")


def test_a_manifest_has_a_limit_of_pods() -> None:
    items = [json.loads(manifest(f"p{number}")) for number in range(501)]
    listed = {"apiVersion": "v1", "kind": "List", "items": items}
    with pytest.raises(ManifestError) as refused:
        read_pods(json.dumps(listed), "x.json")
    assert str(refused.value) == "x.json: expected at most 500 pods and claims in one file, got more: use several files"
    assert len(read_pods(json.dumps({**listed, "items": items[1:]}), "x.json")) == 500


def test_marking_a_pod_does_not_write_all_manifests_again(place: Path) -> None:
    for number in range(50):
        (place / f"{number}.json").write_text(manifest(f"p{number}", uid=f"u{number}"))
    pods = source(place)
    pods.poll()
    state = place.parent / "pods.json"
    before = state.stat()
    for number in range(50):
        pods.mark_running(PodUid(f"u{number}"))
    after = state.stat()
    assert (before.st_ino, after.st_size - before.st_size) == (after.st_ino, sum(len(f'"u{n}"\n') for n in range(50)))
    assert len(running(source(place))) == 50
