"""The CEL expressions of claims and classes, evaluated with the library of the extra `cel`.

Law: an expression that only compares the driver's name does not need a library. Without the library (as in
    devicecore.pyz), expressions that also compare string attributes, like those of NVIDIA's DeviceClasses, can be
    evaluated, too. Evaluating any other expression then raises a `SelectorError`.
"""

import re
from functools import cached_property

from devicecore.domain.allocation import Features, Matches, PoolDevice, SelectorError

_OF_DRIVER = re.compile(r"""\s*device\.driver\s*==\s*(["'])([a-z0-9.-]{1,253})\1\s*""")
"""The expression of nearly every DeviceClass, for which no library is needed."""

_OF_ATTRIBUTE = re.compile(
    r"""\s*device\.attributes\[(["'])([a-z0-9.-]{1,253})\1\]\.([A-Za-z_][A-Za-z0-9_]{0,31})\s*==\s*(["'])([^"'\\&]*)\4\s*"""
)
_RESERVED = re.compile(
    "as|break|const|continue|else|false|for|function|if|import|in|let|loop|namespace|null|package|return|true|var|void|while"
)
_LACKS_LIBRARY = (
    "this expression needs cel-expr-python, which is not installed: pip install cel-expr-python; for devicecore.pyz, "
    "pip install --target lib cel-expr-python, and run it with PYTHONPATH=lib"
)
_PLAIN_KINDS = frozenset({"string", "int", "bool", "version"})  # an API server accepts only valid versions


def _compared(expression: str, device: PoolDevice) -> bool | None:
    """Return the value of string comparisons joined by `&&`, or None if only the library can evaluate them.

    A missing attribute is an error in Kubernetes, and an attribute of a different type may be one, so neither is
    decided here. As in CEL, false on either side takes precedence over an error on the other.
    """
    if any(one.kind not in _PLAIN_KINDS for one in device.attributes.values()):
        return None
    values = [_term(term, device) for term in expression.split("&&")]
    if any(not is_known for is_known, _ in values):
        return None
    if any(value is False for _, value in values):
        return False
    return None if any(value is None for _, value in values) else True


def _term(term: str, device: PoolDevice) -> tuple[bool, bool | None]:
    """Return whether a comparison can be parsed here, and its value (None if it is an error or uncertain)."""
    if simple := _OF_DRIVER.fullmatch(term):
        return True, device.key.driver == simple[2]
    found = _OF_ATTRIBUTE.fullmatch(term)
    if found is None or _RESERVED.fullmatch(found[3]):
        return False, None
    attribute = device.attribute(f"{found[2]}/{found[3]}")
    return True, attribute.values == (found[5],) if attribute is not None and attribute.kind == "string" else None


class Expressions:
    """Evaluates CEL expressions. Simple comparisons work without the extra `cel`.

    `max_seconds` limits the total time of this object's evaluations. `lacks_library` says whether an expression had no
    value because the library is missing.
    """

    def __init__(self, features: Features = Features(), *, max_seconds: float | None = None) -> None:
        self._features = features
        self._max_seconds = max_seconds
        self.lacks_library: bool = False

    def __call__(self, expression: str, device: PoolDevice) -> bool:
        """Return whether an expression selects a device.

        Raises SelectorError if the expression has no value for the device, or the library is missing.
        """
        simple = _OF_DRIVER.fullmatch(expression)
        return device.key.driver == simple[2] if simple else self._library(expression, device)

    @cached_property
    def _library(self) -> Matches:
        try:
            from devicecore.adapters.cel import CelSelectors
        except ModuleNotFoundError:

            def without_library(expression: str, device: PoolDevice) -> bool:
                value = _compared(expression, device)
                if value is None:
                    self.lacks_library = True
                    raise SelectorError(_LACKS_LIBRARY, at_run_time=False)
                return value

            return without_library
        return CelSelectors(self._features, max_seconds=self._max_seconds)
