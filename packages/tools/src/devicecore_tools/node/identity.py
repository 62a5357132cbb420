"""Compares large immutable values by identity.

Law: two identities are equal if and only if they refer to the same object. An identity keeps its object alive, so
    unlike with `id`, no later object can be mistaken for it.
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
