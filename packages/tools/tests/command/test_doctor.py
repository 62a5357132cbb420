"""`devicecore doctor`: what it prints, its exit statuses, and that no input makes it crash."""

import base64
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from attrs import evolve
from devicecore_tools.command.main import main
from devicecore_tools.command.node_report import lines_of
from devicecore_tools.doctor.account.precedence import OwnerState
from devicecore_tools.doctor.findings.checks import CHECKS
from devicecore_tools.doctor.findings.finding import Evidence, NodeFinding
from devicecore_tools.doctor.findings.report import DeviceRow, NodeReport
from devicecore_tools.doctor.look.values import Source
from prometheus_client.parser import text_string_to_metric_families

from devicecore.domain.checkpoint import CheckpointData, PodDevicesEntry, encode
from devicecore.domain.dra.model import PreparedDevice
from devicecore.domain.dra.state_file import ClaimEntry
from devicecore.domain.dra.state_file import encode as encode_claims
from tests.recorded import lines, share

Capsys = pytest.CaptureFixture[str]
Run = Callable[..., "subprocess.CompletedProcess[str]"]

GPU = "example.com/gpu"
ROOT = Path(__file__).parents[4]
SOUND = encode(CheckpointData((PodDevicesEntry("u-1", "main", GPU, {0: ("gpu-0",)}, b""),), {GPU: ("gpu-0", "gpu-1")}))
SHARED = encode(
    CheckpointData(
        tuple(PodDevicesEntry(pod, "main", GPU, {0: ("gpu-0",)}, b"") for pod in ("u-1", "u-2")),
        {GPU: ("gpu-0", "gpu-1")},
    )
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kubelet_internal_checkpoint"
    path.write_bytes(SOUND)
    return path


def doctor(*arguments: str) -> int:
    return main(["doctor", *arguments])


def test_a_sound_file_has_no_findings_and_no_free_device(file: Path, capsys: Capsys) -> None:
    assert doctor("--checkpoint", str(file)) == 3
    printed = capsys.readouterr().out.splitlines()
    verdict = (
        "this node: no problem was found, but not everything was examined; 1 pod holds 1 device, 0 free, 1 with an"
    )
    assert printed[0].startswith(verdict)
    assert printed[2].startswith("not ruled out: whether container 'main' of pod 'u-1' still holds devices of")
    assert any("a plugin's device that also belongs to a ResourceClaim" in line for line in printed)
    lines = [line.split() for line in printed]
    assert ["read:", "checkpoint", f"({file.parent})"] in lines
    assert "  not read: pods: add --pods or --kubeconfig" in printed
    assert [GPU, "gpu-0", "0", "unknown", "u-1", "main", "unknown", "checkpoint"] in lines
    assert [GPU, "gpu-1", "unknown", "unknown", "unknown", "unknown", "checkpoint"] in lines


def test_a_finding_is_printed_with_everything_that_belongs_to_it(file: Path, capsys: Capsys) -> None:
    file.write_bytes(SHARED)
    assert doctor("--checkpoint", str(file)) == 1
    verdict, _, text = capsys.readouterr().out.partition("\n\n")
    assert verdict.startswith("this node: 1 finding: a device belongs to two containers that cannot share it")
    assert text.startswith(f"1. 1 device of {GPU} (gpu-0) belongs to container 'main' of pod 'u-1' and to container")
    for part in (
        "   evidence: checkpoint: ",
        "   next:     ",
        "   do:       ",
        "   confirm:  ",
        "   see:      https://",
    ):
        assert f"\n{part}" in text


def large_report(findings: int) -> NodeReport:
    """Return a report on 300 pods with 3 devices each, 1,100 free devices, and this many findings."""
    held = [
        DeviceRow(
            GPU, f"gpu-{one}", (0,), "Healthy", f"default/pod-{one // 3}", "", "main", (Source.PODS,), OwnerState.LIVE
        )
        for one in range(900)
    ]
    free = [
        DeviceRow(GPU, f"gpu-{one}", (0,), "Healthy", "free", "", "", (Source.CHECKPOINT,), OwnerState.LIVE)
        for one in range(900, 2_000)
    ]
    check = CHECKS[0]
    texts = check.code, check.title, "The sentence " * 20, (Evidence(Source.PODS, "said " * 40),)
    found = [
        NodeFinding(
            *texts, check.next, check.confirm, check.issue, GPU, do=check.do, number=one + 1, brief=f"{one} brief"
        )
        for one in range(findings)
    ]
    return NodeReport("node-1", (), (*held, *free), tuple(found), is_enough=True)


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("findings", [1, 30])
def test_the_verdict_and_all_findings_are_on_the_first_screen(findings: int, width: int) -> None:
    lines = list(lines_of(large_report(findings), width))
    assert lines[0].startswith("node-1: ")
    shown = " ".join(lines[:40])
    assert all(f"{one} brief" in shown for one in range(findings))
    assert "300 pods hold 900 devices, 1,100 free" in " ".join(line.strip() for line in lines[:4])
    assert max(len(line) for line in lines if "https://" not in line) <= width


def test_the_verdict_counts_findings_and_the_table_counts_free_devices_once() -> None:
    """There are free devices on both sides of a held device, and all findings have the same short text."""
    full = large_report(3)
    rows = (full.devices[-1], full.devices[0], full.devices[-2])
    alike = tuple(evolve(one, brief="the same") for one in full.findings)
    printed = list(lines_of(evolve(full, devices=rows, findings=alike), 200))
    assert printed[0] == "node-1: 3 findings: the same, and 2 more; 1 pod holds 1 device, 2 free"
    assert [line for line in printed if " free (" in line] == [f"  {GPU}: 2 free (gpu-1998, gpu-1999)"]


def test_a_page_never_replaces_what_is_read(file: Path, tmp_path: Path, capsys: Capsys) -> None:
    (node := tmp_path / "node.json").write_text("{}")
    (link := tmp_path / "link.html").symlink_to(file)
    for target in (file, link, node):
        assert doctor("--checkpoint", str(file), "--node", str(node), "--html", str(target)) == 2
        assert "is an input and would be replaced" in capsys.readouterr().err
    assert (file.read_bytes(), node.read_text()) == (SOUND, "{}")


def test_json_has_sources_devices_and_findings(file: Path, capsys: Capsys) -> None:
    file.write_bytes(SHARED)
    assert doctor("--checkpoint", str(file), "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert [*document] == [
        *("format", "verdict", "is_sound", "counts", "name", "sources", "devices", "findings", "is_enough"),
        *("not_ruled_out", "account", "pinned"),
    ]
    assert (document["format"], document["counts"]["findings"], document["is_sound"]) == (2, 1, False)
    assert [source["source"] for source in document["sources"]] == [source.value for source in Source]
    assert document["devices"][0] == {
        "resource": GPU,
        "device": "gpu-0",
        "numa_nodes": [0],
        "health": "unknown",
        "owner": "u-1",
        "pod_uid": "u-1",
        "container": "main",
        "sources": ["checkpoint"],
        "state": "unknown",
        "pool": "",
        "note": "one of 2 holders",
    }
    (finding,) = document["findings"]
    assert (finding["number"], finding["code"], finding["devices"]) == (1, "two-owners", ["gpu-0"])
    assert finding["evidence"][0]["source"] == "checkpoint"


@pytest.mark.parametrize("resource", [GPU, 'a"b\\c\n{d}', "\x1b\u202e", "x" * 5_000, "\u20ac"])
def test_metrics_are_read_by_prometheus(tmp_path: Path, resource: str, capsys: Capsys) -> None:
    file = tmp_path / "file"
    file.write_bytes(encode(CheckpointData(None, {resource: ("gpu-0",)})))
    assert doctor("--checkpoint", str(file), "--metrics") == 3
    families = {one.name: one for one in text_string_to_metric_families(capsys.readouterr().out)}
    assert {one.type for one in families.values()} == {"gauge"}
    assert all(one.documentation for one in families.values())
    read = {one.labels["source"]: one.value for one in families["devicecore_doctor_source_read"].samples}
    assert (read["checkpoint"], read["pods"]) == (1, 0)
    devices = families["devicecore_doctor_devices"].samples
    assert {one.labels["state"]: one.value for one in devices} == {"live": 0, "stale": 0, "unknown": 1}
    found = families["devicecore_doctor_findings"].samples
    assert {one.labels["code"] for one in found} == {one.code for one in CHECKS}


def test_page_and_picture_are_written_in_addition_to_the_output(file: Path, tmp_path: Path, capsys: Capsys) -> None:
    file.write_bytes(SHARED)
    page, picture = tmp_path / "node.html", tmp_path / "node.svg"
    page.write_text("an older page")
    assert doctor("--checkpoint", str(file), "--json", "--html", str(page), "--svg", str(picture)) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["findings"][0]["sentence"].replace("'", "&#x27;") in page.read_text()
    assert picture.read_text().startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.name, page.name, picture.name]


