"""The errors of dynamic resource allocation, with the kubelet's texts.

Law: `str(error)` is the kubelet's message where a kubelet has one (kubelet-dra.md 2.3, 4, 5, 6). Messages contain text
from a driver or from the API server unchanged, because callers compare messages. Pass the message through
`foreign_text` before showing it.
"""

from attrs import frozen

from devicecore.domain.errors import DeviceCoreError


class DraError(DeviceCoreError):
    """Base of all errors that dynamic resource allocation raises on purpose."""


@frozen(repr=False)
class PrepareError(DraError):
    """A pod's claims are not prepared. The caller may try again."""

    cause: DeviceCoreError
    _text = "prepare dynamic resources: {cause}"


@frozen(repr=False)
class UnprepareError(DraError):
    """Some of a pod's claims are not released, and the pod still uses them. The caller may try again."""

    cause: DeviceCoreError
    _text = "unprepare dynamic resources: {cause}"


# --- the pod and its claims ------------------------------------------------------------------------------------------


@frozen(repr=False)
class ClaimNotCreatedError(DraError):
    """The claim generated from a template is not in the pod's status yet."""

    namespace: str
    pod: str
    _text = 'pod "{namespace}/{pod}": ResourceClaim not created yet'


@frozen(repr=False)
class NoClaimReferenceError(DraError):
    """An entry of the pod names neither a claim nor a template."""

    namespace: str
    pod: str
    entry: str
    _text = 'pod "{namespace}/{pod}", spec.resourceClaim "{entry}": none of the supported fields are set'


@frozen(repr=False)
class ClaimSourceError(DraError):
    """A claim cannot be read. `cause` is the error from the API server or the file system."""

    cause: str
    _text = "{cause}"


@frozen(repr=False)
class FetchClaimError(DraError):
    """The claim of a pod cannot be read."""

    claim: str
    cause: str
    _text = "fetch ResourceClaim {claim}: {cause}"


@frozen(repr=False)
class NotOwnerError(DraError):
    """The claim was created for another pod."""

    namespace: str
    claim: str
    pod: str
    _text = "ResourceClaim {namespace}/{claim} was not created for Pod {namespace}/{pod} (Pod is not owner)"


@frozen(repr=False)
class NotReservedError(DraError):
    """The claim is not reserved for the pod."""

    pod: str
    pod_uid: str
    claim: str
    claim_uid: str
    _text = "pod {pod} ({pod_uid}) is not allowed to use ResourceClaim {claim} ({claim_uid})"


@frozen(repr=False)
class NotAllocatedError(DraError):
    """The scheduler has not allocated the claim."""

    claim: str
    _text = "ResourceClaim {claim}: not allocated"


@frozen(repr=False)
class OldClaimError(DraError):
    """An older claim of the same name has not been released."""

    claim: str
    uid: str
    _text = (
        "old ResourceClaim with same name {claim} and different UID {uid} still exists (previous pod force-deleted?!)"
    )


@frozen(repr=False)
class ClaimInfoError(DraError):
    """A container names a claim that no pod on this node has asked to prepare."""

    namespace: str
    claim: str
    _text = "internal error: unable to get claim info for ResourceClaim {claim} in namespace {namespace}"


@frozen(repr=False)
class ClaimInformationError(DraError):
    """A container names a claim that no pod has asked to prepare.

    The message is the kubelet's text for the pod-resources API.
    """

    namespace: str
    claim: str
    is_extended: bool = False

    def __str__(self) -> str:
        if self.is_extended:
            return f"unable to get claim info for claim {self.claim} in namespace {self.namespace}"
        return f"unable to get information for ResourceClaim {self.claim}"


# --- the driver ------------------------------------------------------------------------------------------------------


@frozen(repr=False)
class DriverNotRegisteredError(DraError):
    """No instance of the driver is registered."""

    driver: str

    def __str__(self) -> str:
        return f"DRA driver {self.driver} is not registered" if self.driver else "DRA driver name is empty"


@frozen(repr=False)
class DriverAlreadyRegisteredError(DraError):
    """The driver is already served at this endpoint."""

    driver: str
    endpoint: str
    _text = "endpoint {endpoint} already registered for DRA driver plugin {driver}"


