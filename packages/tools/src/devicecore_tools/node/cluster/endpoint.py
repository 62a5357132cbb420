"""The server at the address of a Node, where a kubelet has the logs of containers: here there are none.

Law: every request is refused with one sentence. A client gets at most `PATIENCE` seconds and `MAX_HEAD` bytes. All
clients together get `MAX_CONNECTIONS` connections and one thread.
"""

import asyncio
import json
import logging
import os
import socket
import ssl
import threading
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from io import FileIO
from ipaddress import ip_address
from urllib.parse import unquote

from attrs import evolve, frozen

from devicecore.domain.text import foreign_text
from devicecore.runtime.lifecycle import HasLifecycle, Lifecycle
from devicecore_tools.node.cluster.words.nodes import NodeDescription

PATIENCE = 5.0
"""Seconds for a client to connect, send the head of its request and take the answer."""

MAX_HEAD = 16 * 1024
"""Bytes of the line and the headers of a request."""

MAX_CONNECTIONS = 64
"""Connections at once. Further clients wait."""

_PAUSE = 0.5  # seconds after a failed accept, as if there are no more descriptors
_FAR = ((socket.AF_INET, "203.0.113.1"), (socket.AF_INET6, "2001:db8::1"))  # addresses of documentation
_STREAMS = {
    "exec": "nothing can be executed in it",
    "run": "nothing can be executed in it",
    "attach": "there is nothing to attach to",
    "portForward": "no port is open",
}

_log = logging.getLogger(__name__)


@frozen
class Endpoint:
    """Where the API server finds the server of a node.

    Attributes:
        address: the InternalIP of the Node; None if it has none.
        port: where the server listens; 0 if there is no server.
    """

    address: str | None = None
    port: int = 0

    @property
    def host_ips(self) -> tuple[str, ...]:
        """The addresses that the status of a pod shows."""
        return () if self.address is None else (self.address,)

    def described(self, node: NodeDescription, *, is_machine: bool = False) -> NodeDescription:
        """Return a description of a Node that has this endpoint.

        By default kube-apiserver connects to the hostname of a Node. Only that of a machine leads to its address.
        """
        hostname = self.address if self.address and self.port and not is_machine else node.name
        internal = [("InternalIP", address) for address in self.host_ips]
        return evolve(node, addresses=(*internal, ("Hostname", hostname)), port=self.port)


def listen(address: str | None, port: int, last_to_first: ExitStack) -> Endpoint:
    """Start a server if this machine has an address. Otherwise, log why there is none."""
    address = address or own_address()
    if address is None:
        _log.warning("kubectl logs will not say why there are none: no address of this machine is known (--node-ip)")
        return Endpoint()
    server = RefusalServer(address, port)
    try:
        last_to_first.enter_context(server)
    except OSError as error:
        text = "kubectl logs will not say why there are none: cannot listen at %s, port %d (--node-ip, --port): %s"
        _log.warning(text, address, port, error.strerror or error)
        return Endpoint(address)
    return Endpoint(address, server.port)


def own_address() -> str | None:
    """Return the address of this machine on its default route, which a kubelet takes, too. Return None without one."""
    for family, far in _FAR:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))  # of UDP, so nothing is sent
            return str(probe.getsockname()[0])
    return None