def test_having_nothing_to_read_gives_status_2_and_a_sentence(tmp_path: Path, capsys: Capsys) -> None:
    assert doctor("--root", str(tmp_path)) == 2
    printed = capsys.readouterr()
    assert "not read: checkpoint: there is no directory" in printed.out
    assert printed.err.startswith("devicecore doctor: no device was seen: ")


def test_a_kubeconfig_that_cannot_be_used_is_a_sentence_on_standard_error(
    tmp_path: Path, file: Path, capsys: Capsys
) -> None:
    (config := tmp_path / "config").write_text("a:\n\tb: c\n")
    for options, status in (((), 2), (("--checkpoint", str(file)), 3)):
        assert doctor("--kubeconfig", str(config), "--node-name", "x", *options) == status
        assert f"devicecore doctor: --kubeconfig: cannot use kubeconfig '{config}': line 2: " in capsys.readouterr().err


def test_the_parent_of_kubelets_directories_is_answered_with_their_names(tmp_path: Path, capsys: Capsys) -> None:
    for name in ("b", "a"):
        (tmp_path / name / "device-plugins").mkdir(parents=True)
    assert doctor("--root", str(tmp_path)) == 2
    printed = capsys.readouterr()
    assert printed.out.startswith("this node: nothing that belongs to a kubelet was read\n")
    assert f"the directories a, b do. To read one of them, use --root {tmp_path / 'a'}\n" in printed.err


