"""The shipped API server, with additions for tests of a Node's status."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from devicecore_tools.testing.api_server import LocalApiServer, Request
from devicecore_tools.testing.api_server.fields import keyed, updated
from devicecore_tools.testing.api_server.kinds import KINDS
from devicecore_tools.testing.api_server.store import ObjectPlace

from tests.adapters import certificates

Json = Any

(_NODE,) = (kind for kind in KINDS if kind.kind == "Node")


class NodeServer(LocalApiServer):
    """An API server through which tests write Nodes as a kubelet and other clients would.

    With `secure`, the server speaks TLS with a certificate from our authority. With `mutual`, clients must present the
    node's certificate.
    """

    def __init__(self, *, secure: bool = False, mutual: bool = False, bearer: str | None = None) -> None:
        super().__init__(tls=certificates.server_context(mutual=mutual) if secure else None, bearer=bearer)

    def config(self, directory: Path, user: Mapping[str, Any] = {}) -> Path:
        """Write `ca.crt` and a kubeconfig whose only user has these credentials, and return the kubeconfig's path."""
        # The authority is named even where none is needed: creating a client is instant with one authority, but takes
        # 0.1 s with all the authorities that the system trusts.
        authority = directory / "ca.crt"
        authority.write_text(certificates.AUTHORITY)
        return self.kubeconfig(directory / "kubeconfig", user, authority=authority)

    def add_node(self, name: str, status: Json = None, *, manager: str = "kubelet") -> None:
        """Create a Node. If `status` is not None, the Node has this status, written by `manager`.

        The status is stored unchanged, even if it breaks rules, because an earlier API server may have accepted it.
        """
        with self.store.transaction():
            node = self.create({"kind": "Node", "metadata": {"name": name, "labels": {"tests": "yes"}}, "spec": {}})
            if status is not None:
                node["status"] = copy.deepcopy(status)
                owners = updated({}, keyed({"status": status}), {}, (manager, "Update", "status"))
                self.store._write(ObjectPlace(_NODE, "", name), node, owners)  # noqa: SLF001 - the way around the rules

    def node(self, name: str) -> Json:
        """Return the current state of a Node."""
        return self.get("Node", name)

    def status(self, name: str) -> Json:
        """Return a Node's current status, or None if it has none."""
        return self.node(name).get("status")

    def write(self, name: str, change: Callable[[Json], object], *, manager: str = "kubelet") -> None:
        """Change a Node's status in place, as another client would."""
        self.change("Node", name, lambda node: change(node.setdefault("status", {})), manager=manager)

    def apply(self, name: str, status: Json, *, manager: str) -> None:
        """Apply a Node's status, as another client would with server-side apply."""
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}
        self.store.apply(ObjectPlace(_NODE, "", name), body, in_status=True, manager=manager, force=True)

    @property
    def calls(self) -> list[Request]:
        """Return the requests so far, except watches."""
        return [request for request in self.requests if request.verb != "watch"]

    @property
    def watches(self) -> list[Request]:
        """Return the watches so far."""
        return [request for request in self.requests if request.verb == "watch"]

    @property
    def patches(self) -> list[Request]:
        """Return the patches so far, including refused patches."""
        return [request for request in self.requests if request.verb == "patch"]
