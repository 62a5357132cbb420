"""Where the API server is, and the credentials for it: from a kubeconfig, or from a pod's service account.

Laws: Every field that affects the server, the permissions or the encryption is used or refused. An error names the file
and the field. Reading sends nothing and runs no program.
"""

import base64
import os
import re
import ssl
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.request import getproxies, proxy_bypass

import httpx2
from attrs import field, frozen

from devicecore.domain.documents import Value
from devicecore.domain.errors import DeviceCoreError, DocumentError, SetUpError
from devicecore.domain.text import foreign_text
from devicecore.system.documents import MAX_DOCUMENT_SIZE, read_documents, text_of
from devicecore.system.files import read_file

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""The directory with a pod's token and its API server's CA certificate."""

EXEC_VERSIONS = tuple(f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1"))
"""The supported versions of the credential program protocol."""

_URL = re.compile(r"https?://([^/?#]+)", re.IGNORECASE)
_MAX_PORT = 65535


@frozen
class ApiAccessError(SetUpError):
    """The kubeconfig or the service account is missing or cannot be used."""

    source: str = field(converter=foreign_text)
    cause: str = field(converter=foreign_text)
    _text = "cannot use {source}: {cause}"


@frozen
class CredentialError(DeviceCoreError):
    """A token file or a credential program currently provides no credentials."""

    source: str = field(converter=foreign_text)
    problem: str = field(converter=foreign_text)
    _text = "{source}: {problem}"


@frozen
class Program:
    """A credential program, as a kubeconfig specifies it.

    Attributes:
        command: the program and its arguments.
        environment: the variables added to the environment of this process.
        version: the API version of the program's answer.
        cluster: the cluster information for the program, or None.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    version: str
    cluster: Mapping[str, object] | None


@frozen
class ApiConnection:
    """Everything that is needed to talk to an API server.

    Attributes:
        server: the API server's URL.
        tls: returns the TLS settings, with the client's certificate if there is one. Each call creates a new context.
        server_name: the name that the server's certificate must have, if this is not the name in the URL.
        proxy: the URL of an HTTP proxy, or None to connect directly.
        headers: the headers for every request, such as the user to act as.
        token: returns the current bearer token, or None if none is used.
        program: the credential program, or None if none is used.
    """

    server: str
    tls: Callable[[], ssl.SSLContext]
    server_name: str | None = None
    proxy: str | None = None
    headers: Mapping[str, str] = field(factory=dict)
    token: Callable[[], str] | None = field(default=None, repr=False)  # a secret
    program: Program | None = None