def test_a_list_of_pods_of_one_namespace_is_doubted_with_the_option_that_settles_it(
    tmp_path: Path, file: Path, capsys: Capsys
) -> None:
    """Such a list is also what `kubectl get pods -A` prints on a small cluster."""
    pod = {"metadata": {"name": "a", "namespace": "default", "uid": "u-1"}, "spec": {"nodeName": "n"}}
    (pods := tmp_path / "pods.json").write_text(json.dumps({"kind": "PodList", "items": [pod]}))
    (node := tmp_path / "node.json").write_text(json.dumps({"kind": "Node", "metadata": {"name": "n"}}))
    sources = ("--checkpoint", str(file), "--pods", str(pods), "--node", str(node))
    doctor(*sources, "--json")
    said = "the pods of only one namespace, as without -A; --kubeconfig always reads all pods"
    assert said in capsys.readouterr().out


def test_a_finding_counts_for_more_than_a_file_that_cannot_be_read(tmp_path: Path, file: Path, capsys: Capsys) -> None:
    (wrong := tmp_path / "pods.json").write_text('{"kind": "Service"}')
    for blob, status in ((SHARED, 1), (SOUND, 2)):
        file.write_bytes(blob)
        assert doctor("--checkpoint", str(file), "--pods", str(wrong)) == status
        assert "devicecore doctor: --pods was not read: " in capsys.readouterr().err