@frozen(repr=False)
class UnsupportedServicesError(DraError):
    """A driver supports no service that the manager knows."""

    driver: str
    endpoint: str
    offered: tuple[str, ...]
    supported: tuple[str, ...]

    def __str__(self) -> str:
        at = f"DRA driver plugin {self.driver} at endpoint {self.endpoint}"
        if not self.offered:
            problem = "empty list of supported gRPC services (aka supported versions)"
        else:
            offered, supported = (" ".join(f'"{name}"' for name in names) for names in (self.offered, self.supported))
            problem = (
                f"none of services supported by the plugin ([{offered}]) are supported by the kubelet ([{supported}])"
            )
        return f"invalid supported gRPC versions of {at}: {problem}"


@frozen(repr=False)
class DriverCallError(DraError):
    """A call to a driver failed as a whole.

    `method` is `NodePrepareResources` or `NodeUnprepareResources`, and `code` is a gRPC code as Go spells it
    (`Unavailable`). `unanswered` means that the driver may or may not have done the work, for example because the call
    timed out or the connection broke.
    """

    method: str
    code: str
    message: str
    unanswered: bool = False
    _text = "{method}: rpc error: code = {code} desc = {message}"


@frozen(repr=False)
class UnknownClaimError(DraError):
    """A driver's response contains a claim that was not in the request."""

    method: str
    claim_uid: str
    _text = "{method} returned result for unknown claim UID {claim_uid}"


@frozen(repr=False)
class ClaimFailedError(DraError):
    """A driver reports that preparing or releasing a claim failed. `error` is the driver's text."""

    method: str
    claim: str
    error: str
    _text = "{method} failed for ResourceClaim {claim}: {error}"


@frozen(repr=False)
class SkippedClaimsError(DraError):
    """A driver's answer lacks claims that the request contained."""

    method: str
    count: int
    _text = "{method} skipped {count} ResourceClaims"


@frozen(repr=False)
class DriverAnswerTooLargeError(DraError):
    """A driver's answer for a claim would take up too much of the claims file. `size` and `limit` are in bytes.

    With `is_sum`, `size` is the total of the driver's answers.
    """

    driver: str
    claim: str
    size: int
    limit: int
    is_sum: bool = False

    def __str__(self) -> str:
        what = f"with its answer for ResourceClaim {self.claim}, all its answers" if self.is_sum else "its answer"
        of = "" if self.is_sum else f" for ResourceClaim {self.claim}"
        size = f"would take up {self.size:,} bytes in dra_manager_state, expected at most {self.limit:,}"
        return f"DRA driver {self.driver} sends too much: {what}{of} {size}"


# --- the store, the API server, the manager --------------------------------------------------------------------------


@frozen(repr=False)
class SaveClaimsError(DraError):
    """The claims cannot be saved. `what` is `cache` before drivers are called, and `state` after they have answered."""

    what: str
    cause: str
    _text = "checkpoint ResourceClaim {what}: could not save checkpoint dra_manager_state: {cause}"


@frozen(repr=False)
class SliceError(DraError):
    """ResourceSlices cannot be deleted. `cause` is the API server's error."""

    cause: str
    _text = "delete ResourceSlices: {cause}"


@frozen(repr=False)
class SlicePublishError(DraError):
    """A driver's devices are not published. `cause` is the API server's error."""

    driver: str
    cause: str
    _text = "publish ResourceSlices of {driver}: {cause}"


@frozen(repr=False)
class InvalidPoolError(DraError, ValueError):
    """Devices that an API server would not accept in a ResourceSlice.

    `subject` names the object that is wrong, such as a device.
    """

    subject: str
    problem: str
    _text = "{subject}: {problem}"


@frozen(repr=False)
class DraStoppedError(DraError):
    """The DRA manager is not running: it was not started, or it was stopped during the call."""

    _text = "the DRA manager is not running: call start() again"


@frozen(repr=False)
class DraNotStartedError(DraStoppedError):
    """The DRA manager was never started."""

    _text = "the DRA manager is not started: call start() first, or use the manager in a with statement"


@frozen(repr=False)
class TurnTimeoutError(DraError):
    """Another call for the same pod or claim took too long. `seconds` is how long this call has waited."""

    seconds: float
    _text = "another call for the same pod or claim is still under way after {seconds:g} seconds"
