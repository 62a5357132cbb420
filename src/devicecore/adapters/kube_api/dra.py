"""Dynamic resource allocation on an API server: reads ResourceClaims and deletes ResourceSlices, as a kubelet does.

Laws: A claim is read again for each call, and never from a cache. A selector matches only slices of this node, even if
a malicious driver name tries to change the selector. A call that waits for the server does not delay other calls.
"""

import re
from http import HTTPStatus

from devicecore.adapters.kube_api.access import Access, ApiRequest, RequestError, check_node_name
from devicecore.adapters.kube_api.requests import CLAIMS, SLICES, ApiServers
from devicecore.domain.dra.errors import ClaimSourceError, SliceError
from devicecore.domain.dra.model import ClaimKey, DriverName, ResourceClaim
from devicecore.domain.dra.objects import resource_claim_of
from devicecore.domain.errors import DocumentError
from devicecore.domain.names import is_dns_subdomain
from devicecore.domain.text import foreign_text
from devicecore.system.arguments import checks_arguments


class KubeApiClaims(ApiServers):
    """A `ClaimSource`: the ResourceClaims on an API server. Thread-safe. Use it as a context manager.

    Args:
        access: where the API server and the credentials are, and how long to wait for them.

    Raises:
        ApiAccessError: there are no credentials, or they cannot be used.
    """

    def __init__(self, access: Access = Access()) -> None:
        super().__init__("the client of ResourceClaims", access)

    @checks_arguments()
    def get(self, key: ClaimKey) -> ResourceClaim:
        """Return the current claim.

        Raises:
            ClaimSourceError: there is no such claim, or the claim cannot be read.
        """
        for part in key:
            if not is_dns_subdomain(part):  # with any other name, the path could name a different object
                cause = f"expected a name made of a-z, 0-9, '-' and '.', got {foreign_text(part)!r}"
                raise ClaimSourceError(cause)
        try:
            answer = self._send(ApiRequest("get resourceclaims", "GET", CLAIMS.path(key.namespace, key.name)))
            claim = resource_claim_of(answer)
        except RequestError as error:
            raise ClaimSourceError(_words_of(error)) from error
        except DocumentError as error:
            raise ClaimSourceError(str(error)) from error
        if claim.key != key:
            cause = f"expected ResourceClaim {key}, got {foreign_text(str(claim.key))}"
            raise ClaimSourceError(cause)
        return claim


class KubeApiSlices(ApiServers):
    """The `ResourceSlices` of one node on an API server. Thread-safe. Use it as a context manager.

    Args:
        node: the name of the node whose slices are deleted.
        access: where the API server and the credentials are, and how long to wait for them.

    Raises:
        ApiAccessError: there are no credentials, or they cannot be used.
        NodeNameError: the node name is invalid. An empty name would select the slices that belong to no node.
    """

    @checks_arguments("access")
    def __init__(self, node: str, access: Access = Access()) -> None:
        check_node_name(node)
        super().__init__("the client of ResourceSlices", access)
        self._node = node

    def delete(self, driver: DriverName | None) -> None:
        """Delete this node's slices for one driver, or for every driver (kubelet: `wipeResourceSlices`).

        Raises:
            SliceError: the slices could not be deleted.
        """
        selector = f"spec.nodeName={self._node}"
        if driver is not None:
            selector += f",spec.driver={_escaped(driver)}"

        request = ApiRequest("deletecollection resourceslices", "DELETE", SLICES.path(), {"fieldSelector": selector})
        try:
            self._send(request)
        except RequestError as error:
            if error.status != HTTPStatus.NOT_FOUND:  # a server without this API has no slices
                raise SliceError(_words_of(error)) from error


def _words_of(error: RequestError) -> str:
    """Return the server's message if the server refuses, as a kubelet does.

    For other failures, and if the credentials are refused, return our own sentence.
    """
    return error.cause if error.status in (None, HTTPStatus.UNAUTHORIZED) else error.message


def _escaped(value: str) -> str:
    """Return `value` escaped for a field selector. Unescaped, a driver's name could select slices of other drivers."""
    return re.sub(r"([\\,=])", r"\\\1", value)