@pytest.mark.parametrize(("command", "status"), [(["doctor"], 1), (["why", "default/batch"], 0)])
def test_a_name_that_is_not_the_name_of_the_node_is_refused(command: list[str], status: int, capsys: Capsys) -> None:
    record = str(ROOT / "docs/nodes/leak")
    assert main([*command, "--root", record, "--node-name", "other"]) == 2
    assert "--node-name other: the files belong to Node node-1. To read a diff" in capsys.readouterr().err
    assert main([*command, "--root", record, "--node-name", "node-1"]) == status


def test_a_record_that_cannot_be_written_is_a_sentence_of_the_command(file: Path, capsys: Capsys) -> None:
    place = file / "record"  # `file` is not a directory
    assert doctor("--checkpoint", str(file), "--save", str(place)) == 2
    assert capsys.readouterr().err.startswith(f"devicecore doctor: --save: {place} cannot be written: ")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--json", "--metrics"], "--json and --metrics cannot be used together."),
        (["--in-cluster", "--all-nodes", "--metrics"], "--all-nodes and --metrics cannot be used together."),
        (["--in-cluster", "--all-nodes", "--root", "."], "--all-nodes and --root cannot be used together."),
        (["--kubeconfig", "x", "--in-cluster", "--node-name", "n"], "--in-cluster cannot be used together"),
        (["--in-cluster"], "--kubeconfig and --in-cluster need --node-name, the name of the Node object."),
        (["--pod-resources", "x", "--plugins"], "--plugins needs --root, the directory of the plugins' sockets."),
        (["--root", "/a", "--root=/b"], "--root was given twice: /a and /b. Give only one directory."),
        (["--slices", "a", "--slices", "b"], "--slices was given twice: a and b. Give only one file."),
        (
            ["--root", str(ROOT / "docs/nodes/leak"), "--plugins"],
            "docs/nodes/leak is a record, which contains no sockets: leave out --plugins.",
        ),
        (
            ["--claims", "docs/nodes/leak/node.json"],
            "it contains API objects; expected the kubelet's dra_manager_state.",
        ),
        (["--cdi-dir", "/no/cdi"], "--cdi-dir: /no/cdi: there is no such directory."),
        (["--cdi-dir", __file__], "it is a file; expected a directory."),
        (["help"], "expected options only, got 'help'. To show the help, run: devicecore doctor --help"),
        (["--html", "/dev/null"], "--html: /dev/null is a directory, a pipe or a device; expected the name of a file."),
        (["--svg", "/nowhere/x.svg"], "--svg: there is no directory /nowhere."),
        (["--svg", "x" * 300], "--svg: " + "x" * 300 + ": File name too long."),
        (["--watch", "--interval", "0"], "Invalid value for '--interval'"),
        (["--wat"], "No such option '--wat'."),
        (["/etc"], "expected options only, got '/etc'. To read it, write --root /etc."),
        ([__file__], f"write --checkpoint {__file__}."),
        (["--checkpoint", "/etc/"], "it is a directory; expected a file, such as /etc/kubelet_internal_checkpoint."),
        (["--checkpoint", "/nowhere"], "--checkpoint: /nowhere: there is no such file."),
        (
            ["--checkpoint", str(ROOT / "docs/nodes/leak" / "pods.json")],
            "it contains API objects; expected a kubelet's checkpoint.",
        ),
        (["--checkpoint", str(ROOT / "docs/nodes/leak" / "node.json")], "Use --pods for pods, --node for a Node."),
        (["--claims", "/etc"], "it is a directory; expected a file, such as /etc/dra_manager_state."),
        (["--pods", "/nowhere"], "--pods: /nowhere: there is no such file."),
        (["--node", "-"], "--node: -: only --pods and --events can be standard input; name a file."),
        (["--root", "/nowhere"], "--root: /nowhere: there is no such directory."),
        (["--root", __file__], "it is a file; expected a directory. To read a checkpoint, use --checkpoint"),
        (["--save", __file__], "is a file; expected the name of a directory."),
    ],
)
def test_wrong_usage_is_one_sentence(arguments: list[str], complaint: str, capsys: Capsys) -> None:
    assert doctor(*arguments) == 2
    assert complaint in capsys.readouterr().err


