"""A real control plane on free loopback ports: etcd, API server, scheduler and controller manager.

Law: after `stop`, none of its processes remain, and no files outside `keep`, even if the start failed.
"""

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

import httpx2
from attrs import define, field

from tests.real_cluster.certificates import Authority, Pair
from tests.real_cluster.client import Client, RefusedError
from tests.real_cluster.programs import Program, Programs, free_port, wait_for

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager")
"""The control plane's parts, in the order in which they start."""

_FIRST_START = 120.0  # seconds; a start is slow on two busy cores


def say(text: str) -> None:
    """Print the time and a line about progress to standard error."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


@define
class ControlPlane:
    """A control plane that runs from `start` to `stop`, or in a `with` statement.

    `etcd`, `api_server` and `controller_manager` can each be stopped, killed, paused and started again.

    Attributes:
        programs: the programs that were built for one version of Kubernetes.
        arguments: further arguments, by program name, such as `{"kube-apiserver": ["--v=4"]}`.
        parts: the names of the programs to run; without scheduler and controller manager, only clients change objects.
        keep: a directory to use and keep, instead of a temporary one.
    """

    programs: Programs = field(factory=Programs.built)
    arguments: Mapping[str, Sequence[str]] = field(factory=dict)
    parts: tuple[str, ...] = CONTROL_PLANE
    keep: Path | None = None
    _parts: dict[str, Program] = field(factory=dict, init=False)
    _last_to_first: ExitStack = field(factory=ExitStack, init=False)
    _authority: Authority | None = field(default=None, init=False)
    _directory: Path = field(factory=Path, init=False)
    _port: int = field(default=0, init=False)
    _etcd_url: str = field(default="", init=False)
    _admin: Client | None = field(default=None, init=False)
    _pairs: dict[tuple[str, tuple[str, ...]], Pair] = field(factory=dict, init=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def directory(self) -> Path:
        """The directory with all files: certificates, kubeconfigs, data and logs."""
        return self._directory

    @property
    def authority(self) -> Authority:
        """The cluster's certificate authority."""
        assert self._authority is not None, "the authority is created when the control plane starts"
        return self._authority

    @property
    def url(self) -> str:
        """The API server's URL."""
        return f"https://127.0.0.1:{self._port}"

    @property
    def etcd(self) -> Program:
        """The etcd process."""
        return self._parts["etcd"]

    @property
    def api_server(self) -> Program:
        """The kube-apiserver process."""
        return self._parts["kube-apiserver"]

    @property
    def controller_manager(self) -> Program:
        """The kube-controller-manager process."""
        return self._parts["kube-controller-manager"]

    @property
    def admin(self) -> Client:
        """A client that has all permissions."""
        if self._admin is None:
            self._admin = self.client("admin", ("system:masters",))
        return self._admin

    def start(self) -> None:
        """Start all parts, and wait until the API server is ready. Raises RealClusterError if something is missing."""
        if self._parts:
            return
        self.programs.check(self.parts)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all parts and remove their files."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        self._last_to_first.close()
        self._parts, self._pairs = {}, {}

    def wait_until_ready(self, timeout: float = _FIRST_START) -> None:
        """Wait until the API server is ready, for example after a restart.

        Raises RealClusterError after `timeout` seconds.
        """
        self.api_server.wait_for("the API server to be ready", self._is_ready, timeout)

    def pair(self, user: str, groups: tuple[str, ...] = ()) -> Pair:
        """Return a certificate and its key for a user in groups.

        The certificate is issued only once, because programs may read the files at any time.
        """
        if (known := self._pairs.get((user, groups))) is None:
            known = self._pairs[user, groups] = self.authority.issue(user.replace(":", "-"), user, groups)
        return known

    def client(self, user: str, groups: tuple[str, ...] = ()) -> Client:
        """Return a client with the identity of a user in groups. The caller must close the client."""
        return Client.of(self.url, str(self.authority.certificate), self.pair(user, groups))

    def kubeconfig(self, user: str = "admin", groups: tuple[str, ...] = ("system:masters",)) -> Path:
        """Write a kubeconfig for a user in groups, and return its path. By default, the user has all permissions."""
        pair = self.pair(user, groups)
        return self._kubeconfig(
            user, {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}, self.url
        )

    def node_kubeconfig(self, name: str) -> Path:
        """Write a kubeconfig with the identity of a node, and return its path."""
        return self.kubeconfig(f"system:node:{name}", ("system:nodes",))

    def service_account_kubeconfig(self, name: str, *rules: object, namespace: str = "default") -> Path:
        """Create a service account with the permissions `rules`, and return the path of its kubeconfig."""
        account, role = {"name": name, "namespace": namespace}, {"name": f"{namespace}-{name}"}
        _made(self.admin, {"kind": "ServiceAccount", "metadata": account})
        if rules:
            _made(self.admin, {"kind": "ClusterRole", "metadata": role, "rules": list(rules)})
            refers = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", **role}
            binding = {"metadata": role, "roleRef": refers, "subjects": [{"kind": "ServiceAccount", **account}]}
            _made(self.admin, {"kind": "ClusterRoleBinding", **binding})
        where = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 86400},
        }
        token = self.admin.send("POST", where, request)["status"]["token"]
        return self._kubeconfig(f"sa-{namespace}-{name}", {"token": token}, self.url)

    def _start(self) -> None:
        began = time.monotonic()
        if self.keep is None:
            temporary = tempfile.TemporaryDirectory(prefix="devicecore-cluster-", ignore_cleanup_errors=True)
            self._directory = Path(self._last_to_first.enter_context(temporary))
        else:
            self._directory = self.keep.resolve()
        self._authority = Authority.new(self._directory / "pki")
        self._port = free_port()
        say(f"starting etcd, API server, scheduler and controller manager in {self._directory}")
        ways = (self._etcd, self._api_server, self._scheduler, self._controller_manager)
        for name, words in zip(CONTROL_PLANE, ways, strict=True):
            if name not in self.parts:
                continue
            command = [self.programs.path(name), *words(), *self.arguments.get(name, ())]
            self._parts[name] = part = Program(name, command, self._directory)
            self._last_to_first.callback(part.stop)
            part.start()
            if name == "kube-apiserver":
                self.wait_until_ready()  # the controller manager exits if it has no permission to read yet
        wait_for("the namespace default", partial(self.admin.get, "Namespace", "default"), _FIRST_START)
        if "kube-controller-manager" in self.parts:
            look = partial(self.admin.get, "ServiceAccount", "default")
            self.controller_manager.wait_for("the default ServiceAccount", look, _FIRST_START)
        version = self.admin.send("GET", "/version")["gitVersion"]
        say(f"Kubernetes {version} at {self.url} is ready after {time.monotonic() - began:.0f} s")

    def _is_ready(self) -> bool:
        return self.admin.raw("GET", "/readyz").status_code == httpx2.codes.OK

    def _etcd(self) -> list[str]:
        client, peer = free_port(), free_port()
        self._etcd_url = f"http://127.0.0.1:{client}"
        return [
            f"--data-dir={self._directory / 'etcd'}",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync",  # the data does not have to survive a crash of the machine
            "--logger=zap",
            "--log-level=warn",
        ]

    def _api_server(self) -> list[str]:
        hosts = ("127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.96.0.1")
        serving = self.authority.issue("apiserver", "kube-apiserver", hosts=hosts)
        kubelet = self.authority.issue("apiserver-kubelet-client", "kube-apiserver-kubelet-client", ("system:masters",))
        tokens = self._tokens()
        return [
            f"--etcd-servers={self._etcd_url}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            "--endpoint-reconciler-type=none",  # a Service must not have a loopback address
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self.authority.certificate}",
            f"--kubelet-client-certificate={kubelet.certificate}",
            f"--kubelet-client-key={kubelet.key}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={tokens.certificate}",
            f"--service-account-signing-key-file={tokens.key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--allow-privileged=true",
        ]

    def _tokens(self) -> Pair:
        pair = Pair(self.authority.directory / "sa.crt", self.authority.directory / "sa.key")
        return pair if pair.key.exists() else self.authority.key_pair("sa")

    def _scheduler(self) -> list[str]:
        config = self.kubeconfig("system:kube-scheduler", ())
        return [
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
            "--leader-elect=false",
        ]

    def _controller_manager(self) -> list[str]:
        config = self.kubeconfig("system:kube-controller-manager", ())
        return [
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self._tokens().key}",
            f"--root-ca-file={self.authority.certificate}",
            f"--cluster-signing-cert-file={self.authority.certificate}",
            f"--cluster-signing-key-file={self.authority.key}",
        ]

    def _kubeconfig(self, user: str, credentials: Mapping[str, str], url: str) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "real", "cluster": {"server": url, "certificate-authority": str(self.authority.certificate)}}
            ],
            "users": [{"name": user, "user": dict(credentials)}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": user}}],
            "current-context": "real",
        }
        file = self._directory / f"{user.replace(':', '-')}.kubeconfig"
        new = file.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(json.dumps(config, indent=1), encoding="utf-8")
        return new.replace(file)


def _made(client: Client, body: Mapping[str, object]) -> None:
    try:
        client.create(body)
    except RefusedError as error:
        if error.status != httpx2.codes.CONFLICT:
            raise
