"""Whether the ResourceClaims of a pod can have devices on a node, from the objects of the API server.

Law: a claim about which a needed object was not read, or whose expression cannot be evaluated here, is not decided but
named. What is decided is what `devicecore.domain.allocation` says.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from attrs import field, frozen

from devicecore.domain.allocation import (
    Matches,
    NoAllocation,
    PoolDevice,
    SelectorError,
    allocate,
    claim_of,
    class_of,
    held_by,
    node_of,
    slice_of,
)
from devicecore.domain.documents import Value
from devicecore.domain.errors import DocumentError

_OF_DRIVER = re.compile(r"""\s*device\.driver\s*==\s*(["'])([a-z0-9.-]{1,253})\1\s*""")
"""The expression of nearly every DeviceClass, for which no library is needed."""


@frozen
class ClaimsAnswer:
    """What is known of a pod's claims.

    Attributes:
        problem: why they get no devices; empty if they do.
        undecided: the claims that could not be decided.
        drivers: the drivers of the devices that claims would get, by `namespace/name` of the claim.
    """

    problem: str = ""
    undecided: tuple[str, ...] = ()
    drivers: Mapping[str, Sequence[str]] = field(factory=dict)


@frozen
class PodClaims:
    """The objects of one node, as the API server has them: parsed JSON, each a list. None was not read."""

    node: object
    slices: Iterable[object] | None
    claims: Iterable[object] | None
    classes: Iterable[object] | None
    library: Matches | None = None

    @classmethod
    def of(cls, documents: Mapping[str, object], library: Matches | None = None) -> "PodClaims":
        """The objects of a record, by the names of their files. `library` evaluates what is not a driver's name."""
        return cls(
            documents.get("node.json"),
            _items(documents.get("resourceslices.json")),
            _items(documents.get("resourceclaims.json")),
            _items(documents.get("deviceclasses.json")),
            library,
        )

    def decide(self, names: Iterable[str]) -> ClaimsAnswer:
        """Decide about the claims with these names, `namespace/name`, which are those of one pod."""
        asked = list(names)
        if not asked or self.claims is None or self.slices is None or self.classes is None or self.node is None:
            return ClaimsAnswer(undecided=tuple(asked))
        try:
            by_name = {_name(one): one for one in self.claims}
            known = [name for name in asked if name in by_name]
            wanted = [by_name[name] for name in known if not _is_allocated(by_name[name])]
            held = [one for claim in by_name.values() for one in held_by(claim)]
            classes = [class_of(one) for one in self.classes]
            answer = allocate(
                [claim_of(one) for one in wanted],
                node_of(self.node),
                [slice_of(one) for one in self.slices],
                held,
                classes,
                matches=self._matches,
            )
        except DocumentError:
            return ClaimsAnswer(undecided=tuple(asked))
        missing = tuple(name for name in asked if name not in by_name)
        if not isinstance(answer, NoAllocation):
            given = {
                _name(one): tuple({taken.key.driver: None for taken in answer.devices(number)})
                for number, one in enumerate(wanted)
            }
            return ClaimsAnswer(undecided=missing, drivers=given)
        if not wanted:
            return ClaimsAnswer(undecided=missing)
        if answer.is_error:
            return ClaimsAnswer(undecided=tuple(asked))
        return ClaimsAnswer(f"cannot allocate all claims: {answer}", missing)

    def _matches(self, expression: str, device: PoolDevice) -> bool:
        if simple := _OF_DRIVER.fullmatch(expression):
            return device.key.driver == simple[2]
        if self.library is None:
            problem = "no library for CEL is installed"
            raise SelectorError(problem, at_run_time=False)
        return self.library(expression, device)


def _items(document: object) -> list[object] | None:
    return document["items"] if isinstance(document, dict) and isinstance(document.get("items"), list) else None


def _name(claim: object) -> str:
    metadata = Value.of(claim, "ResourceClaim")["metadata"]
    return f"{metadata['namespace'].text('default')}/{metadata['name'].text('')}"


def _is_allocated(claim: object) -> bool:
    return Value.of(claim, "ResourceClaim")["status"]["allocation"].data is not None