def test_a_report_is_not_a_checkpoint(tmp_path: Path, capsys: Capsys) -> None:
    """Otherwise, its missing checksum would be a finding."""
    assert doctor("--root", "docs/nodes/leak", "--json") == 1
    (tmp_path / "report.json").write_text(capsys.readouterr().out)
    assert doctor("--checkpoint", str(tmp_path / "report.json")) == 2
    assert "it is what doctor --json prints; expected a kubelet's checkpoint." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "problem"),
    [("link", "it is a symbolic link that leads back to itself."), ("nothing", "its target does not exist.")],
)
def test_a_link_that_leads_nowhere_is_named_as_such(target: str, problem: str, tmp_path: Path, capsys: Capsys) -> None:
    (link := tmp_path / "link").symlink_to(target)
    assert doctor("--checkpoint", str(link)) == 2
    assert f"--checkpoint: {link}: {problem}" in capsys.readouterr().err
    assert main(["kubelet", "--root", str(link)]) == 2
    assert f"'--root': {link}: {problem}" in capsys.readouterr().err


def test_a_named_file_that_is_unreadable_is_status_2(file: Path, tmp_path: Path, capsys: Capsys) -> None:
    (pods := tmp_path / "pods.json").write_text("{")
    assert doctor("--checkpoint", str(file), "--pods", str(pods)) == 2
    printed = capsys.readouterr()
    assert f"devicecore doctor: --pods was not read: {pods}: it is not JSON" in printed.err
    assert printed.out.count(str(pods)) == 1


def test_an_unreadable_root_hides_no_other_source(file: Path, tmp_path: Path, capsys: Capsys) -> None:
    """A path whose name is too long is as inaccessible as another user's directory, even for root."""
    assert doctor("--root", str(tmp_path / ("x" * 300)), "--checkpoint", str(file)) == 3
    output = capsys.readouterr().out
    assert "  not read: sockets: File name too long" in output
    assert f"  read: checkpoint ({file.parent})" in output


def test_an_api_server_that_cannot_be_used_is_a_sentence(file: Path, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "config").write_text("")
    arguments = ("--checkpoint", str(file), "--kubeconfig", str(tmp_path / "config"), "--node-name")
    assert doctor(*arguments, "n1") == 3
    assert "\n  not read: pods: " in capsys.readouterr().out
    assert doctor(*arguments, "../x") == 2


def test_every_recorded_checkpoint_leads_to_a_report(tmp_path: Path, capsys: Capsys) -> None:
    """Each recorded file leads to a report, a page and a picture, with findings if a kubelet would not read the file.

    `make test` uses every seventh file. `doctor/test_reading.py` reads all recorded files the way doctor does.
    """
    file, page, picture = tmp_path / "file", tmp_path / "page.html", tmp_path / "picture.svg"
    for record in share(list(lines("checkpoint/decode.jsonl")), of=7):
        file.write_bytes(base64.b64decode(record["file_b64"]))
        status = doctor("--checkpoint", str(file), "--html", str(page), "--svg", str(picture))
        printed = capsys.readouterr()
        assert (status in {0, 1, 3}, printed.err) == (True, ""), record["id"]
        assert page.read_text(encoding="utf-8").endswith("</html>\n"), record["id"]
        ET.parse(picture)  # noqa: S314 - the text is ours, and the untrusted parts in it are what is being tested
        assert all(text.isprintable() for text in printed.out.splitlines()), record["id"]
        if record["verdict"] == "checksum":
            assert status == 1, record["id"]


