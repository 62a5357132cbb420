"""Compare large immutable values by identity.

Law: two identities are equal if and only if they are of the same object. An identity keeps its object, so no object
that is made later can be taken for it, as it can with `id`.
"""


class Identity:
    """The identity of an object."""

    __slots__ = ("_of",)

    def __init__(self, of: object) -> None:
        self._of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self._of is other._of

    def __hash__(self) -> int:
        return id(self._of)
