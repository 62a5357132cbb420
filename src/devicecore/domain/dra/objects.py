"""Turns API objects of dynamic resource allocation into values. `domain.objects` reads pods.

Law: any parsed JSON results in a value or in an error that names the field.
"""

from devicecore.domain.documents import Value, check_kind
from devicecore.domain.dra.model import AllocatedDevice, ClaimKey, ClaimUid, DriverConfig, DriverName, ResourceClaim
from devicecore.domain.dra.slices import StoredSlice


def resource_claim_of(manifest: object, *, uid: ClaimUid | None = None) -> ResourceClaim:
    """Return a ResourceClaim of API version resource.k8s.io/v1.

    Args:
        manifest: parsed JSON, or a `Value` of a document.
        uid: a UID to use instead of the manifest's. If `uid` is given, the manifest need not contain a UID.

    Raises:
        DocumentError: the manifest is a different kind of object, a field has the wrong type, or a name or UID is
            missing.
    """
    claim = Value.of(manifest, "ResourceClaim")
    check_kind(claim, "ResourceClaim")
    metadata, status = claim["metadata"], claim["status"]
    allocation = status["allocation"]
    owners = [owner["uid"].text() for owner in metadata["ownerReferences"].sequence() if owner["controller"].boolean()]
    results = [_result(one) for one in allocation["devices"]["results"].sequence()]
    return ResourceClaim(
        ClaimKey(metadata["namespace"].text("default"), metadata["name"].text()),
        uid or ClaimUid(metadata["uid"].text()),
        owners[0] if owners else "",
        None if allocation.data is None else tuple(results),
        frozenset([consumer["uid"].text() for consumer in status["reservedFor"].sequence()]),
        tuple([_config(one) for one in allocation["devices"]["config"].sequence()]),
    )


def slice_of(manifest: object) -> StoredSlice:
    """Return a ResourceSlice of API version resource.k8s.io/v1.

    Raises DocumentError for a different kind of object, and if a field has the wrong type or a name is missing.
    """
    slice_ = Value.of(manifest, "ResourceSlice")
    check_kind(slice_, "ResourceSlice")
    metadata, spec = slice_["metadata"], slice_["spec"]
    pool = spec["pool"]
    return StoredSlice(
        metadata["name"].text(),
        metadata["uid"].text(""),
        metadata["resourceVersion"].text(""),
        spec["driver"].text(""),
        spec["nodeName"].text(""),
        pool["name"].text(""),
        pool["generation"].integer(0),
        pool["resourceSliceCount"].integer(0),
        {name: item.data for name, item in metadata.mapping().items()},
        [item.data for item in spec["devices"].sequence() or spec["sharedCounters"].sequence()],
    )


def _result(result: Value) -> AllocatedDevice:
    return AllocatedDevice(
        DriverName(result["driver"].text()),
        result["pool"].text(""),
        result["device"].text(""),
        result["request"].text(""),
        result["shareID"].text("") or None,
        result["adminAccess"].boolean(),
        frozenset([operation.text() for operation in result["skipNodeOperations"].sequence()]),
    )


def _config(entry: Value) -> DriverConfig:
    opaque = entry["opaque"]
    requests = tuple([request.text() for request in entry["requests"].sequence()])
    return DriverConfig(DriverName(opaque["driver"].text("")), requests, opaque["parameters"].data)