def test_a_truncated_checkpoint_is_a_finding_wherever_it_ends(file: Path, capsys: Capsys) -> None:
    for end in range(len(SOUND) - 1):
        file.write_bytes(SOUND[:end])
        assert doctor("--checkpoint", str(file), "--json") == 1
        codes = [finding["code"] for finding in json.loads(capsys.readouterr().out)["findings"]]
        assert codes[0] in {"checkpoint-unreadable", "checkpoint-checksum"}


def test_text_from_outside_plays_no_tricks_on_a_terminal(file: Path, capsys: Capsys) -> None:
    evil = "\x1b[31m\u202e\n" + "x" * 5_000
    entries = (PodDevicesEntry(evil, evil, evil, {0: (evil,)}, b"\xff"),)
    file.write_bytes(encode(CheckpointData(entries, {evil: (evil,)})))
    assert doctor("--checkpoint", str(file)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) < 1_000


def test_pods_may_come_from_standard_input(devicecore: Run, file: Path) -> None:
    named = (("u-1", "default", "Failed"), ("u-9", "kube-system", "Running"))
    items = [
        {"metadata": {"uid": uid, "name": "x", "namespace": namespace}, "status": {"phase": phase}}
        for uid, namespace, phase in named
    ]
    pods = {"kind": "PodList", "items": items}
    ran = devicecore("doctor", "--checkpoint", str(file), "--pods", "-", "--json", stdin=json.dumps(pods))
    assert {row["state"] for row in json.loads(ran.stdout)["devices"] if row["container"]} == {"stale"}