class RefusalServer(HasLifecycle):
    """Refuses what the API server asks a kubelet. The start raises OSError if the address cannot be bound.

    Its certificate is self-signed, like that of a kubelet, and is made at each start.

    Args:
        address: an IP address of this machine.
        port: 0 for a free one.
    """

    def __init__(self, address: str, port: int = 0) -> None:
        self._address = address
        self._port = port
        self._pem: FileIO | None = None
        self._listening: socket.socket | None = None
        self._runner: asyncio.Runner | None = None
        self._stopping = asyncio.Event()
        self._thread: threading.Thread | None = None
        self._lifecycle = Lifecycle("the server that refuses kubectl logs")

    @property
    def port(self) -> int:
        """The port that it listens on, or last listened on."""
        return self._port

    def _begin(self) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # The key is on no disk. `map` makes both calls, so no interrupt comes between them and loses the descriptor.
        self._pem = next(map(partial(FileIO, mode="wb"), map(os.memfd_create, ["devicecore"])))
        self._pem.write(_key_and_certificate(self._address))
        context.load_cert_chain(f"/proc/self/fd/{self._pem.fileno()}")
        self._pem.close()
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        self._listening = socket.create_server((self._address, self._port), family=family)
        self._listening.settimeout(0.0)  # asyncio waits in its place
        self._port = int(self._listening.getsockname()[1])
        self._stopping = asyncio.Event()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._runner.get_loop()
        parts = (self._runner, self._listening, context)
        self._thread = threading.Thread(target=self._run, args=parts, name="devicecore-refusals", daemon=True)
        self._thread.start()

    def _end(self) -> None:
        if self._pem is not None:
            self._pem.close()
        if self._runner is not None and self._thread is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # the thread has ended just now
                self._runner.get_loop().call_soon_threadsafe(self._stopping.set)
            self._thread.join()
        if self._runner is not None:
            self._runner.close()
        if self._listening is not None:
            self._listening.close()

    def _run(self, runner: asyncio.Runner, listening: socket.socket, context: ssl.SSLContext) -> None:
        with runner:  # at its end it cancels what still goes on
            runner.run(self._serve(listening, context))

    async def _serve(self, listening: socket.socket, context: ssl.SSLContext) -> None:
        accepting = asyncio.create_task(_accept(listening, context))
        await self._stopping.wait()
        accepting.cancel()


async def _accept(listening: socket.socket, context: ssl.SSLContext) -> None:
    """Answer each connection in a task. This ends when it is cancelled."""
    places, answers = asyncio.Semaphore(MAX_CONNECTIONS), set[asyncio.Task[None]]()

    def ended(task: asyncio.Task[None]) -> None:
        answers.discard(task)
        places.release()

    while True:
        await places.acquire()
        try:
            connection, _ = await asyncio.get_running_loop().sock_accept(listening)
        except OSError:
            places.release()
            await asyncio.sleep(_PAUSE)
            continue
        task = asyncio.create_task(_answer(connection, context))
        answers.add(task)  # the loop itself does not keep it
        task.add_done_callback(ended)


async def _answer(connection: socket.socket, context: ssl.SSLContext) -> None:
    """Answer one request, and close the connection."""
    reader, loop = asyncio.StreamReader(MAX_HEAD), asyncio.get_running_loop()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport: asyncio.Transport | None = None
    with suppress(OSError, EOFError, asyncio.LimitOverrunError):  # which end this connection and nothing else
        try:
            async with asyncio.timeout(PATIENCE):
                transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=context)
                writer = asyncio.StreamWriter(transport, protocol, reader, loop)
                writer.write(answer(await reader.readuntil(b"\r\n\r\n")))
                writer.close()
                await writer.wait_closed()
        finally:
            if transport is not None:
                transport.abort()


def answer(head: bytes) -> bytes:
    """Return the answer to the head of a request, in the form in which kube-apiserver shows it to the user.

    It shows the text of a Bad Request for logs as it is. For connections, which are upgraded, it looks for a Status.
    """
    target = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")[1:2]
    parts = [unquote(part) for part in "".join(target).partition("?")[0].split("/")[1:]]
    match parts:
        case ["containerLogs" | "exec" | "run" | "attach" | "portForward" as kind, namespace, pod, *_]:
            pod, why = foreign_text(f"{namespace}/{pod}", 400), _STREAMS.get(kind, "there are no logs")
            text = f"pod {pod} is on a node that devicecore simulates: no container runs, so {why}"
            code = HTTPStatus.BAD_REQUEST
        case _:
            path = foreign_text("/".join(parts), 200)
            code, text = HTTPStatus.NOT_FOUND, f"devicecore simulates the nodes at this address, and has no /{path}"
    body, content = text, "text/plain; charset=utf-8"
    if parts[:1] and parts[0] in _STREAMS:
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": text}
        body, content = json.dumps({**status, "reason": "BadRequest", "code": code}), "application/json"
    headers = f"Content-Type: {content}\r\nContent-Length: {len(body.encode())}\r\nConnection: close"
    return f"HTTP/1.1 {code.value} {code.phrase}\r\n{headers}\r\n\r\n{body}".encode()


def _key_and_certificate(address: str) -> bytes:
    """Return a new key and its self-signed certificate, in PEM."""
    from cryptography import x509  # loading it takes time
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "devicecore")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=365))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem + certificate.public_bytes(Encoding.PEM)
