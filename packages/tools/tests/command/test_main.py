"""The command itself: its help, its errors, and what it does not import."""

import inspect
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import combinations
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from devicecore_tools.command.commands import COMMANDS, FLEET
from devicecore_tools.command.commands import devicecore as tree
from devicecore_tools.command.main import explained_threads, main
from devicecore_tools.command.options import Place, Target
from tests.command.terminal import PATIENCE, Terminal

from devicecore.domain.checkpoint import CheckpointData, encode

Run = Callable[..., "subprocess.CompletedProcess[str]"]
MODULES = {f"devicecore_tools.command.{place.partition(':')[0]}" for place, _ in COMMANDS.values()}


def run_python(script: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def every_command(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from every_command(command, *path, name)


def test_every_command_explains_itself_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` prints the usage and a line to copy, and exits with 0."""
    for path in ((), *(path for path, _ in every_command(tree))):
        assert main([*path, "--help"]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith(" ".join(("Usage: devicecore", *path)))
        assert "\n  $ devicecore " in printed


def test_an_option_that_needs_another_is_refused_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise, `kubelet --wait 3` or `doctor --interval 5` would silently do something else."""
    needing = 0
    for path, command in every_command(tree):
        for option in command.params:
            text = (isinstance(option, click.Option) and option.help) or ""
            if text.startswith("With --"):
                needed = text.removeprefix("With ").partition(":")[0]
                flag = [*option.opts, *option.secondary_opts][-1]
                value = [] if getattr(option, "is_flag", False) else ["1"]
                assert main([*path, flag, *value]) == 2
                assert f"{flag} needs {needed}.\n" in capsys.readouterr().err
                needing += 1
    assert needing > 10


@pytest.mark.parametrize("name", ["~/no-such-file", "https://example.com/no-such-file"])
def test_a_name_that_no_file_can_have_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A shell does not replace ~ in --kubeconfig=~/config. kubectl reads from URLs, but devicecore does not."""
    named = 0
    for path, command in every_command(tree):
        for one in command.params:
            if isinstance(one.type, click.Path | Place):
                given = [name] * max(one.nargs, 1) if isinstance(one, click.Argument) else [f"{one.opts[-1]}={name}"]
                assert main([*path, *given]) == 2
                said = capsys.readouterr().err
                assert name in said
                assert (
                    "the shell has not replaced ~ here" in said or "expected the name of a file, got a URL" in said
                ), said
                named += 1
    assert named > 40


def test_a_file_to_write_is_not_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise, a file called `-` would be written."""
    for path, command in every_command(tree):
        for option in (one.opts[0] for one in command.params if isinstance(one.type, Target)):
            assert main([*path, option, "-"]) == 2
            assert f"Invalid value for '{option}': expected the name of a file, got '-'." in capsys.readouterr().err
    for words in (["repair", "docs/nodes/leak", "-"], ["convert", "--to", "2", "-o", "-", "docs/nodes/leak"]):
        assert main(["checkpoint", *words]) == 2
        assert "expected the name of a new file, got '-'." in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["nodes", "-"], ["why", "-"], ["doctor", "--root", "docs/nodes/leak", "--pods", "-"]]
)
def test_a_command_that_waits_for_a_user_says_so(arguments: list[str]) -> None:
    with closing(Terminal(arguments, 100, 30)) as terminal:
        terminal.read_until("reading standard input; to end it, press Ctrl-D")
        terminal.type(b"\x04")
        assert terminal.process.wait(PATIENCE) in (1, 2)


def test_no_two_options_write_the_same_file(capsys: pytest.CaptureFixture[str]) -> None:
    for path, command in every_command(tree):
        targets = [one.opts[0] for one in command.params if isinstance(one.type, Target)]
        for one, other in combinations(targets, 2):
            assert main([*path, one, "out", other, "./out"]) == 2
            assert f"{one} and {other} name the same file: ./out.\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", ["kubelet --context x", "doctor --html out --svg out", "fits ~/pod.yaml --pods https://example.com"]
)
def test_the_help_is_printed_even_if_an_option_is_wrong(capsys: pytest.CaptureFixture[str], arguments: str) -> None:
    """--help takes precedence over our checks of options, as it does over click's checks of their values."""
    assert main([*arguments.split(), "--help"]) == 0
    assert "Usage: " in capsys.readouterr().out


def test_an_option_of_a_command_is_not_one_of_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugin", "--resource", "example.com/gpu"]) == 2
    said = "--resource belongs after the command: devicecore plugin simulated --resource"
    assert capsys.readouterr().err == f"devicecore plugin: {said}\n"


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_an_example_stays_on_one_line_however_narrow_the_terminal(columns: int) -> None:
    """The line that a user copies from `--help` is one command."""
    for path, command in every_command(tree):
        written = [line.strip() for line in inspect.cleandoc(command.help or "").splitlines()]
        examples = {line for line in written if line.startswith("$ ")}
        context = click.Context(command, info_name=path[-1], terminal_width=columns)
        shown = {line.strip() for line in command.get_help(context).splitlines()}
        assert examples, path
        assert examples <= shown, path


def test_the_list_of_commands_describes_each_in_a_whole_sentence() -> None:
    """At 80 columns, click would cut off a longer first sentence."""
    groups = [tree, *(command for _, command in every_command(tree) if isinstance(command, click.Group))]
    for group in groups:
        listed = group.get_help(click.Context(group, terminal_width=80)).partition("Commands:")[2].splitlines()
        assert [line for line in listed if line.endswith("...")] == []


def test_the_version_is_printed(devicecore: Run) -> None:
    """`--version` prints the name and a version on one line."""
    ran = devicecore("--version")
    assert (ran.returncode, ran.stdout.split()[0], len(ran.stdout.splitlines())) == (0, "devicecore", 1)


@pytest.mark.parametrize("group", ["", "plugin", "checkpoint"])
def test_without_a_command_there_is_help_and_status_2(devicecore: Run, group: str) -> None:
    """Calling `devicecore` or one of its groups without a subcommand is wrong usage, and the help is printed."""
    ran = devicecore(*group.split())
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("Usage: devicecore")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("dmeo", "devicecore: No such command 'dmeo'. Did you mean 'demo'?"),
        ("nothing-alike", "No such command 'nothing-alike'. To list the commands, run: devicecore --help"),
        ("help doctor", "To show the help, run: devicecore doctor --help"),
        ("version", "To print the version, run: devicecore --version"),
        ("dra", "No such command 'dra'. Did you mean 'dra-driver'?"),
        ("demo --jsno", "devicecore demo: No such option '--jsno'."),
        ("doctor --output json", "No such option '--output'. Write --json instead."),
        ("doctor -o json", "No such option '-o'. Write --json instead."),
        ("plugin simulated --devices 4", "To list the options, run: devicecore plugin simulated --help"),
        ("nodes worker-1", "To show one node of the cluster, use --node-selector kubernetes.io/hostname=worker-1."),
        ("fits train", "kubectl get pod train -o json | devicecore fits -"),
        ("demo now", "devicecore demo: Got unexpected extra argument (now)"),
        (
            "checkpoint verify",
            "Missing argument 'FILE...'. Expected: devicecore checkpoint verify [OPTIONS] FILE... (for examples, run:",
        ),
        ("checkpoint show a b", "devicecore checkpoint show: Got unexpected extra argument (b)"),
        ("conformance dra", "devicecore conformance: No such command 'dra'. Did you mean 'driver'?"),
        ("conformance -- ./plugin", "devicecore conformance plugin -- ./plugin or devicecore conformance driver -- "),
        ("plugin simulated --resource a.b/c --count few", "'few' is not a whole number"),
        (
            "doctor --html --root .",
            "devicecore doctor: --html: expected FILE, got '--root'. If this is the value, write",
        ),
        (
            "doctor --save --plugins",
            "--save: expected DIR, got '--plugins'. If this is the value, write --save=--plugins.",
        ),
        ("doctor --node-name --jsno", "--node-name: expected NAME, got '--jsno'."),
        ("fits pod.yaml --pods --node x", "devicecore fits: --pods: expected FILE, got '--node'."),
        ("checkpoint convert x -o --json", "devicecore checkpoint convert: -o: expected NEWFILE, got '--json'.\n"),
        ("fleet x.yaml --control --json", "devicecore fleet run: --control: expected "),
        ("plugin simulated", "Missing option '--resource'. "),
        ("nodes -f nodes.json", "devicecore nodes: No such option '-f'. Write the name of the file without -f."),
        ("why train -n default", "No such option '-n'. Write NAMESPACE/NAME."),
        ("nodes --node a", "No such option '--node'. Write --node-selector kubernetes.io/hostname=NAME."),
        ("doctor a", "To read a Node from an API server, write --node-name a --kubeconfig FILE."),
        ("nodes -A", "No such option '-A'. All namespaces are read."),
        ("fits pod.yaml --kubeconfig k", "To try the nodes of a cluster, run: kubectl devicecore fits POD"),
        ("doctor --watch 5", "To set the time between reports, write --interval 5."),
        ("checkpoint repair /nowhere /n", "devicecore checkpoint repair: /nowhere: there is no"),
        ("conformance driver -- d {registery}", "{registery}: there is no such placeholder. Did you mean {registry}?"),
        ("conformance plugin -- p ${dirs} {dirs}", "{dirs}: there is no such placeholder. Did you mean {dir}?"),
        ("conformance driver --claims /dev/zero -- d", "bytes or more; expected at most 1048576"),
        ("conformance plugin -- /no/plugin", "devicecore conformance plugin: cannot run"),
    ],
)
def test_wrong_usage_is_one_sentence_and_status_2(devicecore: Run, arguments: str, sentence: str) -> None:
    """For each of these mistakes, stderr contains one line and stdout is empty."""
    ran = devicecore(*arguments.split())
    assert (ran.returncode, ran.stdout, len(ran.stderr.splitlines())) == (2, "", 1)
    assert sentence in ran.stderr


@pytest.mark.parametrize(
    ("missing", "extra", "arguments"),
    [
        (["click"], "", ["--help"]),
        pytest.param(["rich"], "", ["demo"], marks=pytest.mark.slow),
        pytest.param(["rich"], "", ["demo", "--json"], marks=pytest.mark.slow),
        (
            ["httpcore2", "httpx2"],
            "[kubernetes]",
            ["dra-driver", "simulated", "--name", "a.b", "--node", "n"],
        ),
    ],
)
def test_without_an_extra_a_command_says_what_to_install(missing: list[str], extra: str, arguments: list[str]) -> None:
    """If a library is not installed, one sentence names the command to run, and the status is 2."""
    begin = f"import sys; sys.modules.update(dict.fromkeys({missing})); from devicecore_tools.command.main import main"
    ran = run_python(f"{begin}; sys.exit(main({arguments}))")
    assert (ran.returncode, ran.stdout) == (2, "")
    install = f"in a clone, pip install . './packages/tools{extra}'; elsewhere, pip install 'devicecore-tools{extra}'"
    needed = f"the extra `{extra[1:-1]}`" if extra else missing[0]
    command = " ".join(["devicecore", *(one for one in arguments if one in {"demo", "dra-driver", "simulated"})])
    assert ran.stderr == f"{command}: the command needs {needed}: {install}\n"


def test_another_missing_module_is_a_bug_and_shows_its_traceback() -> None:
    """A user is told to install only libraries that devicecore-tools or one of its extras needs."""
    script = (
        "import sys; sys.modules['devicecore_tools.command.demo.cluster'] = None\n"
        "from devicecore_tools.command.main import main"
    )
    ran = run_python(f"{script}; main(['demo'])")
    assert ran.returncode == 1
    assert "ModuleNotFoundError" in ran.stderr


def test_help_loads_no_command() -> None:
    script = "import sys; from devicecore_tools.command.main import main; main(['--help']); print(*sys.modules)"
    ran = run_python(script)
    loaded = set(ran.stdout.splitlines()[-1].split())
    assert not loaded & MODULES
    assert not loaded & {"attrs", "grpc", "google.protobuf", "rich", "yaml", "hypothesis"}
    assert "click" in loaded


def test_importing_all_commands_loads_nothing_heavy() -> None:
    ran = run_python(f"import {', '.join(MODULES)}, sys; print(*sys.modules)")
    loaded = set(ran.stdout.split())
    assert not loaded & {"grpc", "google.protobuf", "rich", "yaml", "hypothesis"}
    assert loaded >= MODULES


def test_the_help_lists_each_command_as_the_command_describes_itself() -> None:
    assert list(COMMANDS) == sorted(COMMANDS)
    context = click.Context(tree)
    for name, (_, summary) in COMMANDS.items():
        command = tree.get_command(context, name)
        assert command is not None, name
        assert command.name == name
        assert command.get_short_help_str(65) == summary, name


def test_a_command_is_completed_with_its_subcommands_and_options() -> None:
    def completions(*words: str) -> set[str]:
        complete = ShellComplete(tree, {}, "devicecore", "_DEVICECORE_COMPLETE")
        return {item.value for item in complete.get_completions(list(words[:-1]), words[-1])}

    assert completions("") == {*COMMANDS, *FLEET}
    assert completions("plugin", "") == {"directory", "simulated"}
    assert "--checkpoint" in completions("doctor", "--c")


@pytest.mark.parametrize(
    "command",
    [
        "verify nowhere",
        pytest.param("show v1.13-two-pods.json", marks=pytest.mark.slow),
        pytest.param("show --json v1.13-two-pods.json", marks=pytest.mark.slow),
    ],
)
def test_a_reader_that_stops_reading_is_not_an_error(command: str) -> None:
    """If the output pipe is closed, the command ends silently, with the status of a program that SIGPIPE ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "devicecore_tools", "checkpoint", *command.split()],
        cwd=Path(__file__).parents[4] / "tests" / "data" / "checkpoint",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize(
    ("closed", "output"),
    [
        pytest.param("<&-", "malformed", marks=pytest.mark.slow),
        pytest.param(">&-", "", marks=pytest.mark.slow),
        ("<&- >&- 2>&-", ""),
    ],
)
def test_closed_streams_are_treated_as_empty(closed: str, output: str) -> None:
    """A closed input or output leads to an exit status, not to a traceback."""
    command = f"{shlex.quote(sys.executable)} -m devicecore_tools checkpoint verify - {closed}"
    ran = subprocess.run(["/bin/sh", "-c", command], input="", capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert output in ran.stdout


@pytest.mark.parametrize("command", ["verify", pytest.param("show", marks=pytest.mark.slow)])
def test_characters_that_a_locale_cannot_encode_are_escaped(devicecore: Run, tmp_path: Path, command: str) -> None:
    """Without UTF-8, such a character is printed as its number, and the rest of the answer as always."""
    blob = tmp_path / "\u4e2d"
    blob.write_bytes(encode(CheckpointData(None, {"a.com/x": ("\u4e2d",)})))
    ran = devicecore("checkpoint", command, str(blob), PYTHONIOENCODING="latin-1")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\\u4e2d" in ran.stdout


def test_an_interrupt_before_the_command_starts_ends_it_without_output() -> None:
    """Ctrl-C while the command is still being imported gives the status of the signal, and no traceback."""
    script = """
import sys
from devicecore_tools.command.main import explained_threads, main
from devicecore_tools.command.options import Place, Target

class Impatient:
    def find_spec(self, name, *_):
        if name == "devicecore_tools.command.commands":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Impatient())
sys.exit(main(["--help"]))
"""
    ran = run_python(script)
    assert (ran.returncode, ran.stdout, ran.stderr) == (128 + signal.SIGINT, "", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["checkpoint", "verify", ""],
        ["checkpoint", "show", ""],
        ["checkpoint", "diff", "a", ""],
        ["checkpoint", "repair", "a", ""],
        ["checkpoint", "convert", "--to", "2", "-o", "", "a"],
        ["doctor", "--checkpoint", ""],
        ["doctor", "--root", ""],
        ["doctor", "--html", ""],
        ["fits", ""],
        ["fits", "a", "--node", ""],
        ["why", "a", "--pod", ""],
        ["plugin", "simulated", "--resource", "a.example/b", "--socket-dir", ""],
        ["plugin", "directory", "--resource", "a.example/b", "--registry", "", "."],
        ["dra-driver", "simulated", "--name", "a.example", "--node", "n", "--plugin-dir", ""],
    ],
)
def test_an_empty_name_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A shell passes an empty string if a variable is not set."""
    assert main(arguments) == 2
    assert "expected the name of a file or directory, got an empty string." in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e308"])
@pytest.mark.parametrize(
    "arguments",
    [["doctor", "--patience"], ["kubelet", "--root", "/", "--once", "--wait"], ["conformance", "plugin", "--starting"]],
)
def test_an_endless_time_is_refused(arguments: list[str], seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, seconds]) == 2
    assert f"expected at most 1,000,000,000 seconds, got {seconds}." in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["plugin", "simulated"], ["dra-driver", "simulated"]])
def test_a_count_that_fills_the_memory_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--count", "1000001"]) == 2
    assert "1000001 is not in the range 0<=x<=1000000." in capsys.readouterr().err


def test_a_full_disk_for_output_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = open("/dev/full", "w")  # noqa: PTH123, SIM115 - closing it fails again
    monkeypatch.setattr(sys, "stdout", full)
    assert main(["--help"]) == 2
    assert capsys.readouterr().err == "devicecore: the output cannot be written: No space left on device\n"
    with suppress(OSError):
        full.close()


@pytest.mark.parametrize(
    "command",
    [
        "doctor --root {}",
        "doctor --checkpoint {}",
        "doctor --pods {}",
        "fits {}",
        "why {}",
        "why name --pods {}",
        "checkpoint verify {}",
        "checkpoint show {}",
        "checkpoint repair {} {}-new",
        "checkpoint convert --to 2 {}",
        "checkpoint diff {} {}",
    ],
)
def test_a_file_that_does_not_exist_has_the_same_status_in_each_command(command: str, tmp_path: Path) -> None:
    assert main(command.replace("{}", str(tmp_path / "missing")).split()) == 2


POD = """apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: a
    image: i
    resources:
      limits: {example.com/gpu: 1}
"""
NODE = "name: node-1\ndevices:\n- {resource: example.com/gpu, device: gpu-0}\n"


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (("resources:", "resource:"), "spec.containers[0].resource: there is no such field; expected 'resources'"),
        (("limits:", "limit:"), "spec.containers[0].resources.limit: there is no such field; expected 'limits'"),
        (("containers:", "container:"), "spec.container: there is no such field; expected 'containers'"),
        (("  containers:", "\tcontainers:"), "p.yaml:5: found character that cannot start any token: a tab indents"),
        (("metadata: {name: p}", "metadata:\n  name: p\n\tlabels: {}"), "YAML allows only spaces for indentation"),
        (
            ("image: i", "image: {{ .Values.image }}"),
            "expected a string as a key, got an object; {{ begins a placeholder",
        ),
        (
            ("apiVersion:", "{{- if .Values.on }}\napiVersion:"),
            "p.yaml:1: did not find expected node content; {{ begins",
        ),
        (
            ("image: i", "image: '{{ i }}': 1"),
            "needs quotes, or the indentation is wrong\n",
        ),
        (("image: i", "image: @i"), "p.yaml:7: found character that cannot start any token: put text that starts"),
        (("image: i", "image: i: 1"), "mapping values are not allowed in this context: a second colon on this line"),
        (("image: i", "image: 'i"), "a quote or a bracket is not closed"),
    ],
)
def test_a_mistake_in_a_manifest_gets_advice(
    devicecore: Run, tmp_path: Path, changed: tuple[str, str], sentence: str
) -> None:
    """Kubectl also refuses an unknown field: otherwise, the pod would request nothing, and fit."""
    (tmp_path / "p.yaml").write_text(POD.replace(*changed))
    (tmp_path / "node.yaml").write_text(NODE)
    ran = devicecore("fits", str(tmp_path / "p.yaml"), "--node", str(tmp_path / "node.yaml"))
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1)
    assert sentence in ran.stderr


@pytest.mark.parametrize("option", ["--pod", "--resource"])
def test_show_names_what_a_filter_does_not_find(devicecore: Run, option: str) -> None:
    file = "docs/nodes/two-owners/kubelet_internal_checkpoint"
    ran = devicecore("checkpoint", "show", file, option, "nosuch")
    assert f"{file} has no {option[2:]} nosuch. It has: " in ran.stderr


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MemoryError(), "the system gives this process no more memory"),
        (
            RuntimeError("can't start new thread"),
            "the system gives this process no more threads, or no memory for them",
        ),
    ],
)
def test_a_thread_that_runs_out_of_memory_says_so_in_a_sentence(
    error: Exception, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_short() -> None:
        raise error

    thread = threading.Thread(target=run_short, name="devicecore-example")
    with explained_threads():
        thread.start()
        thread.join()
    assert capsys.readouterr().err == f"devicecore: the thread devicecore-example ended: {sentence}\n"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_for_another_reason_shows_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda ended: seen.append(ended.exc_type))
    thread = threading.Thread(target=lambda: next(iter(())))
    with explained_threads():
        thread.start()
        thread.join()
    assert seen == [StopIteration]


def test_a_driver_with_a_name_that_no_claim_can_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dra-driver", "simulated", "--name", "GPU_Driver", "--node", "n"]) == 2
    said = "--name: expected a DNS name of at most 63 characters in lower case, got 'GPU_Driver'."
    assert said in capsys.readouterr().err


def test_a_configuration_is_not_taken_for_a_kubeconfig(capsys: pytest.CaptureFixture[str]) -> None:
    """Click would suggest --kubeconfig. Only a command that has options for a kubelet's settings mentions them."""
    assert main(["kubelet", "--config", "config.yaml"]) == 2
    assert "No such option '--config'. Write each setting of a kubelet as an option" in capsys.readouterr().err
    assert main(["nodes", "--config", "config.yaml"]) == 2
    assert "Write each setting" not in capsys.readouterr().err