def test_without_grpc_the_other_sources_are_read(tmp_path: Path) -> None:
    directory = tmp_path / "device-plugins"
    directory.mkdir()
    (directory / "kubelet_internal_checkpoint").write_bytes(SOUND)
    script = (
        "import sys\n"
        "sys.modules['grpc'] = sys.modules['google'] = sys.modules['httpx2'] = None\n"
        "from devicecore_tools.command.main import main\n"
        f"sys.exit(main(['doctor', '--root', {str(tmp_path)!r}, '--plugins', '--json']))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    sources = {source["source"]: source for source in json.loads(ran.stdout)["sources"]}
    assert (ran.returncode, ran.stderr) == (3, "")
    assert sources["checkpoint"]["was_read"]
    assert "because protobuf is not installed" in sources["checkpoint"]["notes"][0]
    assert "because grpcio is not installed" in sources["pod-resources"]["problem"]
    assert "because grpcio is not installed" in sources["plugins"]["problem"]
    shown = subprocess.run(
        [sys.executable, "-c", script.replace(", '--json'", "")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "the kubelet was not queried, because grpcio is not installed" in shown.stdout.partition("\n")[0]


def test_nothing_is_changed(directory: Path, capsys: Capsys) -> None:
    (directory / "device-plugins").mkdir()
    (directory / "device-plugins" / "kubelet_internal_checkpoint").write_bytes(SHARED)
    with socket.socket(socket.AF_UNIX) as plugin:
        plugin.bind(str(directory / "device-plugins" / "gpu.sock"))

    def state() -> list[tuple[str, int, int]]:
        paths = [directory, *sorted(directory.rglob("*"))]
        return [(str(path), path.stat().st_mtime_ns, path.stat().st_mode) for path in paths]

    before = state()
    assert doctor("--root", str(directory), "--plugins", "--patience", "0") == 1
    assert "plugin-silent" not in capsys.readouterr().err
    assert state() == before


def test_watch_reports_until_sigterm(file: Path) -> None:
    command = [sys.executable, "-m", "devicecore_tools", "doctor", "--checkpoint", str(file), "--watch", "--json"]
    with subprocess.Popen([*command, "--interval", "0.1"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        file.write_bytes(SHARED)
        while not (later := json.loads(process.stdout.readline()))["findings"]:
            pass
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(60) == 1
    assert (first["findings"], [one["code"] for one in later["findings"]]) == ([], ["two-owners"])


def test_watch_rewrites_the_page_with_each_report(file: Path, tmp_path: Path) -> None:
    page = tmp_path / "node.html"
    command = [sys.executable, "-m", "devicecore_tools", "doctor", "--checkpoint", str(file), "--watch", "--json"]
    with subprocess.Popen(
        [*command, "--interval", "0.1", "--html", str(page)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        before = page.read_text()
        file.write_bytes(SHARED)
        while not json.loads(process.stdout.readline())["findings"]:
            pass
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(60) == 1
    assert ("two-owners" in before, "two-owners" in page.read_text()) == (False, True)


def test_the_guide_lists_each_finding_with_its_title_its_patience_and_its_issue() -> None:
    guide = (ROOT / "docs" / "read-a-node.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (.*) \| (\S+) s \| \[.*\]\((.*)\) \|$", guide, re.MULTILINE)
    assert rows == [(one.code, one.title, f"{one.patience:g}", one.issue) for one in CHECKS]


def test_each_finding_and_a_source_that_is_not_read_have_a_rule() -> None:
    rules = (ROOT / "docs" / "doctor" / "alerts.yaml").read_text(encoding="utf-8")
    codes = [code for found in re.findall(r'findings\{code=~"([^"]+)"\}', rules) for code in found.split("|")]
    assert sorted(codes) == sorted(one.code for one in CHECKS)
    assert set(re.findall(r'source_read\{source=~"([^"]+)"\}', rules)[0].split("|")) <= {one.value for one in Source}


def test_help_says_what_is_read_and_what_the_exit_status_means(devicecore: Run) -> None:
    text = " ".join(devicecore("doctor", "--help").stdout.split())
    assert (
        "Exit status: 0 if nothing is wrong and everything was judged, 1 if there are findings, 3 if nothing is wrong"
        in text
    )
    assert "Allocate is never called" in text


def test_a_device_of_a_plugin_and_a_claim_is_found_in_files(file: Path, tmp_path: Path, capsys: Capsys) -> None:
    file.write_bytes(encode(CheckpointData((PodDevicesEntry("u-1", "main", GPU, {0: ("0000:3b:00.0",)}, b""),))))
    device = PreparedDevice("n1", "dev-7")
    claims, slices = tmp_path / "dra_manager_state", tmp_path / "slices.json"
    claims.write_bytes(encode_claims([ClaimEntry("c-1", "one", "default", ("p",), {"npu.org": (device,)})]))
    attributes = {"resource.kubernetes.io/pciBusID": {"string": "0000:3b:00.0"}}
    spec = {"driver": "npu.org", "pool": {"name": "n1"}, "devices": [{"name": "dev-7", "attributes": attributes}]}
    slices.write_text(json.dumps({"kind": "List", "items": [{"spec": spec}]}))
    assert doctor("--checkpoint", str(file), "--claims", str(claims), "--slices", str(slices)) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "belongs to container 'main' of pod 'u-1', and also to ResourceClaim 'default/one'" in text
    assert "the plugin and the driver both name the PCI address 0000:3b:00.0" in text
    assert doctor("--checkpoint", str(file), "--claims", str(claims)) == 3
    text = " ".join(capsys.readouterr().out.split())
    assert "not ruled out: a plugin's device of the same vendor, or with a PCI address as" in text
    assert "because the slices were not read: add --slices or --kubeconfig" in text


def test_a_copied_plugin_directory_does_not_say_that_no_claim_is_prepared(tmp_path: Path, capsys: Capsys) -> None:
    copy, kubelets = tmp_path / "copy", tmp_path / "root" / "device-plugins"
    for directory in (copy, kubelets):
        directory.mkdir(parents=True)
        (directory / "kubelet_internal_checkpoint").write_bytes(encode(CheckpointData((), {"example.com/gpu": ("g",)})))
    doctor("--root", str(copy), "--patience", "0")
    assert f"  not read: claims: there is no such file ({tmp_path}/dra_manager_state)" in capsys.readouterr().out
    doctor("--root", str(kubelets), "--patience", "0")
    assert "note: claims: there is no such file, so no claim is prepared" in capsys.readouterr().out