def load(
    kubeconfig: str | os.PathLike[str] | None, context: str | None, service_account: str | os.PathLike[str]
) -> ApiConnection:
    """Read how to reach the API server from the places that `Access` lists. Raises ApiAccessError."""
    account = Path(service_account)
    if kubeconfig is None and (account / "token").is_file():
        return _of_service_account(account)
    if kubeconfig is not None:
        files = [Path(kubeconfig).expanduser()]
    else:
        named = [Path(name) for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
        files = [file for file in named or [Path("~/.kube/config").expanduser()] if file.exists()]
        if not files:
            source = f"the service account in {str(account)!r}, $KUBECONFIG or ~/.kube/config"
            raise ApiAccessError(source, "none of these files exists")
    try:
        return _Kubeconfig(files).connection(context)
    except DocumentError as error:
        line = "" if error.line is None else f"line {error.line}: "
        where = f"{error.field}: " if error.field else ""
        source = f"kubeconfig {error.file!r}"
        raise ApiAccessError(source, f"{line}{where}{error.problem}") from error


def _of_service_account(directory: Path) -> ApiConnection:
    source = f"the service account in {str(directory)!r}"
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
    if not host or not port:
        raise ApiAccessError(source, "$KUBERNETES_SERVICE_HOST and $KUBERNETES_SERVICE_PORT are not both set")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    authority, token = directory / "ca.crt", directory / "token"

    def tls() -> ssl.SSLContext:
        return ssl.create_default_context(cafile=authority)

    try:
        tls()
    except OSError as error:
        raise ApiAccessError(source, f"{authority}: {error}") from error
    return ApiConnection(server, tls, proxy=_proxy_from_environment(server), token=lambda: _token_in(token))


class _Kubeconfig:
    """One or more kubeconfigs, merged as kubectl does: the first file that defines something has precedence."""

    def __init__(self, files: list[Path]) -> None:
        self._documents = [_read(file) for file in files]

    def connection(self, name: str | None) -> ApiConnection:
        """Return the connection for a context. Raises DocumentError if a field is missing or cannot be used."""
        context = self._context(name)
        cluster, user = self._named("clusters", "cluster", context["cluster"]), Value(None, context.file)
        if context["user"].data:
            user = self._named("users", "user", context["user"])
        server = cluster["server"].text()
        if not _is_url(server):
            cluster["server"].refuse("expected an http:// or https:// address")
        if user["auth-provider"].data is not None:
            user["auth-provider"].refuse("it is not supported; use exec, which replaced it in Kubernetes 1.26")
        return ApiConnection(
            server,
            _tls(cluster, user),
            server_name=cluster["tls-server-name"].text("") or None,
            proxy=_proxy(cluster, server),
            headers=_headers(user),
            token=_token(user),
            program=_program(user["exec"], cluster),
        )

    def _context(self, name: str | None) -> Value:
        first = self._documents[0]
        for document in self._documents:
            name = name or document["current-context"].text("")
        if not name:
            first["current-context"].refuse("it is missing; name a context, or set one: kubectl config use-context")
        return self._named("contexts", "context", Value(name, first, "current-context"))

    def _named(self, section: str, kind: str, name: Value) -> Value:
        for document in self._documents:
            for entry in document[section].sequence():
                if entry["name"].text() == name.text():
                    return entry[kind]
        return name.refuse(f"there is no {kind} {name.text()!r}")


def _read(file: Path) -> Value:
    try:
        data = read_file(file, MAX_DOCUMENT_SIZE, follow_links=True)
    except OSError as error:
        raise DocumentError(str(file), None, "", error.strerror or str(error)) from error
    documents = read_documents(text_of(data, str(file)), str(file))
    if len(documents) != 1:
        raise DocumentError(str(file), None, "", f"expected one document, got {len(documents)}")
    documents[0].mapping()  # anything else is refused
    return documents[0]


def _path(value: Value) -> Path | None:
    """Return the path in a field, or None if it is empty. Relative paths start at the kubeconfig's directory."""
    text = value.text("")
    return Path(value.file).parent / Path(text).expanduser() if text else None


def _tls(cluster: Value, user: Value) -> Callable[[], ssl.SSLContext]:
    """Return `ApiConnection.tls`. The kubeconfig's values are tried out here, so that errors name the field."""
    authority = _content(cluster, "certificate-authority")
    certificate, key = _content(user, "client-certificate"), _content(user, "client-key")
    is_insecure = cluster["insecure-skip-tls-verify"].boolean()
    is_plain = httpx2.URL(cluster["server"].text()).scheme == "http"

    def context() -> ssl.SSLContext:
        if is_plain:  # without TLS, do not read the machine's certificate authorities, which takes 30 ms
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made = ssl.create_default_context(cadata=authority.decode("ascii") if authority else None)
        if is_insecure:
            made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
        if certificate:
            add_certificate(made, certificate, key or b"")
        return made

    try:
        if authority:
            ssl.create_default_context(cadata=authority.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
        cluster["certificate-authority"].refuse(f"expected certificates in PEM format: {error}", error)
    if bool(certificate) != bool(key):
        user["client-certificate"].refuse("expected a client-certificate and a client-key, got only one of them")
    try:
        if certificate:
            add_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate, key or b"")
    except (ssl.SSLError, ValueError) as error:
        user["client-certificate"].refuse(f"expected a certificate and its key in PEM format: {error}", error)
    return context


def add_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Make a client present this certificate, in PEM format.

    Raises ssl.SSLError if the arguments are not a certificate and its key.
    """
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # the ssl module reads certificates only from files
        file.write(certificate + b"\n" + key)
        file.flush()
        context.load_cert_chain(file.name, password=lambda: b"")  # prevents a prompt by OpenSSL on the terminal


def _content(value: Value, name: str) -> bytes | None:
    """Return the contents of a field such as `client-key-data`, or of the file that `client-key` names."""
    data, file = value[f"{name}-data"], value[name]
    if text := data.text(""):
        try:
            return base64.b64decode(text, validate=True)
        except ValueError as error:  # also raised for characters that are not ASCII
            data.refuse(f"expected base64: {error}", error)
    path = _path(file)
    if path is None:
        return None
    try:
        return read_file(path, MAX_DOCUMENT_SIZE, follow_links=True)
    except OSError as error:
        file.refuse(f"{path}: {error.strerror or error}", error)


def _is_url(text: str) -> bool:
    try:
        url = httpx2.URL(text)
        return bool(_URL.match(text)) and bool(url.host) and (url.port is None or 0 < url.port <= _MAX_PORT)
    except httpx2.InvalidURL:
        return False


def _proxy(cluster: Value, server: str) -> str | None:
    proxy = cluster["proxy-url"].text("")
    if not proxy:
        return _proxy_from_environment(server)
    if not _is_url(proxy):
        cluster["proxy-url"].refuse("expected an http:// or https:// address; other proxies are not supported")
    return proxy


def _proxy_from_environment(server: str) -> str | None:
    scheme, _, rest = server.partition("://")
    if proxy_bypass(rest.partition("/")[0]):
        return None
    proxy = getproxies().get(scheme.lower())
    return proxy if proxy and _is_url(proxy) else None


def _headers(user: Value) -> dict[str, str]:
    """Return the headers for every request: a password, and the user to act as."""
    headers = {}
    if name := user["username"].text(""):
        password = f"{name}:{user['password'].text('')}".encode()
        headers["Authorization"] = "Basic " + base64.b64encode(password).decode()
    impersonated = {"Impersonate-User": user["as"], "Impersonate-Uid": user["as-uid"]}
    headers |= {header: _header(value) for header, value in impersonated.items() if value.data}
    for field_name in ("as-groups", "as-user-extra"):
        # Impersonation repeats a header for each group and each value of an extra key; a dict has each header once.
        if user[field_name].data:
            user[field_name].refuse("it is not supported; use `as` alone")
    if "Impersonate-Uid" in headers and "Impersonate-User" not in headers:
        user["as-uid"].refuse("expected `as` next to it")
    return headers


def _header(value: Value) -> str:
    text = value.text("")
    if not text.isascii() or not text.isprintable():
        value.refuse("expected printable ASCII characters")
    return text


def _token(user: Value) -> Callable[[], str] | None:
    if (path := _path(user["tokenFile"])) is not None:
        return lambda: _token_in(path)
    token = _header(user["token"])
    return (lambda: token) if token else None


def _token_in(path: Path) -> str:
    source = f"token file {str(path)!r}"
    try:
        token = read_file(path, MAX_DOCUMENT_SIZE, follow_links=True).decode().strip()
    except OSError as error:
        raise CredentialError(source, error.strerror or str(error)) from error
    except UnicodeDecodeError:
        token = ""
    if not token or not token.isascii() or not token.isprintable():
        raise CredentialError(source, "expected a token of printable ASCII characters")
    return token


def _program(value: Value, cluster: Value) -> Program | None:
    if value.data is None:
        return None
    version = value["apiVersion"].text()
    if version not in EXEC_VERSIONS:
        value["apiVersion"].refuse(f"expected one of {', '.join(EXEC_VERSIONS)}, got {version!r}")
    if value["interactiveMode"].text("IfAvailable") == "Always":
        value["interactiveMode"].refuse("a program that needs a terminal cannot be used")
    command = value["command"].text()
    if "/" in command:  # as in kubectl, a path is relative to the kubeconfig, and a name is looked up in $PATH
        command = str(Path(value.file).parent.absolute() / command)
    return Program(
        (command, *(argument.text("") for argument in value["args"].sequence())),
        {variable["name"].text(): variable["value"].text("") for variable in value["env"].sequence()},
        version,
        _described(cluster) if value["provideClusterInfo"].boolean() else None,
    )


def _described(cluster: Value) -> dict[str, object]:
    """Return the cluster information for a program (client-go: `clientauthentication.Cluster`)."""
    authority = _content(cluster, "certificate-authority")
    extensions = {
        extension["name"].text(): extension["extension"].data for extension in cluster["extensions"].sequence()
    }
    described = {
        **{name: cluster[name].data for name in ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")},
        "certificate-authority-data": base64.b64encode(authority).decode() if authority else None,
        "config": extensions.get("client.authentication.k8s.io/exec"),
    }
    return {name: value for name, value in described.items() if value is not None}
