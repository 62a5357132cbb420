"""The entry point of the command, which turns every error into one sentence and an exit status.

Law: exit status 0 means success, 1 a negative finding, 2 wrong usage or something missing or unusable, 3 that the
readable sources are not enough to decide, and 4 that only a bug in Kubernetes prevents success. After a signal, the
exit status is 128 plus the signal's number. Commands return the exit status or raise an error.
"""

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from devicecore_tools.command.output import complain

if TYPE_CHECKING:
    import click

UNUSABLE = 2
_NO_THREAD = "can't start new thread"
_EXTRAS = {  # the extra that installs a library, by import name; libraries without an extra are always installed
    "click": "",
    "grpc": "",  # missing only in devicecore.pyz
    "rich": "",
    "yaml": "",
    "httpcore2": "[kubernetes]",
    "httpx2": "[kubernetes]",
    "prometheus_client": "[prometheus]",
}


_WORDS_OF_CLICK = {
    "is not a valid integer range": "is not a whole number",
    "is not a valid float range": "is not a number",
}
_OPTIONS_OF_OTHERS = {  # names that other programs, such as kubectl, use for our options
    "-o": "--json",
    "--output": "--json",
    "--format": "--json",
    "-v": "--version",
    "-V": "--version",
    "-w": "--watch",
    "--selector": "--node-selector",
}
_ADVICE = {  # what to write instead of an option of kubectl; without a command, for every command with arguments
    "-f": "Write the name of the file without -f.",
    "--filename": "Write the name of the file without --filename.",
    "devicecore why -n": "Write NAMESPACE/NAME.",
    "devicecore why --namespace": "Write NAMESPACE/NAME.",
    "devicecore nodes --node": "Write --node-selector kubernetes.io/hostname=NAME.",
    "devicecore nodes --node-name": "Write --node-selector kubernetes.io/hostname=NAME.",
    "devicecore nodes -A": "All namespaces are read.",
    "devicecore nodes --all-namespaces": "All namespaces are read.",
    "devicecore fits --kubeconfig": "To try the nodes of a cluster, run: kubectl devicecore fits POD",
}


_OF_CONFIGURATION = "--topology-manager-policy"
_NO_CONFIGURATION = f"Write each setting of a kubelet as an option, such as {_OF_CONFIGURATION} restricted."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `devicecore` with `arguments`, by default those of the process, and return the exit status."""
    _prepare_streams()
    called = ["devicecore"]  # `Group` appends the names of the commands
    try:
        with explained_threads():
            status = _run(arguments, called)
        sys.stdout.flush()  # output is flushed here, where an error can still be turned into a sentence
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS:
            raise
        extra = _EXTRAS[missing]
        needed = f"the extra `{extra[1:-1]}`" if extra else missing
        needed += ", which devicecore.pyz does not contain" * (missing == "grpc")
        ways = f"in a clone, pip install . './packages/tools{extra}'; elsewhere, pip install 'devicecore-tools{extra}'"
        complain(" ".join(called), f"the command needs {needed}: {ways}")
    except BrokenPipeError:
        # The reader of our output has closed it. Without this, Python would report the same error again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:  # Ctrl-C during the import of commands; later, click or the command handles it
        return 128 + signal.SIGINT
    except Exception as error:
        sentence = _sentence_of(error)
        if sentence is None:
            raise  # any other error is a bug, and its traceback helps to find it
        complain(" ".join(called), sentence)
    else:
        return status
    return UNUSABLE


@contextmanager
def explained_threads() -> Iterator[None]:
    """If a thread ends for lack of memory or threads, report that in a sentence instead of a traceback."""
    before = threading.excepthook

    def report(ended: threading.ExceptHookArgs) -> None:
        error, thread = ended.exc_value, ended.thread
        if isinstance(error, MemoryError) or str(error) == _NO_THREAD:
            name = thread.name if thread is not None else "without a name"
            complain("devicecore", f"the thread {name} ended: {_sentence_of(error or MemoryError())}")
        else:
            before(ended)

    threading.excepthook = report
    try:
        yield
    finally:
        threading.excepthook = before


def _sentence_of(error: BaseException) -> str | None:
    """Return the message for an error, or None if the error is a bug."""
    from devicecore.domain.errors import DeviceCoreError
    from devicecore.domain.text import foreign_text

    if isinstance(error, MemoryError):
        return "the system gives this process no more memory"
    if str(error) == _NO_THREAD:
        return "the system gives this process no more threads, or no memory for them"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{foreign_text(str(error.filename))}: {error.strerror}"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"the output cannot be written: {error.strerror}"
    return str(error) if isinstance(error, OSError | DeviceCoreError) else None


def _prepare_streams() -> None:
    """Make sure that input and output exist, and that any text can be written in any locale."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # the caller has closed the stream
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - until we end
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(arguments: Sequence[str] | None, called: list[str]) -> int:
    import click

    from devicecore_tools.command.commands import devicecore

    try:
        status: int | None = devicecore.main(arguments, prog_name="devicecore", standalone_mode=False, obj=called)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return UNUSABLE
    except SystemExit as error:
        if error.code == 1:  # click and rich exit like this if a command's output is closed
            raise BrokenPipeError from error
        raise
    except click.Abort:
        return 128 + signal.SIGINT
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        text = error.format_message().replace("\n\t", " ")  # click lists choices on separate lines
        for odd, plain in _WORDS_OF_CLICK.items():
            text = text.replace(odd, plain)
        is_missing = isinstance(error, click.MissingParameter) and isinstance(error.param, click.Argument)
        if context is not None and (is_missing or "unexpected extra argument" in text):
            text = text if text.endswith(".") else f"{text}."
            usage = " ".join((context.command_path, *context.command.collect_usage_pieces(context)))
            text += f" Expected: {usage} (for examples, run: {context.command_path} --help)"
        if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Option) and error.param.help:
            text = f"{text.removesuffix('.')}. {error.param.help}"
        if isinstance(error, click.NoSuchOption) and context is not None:
            text = _about_missing(error, context, text)
        complain(context.command_path if context else " ".join(called), text)
        return UNUSABLE
    return status or 0


def _about_missing(error: "click.NoSuchOption", context: "click.Context", text: str) -> str:
    """Return click's text about an option that a command does not have, with advice."""
    import click

    options = {one for parameter in context.command.get_params(context) for one in parameter.opts}
    if error.option_name == "--config" and _OF_CONFIGURATION in options:  # click would suggest --kubeconfig
        return f"No such option '--config'. {_NO_CONFIGURATION}"
    if isinstance(context.command, click.Group):
        commands = {name: context.command.get_command(context, name) for name in context.command.list_commands(context)}
        after = [name for name, one in commands.items() if one and any(error.option_name in p.opts for p in one.params)]
        if after:
            meant = f"{context.command_path} {after[-1]} {error.option_name}"
            return f"{error.option_name} belongs after the command: {meant}"
    advice = _ADVICE.get(f"{context.command_path} {error.option_name}", "")
    if not advice and any(isinstance(one, click.Argument) for one in context.command.params):
        advice = _ADVICE.get(error.option_name, "")
    if advice:
        return f"No such option {error.option_name!r}. {advice}"
    if error.possibilities:
        return text
    meant = _OPTIONS_OF_OTHERS.get(error.option_name, "")
    hint = f"Write {meant} instead." if meant in options else f"To list the options, run: {context.command_path} --help"
    return f"{text} {hint}"
