"""Make values of API objects: pods and ResourceClaims from the API server or from a manifest.

Law: any parsed JSON gives a value or an `InvalidObjectError` that names the field. Unknown fields are ignored.
"""

from collections.abc import Iterator, Mapping
from typing import NoReturn

from attrs import frozen

from devicecore.domain.dra.errors import InvalidObjectError
from devicecore.domain.dra.model import AllocatedDevice, ClaimKey, ClaimUid, DriverConfig, DriverName, ResourceClaim
from devicecore.domain.dra.slices import StoredSlice
from devicecore.domain.errors import InvalidQuantityError
from devicecore.domain.model import Container, ContainerClaim, ExtendedClaim, Pod, PodClaim, PodUid, RequestMapping
from devicecore.domain.quantity import whole_quantity


def pod_of(manifest: object) -> Pod:
    """A pod of API version v1.

    Raises:
        InvalidObjectError: a field has the wrong type.
    """
    pod = _Field("Pod", "", manifest)
    metadata, spec, status = pod["metadata"], pod["spec"], pod["status"]
    return Pod(
        PodUid(metadata["uid"].text()),
        name=metadata["name"].text(),
        namespace=metadata["namespace"].text("default"),
        containers=map(_container, spec["containers"].items()),
        init_containers=map(_container, spec["initContainers"].items()),
        claims=map(_pod_claim, spec["resourceClaims"].items()),
        generated_claims={
            entry["name"].text(): entry["resourceClaimName"].optional()
            for entry in status["resourceClaimStatuses"].items()
        },
        extended_claim=_extended(status["extendedResourceClaimStatus"]),
    )


def resource_claim_of(manifest: object) -> ResourceClaim:
    """A ResourceClaim of API version resource.k8s.io/v1.

    Raises:
        InvalidObjectError: a field has the wrong type.
    """
    claim = _Field("ResourceClaim", "", manifest)
    metadata, status = claim["metadata"], claim["status"]
    owners = [owner["uid"].text() for owner in metadata["ownerReferences"].items() if owner["controller"].value is True]
    results = status["allocation"]["devices"]["results"]
    return ResourceClaim(
        ClaimKey(metadata["namespace"].text("default"), metadata["name"].text()),
        ClaimUid(metadata["uid"].text()),
        owners[0] if owners else "",
        None if status["allocation"].value is None else tuple(map(_result, results.items())),
        frozenset(consumer["uid"].text() for consumer in status["reservedFor"].items()),
        tuple(
            DriverConfig(
                DriverName(entry["opaque"]["driver"].text("")),
                tuple(request.text() for request in entry["requests"].items()),
                entry["opaque"]["parameters"].value,
            )
            for entry in status["allocation"]["devices"]["config"].items()
        ),
    )


def slice_of(manifest: object) -> StoredSlice:
    """A ResourceSlice of API version resource.k8s.io/v1.

    Raises:
        InvalidObjectError: a field has the wrong type.
    """
    slice_ = _Field("ResourceSlice", "", manifest)
    metadata, spec = slice_["metadata"], slice_["spec"]
    pool, devices = spec["pool"], spec["devices"]
    return StoredSlice(
        metadata["name"].text(),
        metadata["uid"].text(""),
        metadata["resourceVersion"].text(""),
        spec["driver"].text(""),
        spec["nodeName"].text(""),
        pool["name"].text(""),
        pool["generation"].integer(),
        pool["resourceSliceCount"].integer(),
        {name: item.value for name, item in metadata.pairs()},
        [item.value for item in devices.items()],
    )


def _pod_claim(entry: "_Field") -> PodClaim:
    template = entry["resourceClaimTemplateName"].optional()
    return PodClaim(entry["name"].text(), entry["resourceClaimName"].optional(), template)


def _extended(status: "_Field") -> ExtendedClaim | None:
    if status.value is None:
        return None
    mappings = tuple(
        RequestMapping(row["containerName"].text(), row["resourceName"].text(), row["requestName"].text())
        for row in status["requestMappings"].items()
    )
    return ExtendedClaim(status["resourceClaimName"].text(), mappings)


def _container(container: "_Field") -> Container:
    resources = container["resources"]
    limits = {name: amount.count() for name, amount in resources["limits"].pairs()}
    requests = {name: amount.count() for name, amount in resources["requests"].pairs()}
    return Container(
        container["name"].text(),
        limits,
        container["restartPolicy"].text("") == "Always",
        claims=[ContainerClaim(row["name"].text(), row["request"].text("")) for row in resources["claims"].items()],
        requests={name: count for name, count in requests.items() if count != limits.get(name)},
    )


def _result(result: "_Field") -> AllocatedDevice:
    return AllocatedDevice(
        DriverName(result["driver"].text()),
        result["pool"].text(""),
        result["device"].text(""),
        result["request"].text(""),
        result["shareID"].optional(),
        result["adminAccess"].value is True,
    )


@frozen
class _Field:
    """A value with its path in the object, for errors. An absent value is None."""

    kind: str
    path: str
    value: object

    def __getitem__(self, name: str) -> "_Field":
        if self.value is None:
            return _Field(self.kind, f"{self.path}.{name}", None)
        if not isinstance(self.value, Mapping):
            self._refuse("an object")
        return _Field(self.kind, f"{self.path}.{name}", self.value.get(name))

    def text(self, default: str | None = None) -> str:
        """A string; `default` if it is absent, which is an error without one."""
        value = default if self.value is None else self.value
        if not isinstance(value, str):
            self._refuse("a string")
        return value

    def optional(self) -> str | None:
        """A string, or None if it is absent."""
        return None if self.value is None else self.text()

    def count(self) -> int:
        """A quantity, rounded up to a whole number."""
        if isinstance(self.value, bool) or not isinstance(self.value, str | int | float):
            self._refuse("a quantity")
        try:
            return whole_quantity(str(self.value))
        except InvalidQuantityError as error:
            raise InvalidObjectError(self.kind, self.path.lstrip("."), str(error)) from None

    def integer(self) -> int:
        """A whole number; 0 if it is absent."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | None):
            self._refuse("a whole number")
        return self.value or 0

    def items(self) -> "Iterator[_Field]":
        """The elements of a list."""
        if not isinstance(self.value, list | None):
            self._refuse("a list")
        for number, item in enumerate(self.value or ()):
            yield _Field(self.kind, f"{self.path}[{number}]", item)

    def pairs(self) -> "Iterator[tuple[str, _Field]]":
        """The fields of an object."""
        if not isinstance(self.value, Mapping | None):
            self._refuse("an object")
        for name, item in (self.value or {}).items():
            yield str(name), _Field(self.kind, f"{self.path}.{name}", item)

    def _refuse(self, wanted: str) -> NoReturn:
        raise InvalidObjectError(
            self.kind, self.path.lstrip(".") or "object", f"expected {wanted}, got {_kind(self.value)}"
        )


def _kind(value: object) -> str:
    """The kind of a value, in the words of JSON."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return {bool: "a boolean", str: "a string", type(None): "nothing"}.get(type(value), "a number")
