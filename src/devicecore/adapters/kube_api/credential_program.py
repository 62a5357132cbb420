"""Runs a credential program (`exec` in a kubeconfig).

Law: The program always ends: it exits by itself, or is killed because it took too long, printed too much or is no
longer needed.
"""

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from attrs import field, frozen

from devicecore.adapters.kube_api.client_config import CredentialError, Program
from devicecore.system.environment import inherited_environment

_MAX_OUTPUT = 1024 * 1024  # bytes
_INTERVAL = 0.2  # seconds between two checks of whether the program is still needed


@frozen
class Credentials:
    """A program's credentials: a token, a certificate with its key in PEM format, or both."""

    token: str | None = field(default=None, repr=False)
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


def run(program: Program, timeout: float, is_stopped: Callable[[], bool]) -> Credentials:
    """Run a program and read its output. Raises CredentialError if the program fails or returns no credentials.

    The program is killed after `timeout` seconds, or as soon as `is_stopped` says that its answer is no longer needed.
    """
    name = f"exec program {program.command[0]!r}"
    spec: dict[str, object] = {"interactive": False}
    if program.cluster is not None:
        spec["cluster"] = program.cluster
    info = json.dumps({"apiVersion": program.version, "kind": "ExecCredential", "spec": spec})
    environment = {**inherited_environment(), **program.environment, "KUBERNETES_EXEC_INFO": info}
    try:
        process = subprocess.Popen(  # noqa: S603 - the kubeconfig says so
            program.command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # the program is killed together with the programs it started
        )
    except (OSError, ValueError) as error:
        raise CredentialError(name, f"cannot be run: {getattr(error, 'strerror', None) or error}") from error
    with process:
        try:
            output, errors = _output(process, name, time.monotonic() + timeout, is_stopped)
            process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise CredentialError(name, f"did not end within {timeout:g} s and was killed") from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        said = " ".join(errors.decode(errors="replace").split()) or "it printed no reason"
        raise CredentialError(name, f"ended with status {process.returncode}: {said}")
    return _parse(output, name)


def _output(
    process: subprocess.Popen[bytes], name: str, deadline: float, is_stopped: Callable[[], bool]
) -> tuple[bytes, bytes]:
    """Return what the program prints to its standard output and its standard error.

    Reading ends when the process has closed both streams, or has exited and its children print nothing.
    """
    printed: dict[IO[bytes] | None, bytes] = {process.stdout: b"", process.stderr: b""}
    with selectors.DefaultSelector() as selector:
        for stream in printed:
            selector.register(stream, selectors.EVENT_READ)  # type: ignore[arg-type]  # both are pipes
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(process.args, deadline)
            if is_stopped():
                raise CredentialError(name, "was killed because it was no longer needed")
            has_ended = process.poll() is not None  # checked before reading, so that the program's last output is read
            ready = selector.select(min(left, _INTERVAL))
            if has_ended and not ready:
                break  # a process that the program left running, such as an agent, keeps the streams open
            for key, _ in ready:
                data = os.read(key.fd, _MAX_OUTPUT)
                printed[key.fileobj] += data  # type: ignore[index]  # only these were registered
                if not data:
                    selector.unregister(key.fileobj)
                if len(printed[key.fileobj]) > _MAX_OUTPUT:  # type: ignore[index]  # as above
                    raise CredentialError(name, f"printed more than {_MAX_OUTPUT} bytes and was killed")
    return printed[process.stdout], printed[process.stderr]


def _parse(output: bytes, name: str) -> Credentials:
    try:
        status = json.loads(output)["status"]
        parts = [status.get(part) for part in ("token", "clientCertificateData", "clientKeyData")]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CredentialError(
            name, f"expected an ExecCredential with a status, but reading it raised {reason}"
        ) from error
    if not all(part is None or (isinstance(part, str) and part.isascii()) for part in parts):
        raise CredentialError(name, "expected credentials that are ASCII strings")
    token, certificate, key = parts
    if token and not token.isprintable():
        raise CredentialError(name, "expected a token of printable characters")
    if not token and not (certificate and key):
        raise CredentialError(name, "expected a token, or a certificate with its key, got neither")
    return Credentials(token, certificate and certificate.encode(), key and key.encode())
