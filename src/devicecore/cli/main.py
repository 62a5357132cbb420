"""Where the command begins, and where every error of it ends as one sentence.

Law: exit status 0 is good, 1 a negative finding, 2 wrong usage or something that cannot be used; 128 and the signal's
number after a signal. Commands return it, or raise.
"""

import io
import os
import signal
import sys
from collections.abc import Sequence

from devicecore.cli.output import complain

UNUSABLE = 2
_EXTRAS = {  # what installs it, by the name under which it is imported
    "click": "cli",
    "rich": "cli",
    "yaml": "cli",
    "lightkube": "kubernetes",
    "httpx2": "kubernetes",
    "prometheus_client": "prometheus",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `devicecore` with `arguments`, those of the process if None, and give its exit status."""
    _prepare_streams()
    try:
        status = _run(arguments)
        sys.stdout.flush()  # while somebody is here to be told that it cannot be
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS:
            raise
        complain("devicecore", f"the command needs {missing}: run pip install 'devicecore[{_EXTRAS[missing]}]'")
    except BrokenPipeError:
        # Whoever read our output has seen enough. Python would complain of it once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:  # while commands are imported; later, it is click's or the command's business
        return 128 + signal.SIGINT
    except OSError as error:
        complain("devicecore", str(error))
    except Exception as error:
        from devicecore.domain.errors import DeviceCoreError

        if not isinstance(error, DeviceCoreError):
            raise  # a bug: its traceback is wanted
        complain("devicecore", str(error))
    else:
        return status
    return UNUSABLE


def _prepare_streams() -> None:
    """See to it that there is input and output, and that any text can be written, whatever the locale."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # closed by who called us: nothing to read, or nobody to read it
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - until we end
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(arguments: Sequence[str] | None) -> int:
    import click

    from devicecore.cli.commands import devicecore

    try:
        status: int | None = devicecore.main(arguments, prog_name="devicecore", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return UNUSABLE
    except SystemExit as error:
        if error.code == 1:  # how click and rich end a command whose output nobody reads
            raise BrokenPipeError from error
        raise
    except click.Abort:
        return 128 + signal.SIGINT
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        complain(context.command_path if context else "devicecore", error.format_message())
        return UNUSABLE
    return status or 0
