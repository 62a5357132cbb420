"""Label selectors, as `kubectl -l` accepts them and as objects contain them.

Law: a string that kubectl refuses is refused with a sentence. Every other string selects exactly the nodes that kubectl
    would list.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from devicecore.domain.allocation import TargetNode
from devicecore.domain.allocation.node_selectors import node_selector
from devicecore.domain.documents import Value

_KEY = r"(?:[A-Za-z0-9.-]{1,253}/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?"
# Kubernetes' `labels.Parse` parses requirements this way. The second values are the operators in a node selector.
_FORMS = (
    (re.compile(rf"({_KEY})"), "Exists"),
    (re.compile(rf"!\s*({_KEY})"), "DoesNotExist"),
    (re.compile(rf"({_KEY})\s*==?\s*({_VALUE})"), "In"),
    (re.compile(rf"({_KEY})\s*!=\s*({_VALUE})"), "NotIn"),
    (re.compile(rf"({_KEY})\s+in\s*\(([^()]*)\)"), "In"),
    (re.compile(rf"({_KEY})\s+notin\s*\(([^()]*)\)"), "NotIn"),
    (re.compile(rf"({_KEY})\s*>\s*(-?[0-9]+)"), "Gt"),
    (re.compile(rf"({_KEY})\s*<\s*(-?[0-9]+)"), "Lt"),
)
_COMMA = re.compile(r",(?![^(]*\))")  # outside parentheses


def label_selector(text: str) -> Callable[[TargetNode], bool]:
    """Return a predicate for a node's labels. Raises ValueError, which names the invalid part."""
    requirements = [_requirement(part.strip()) for part in _COMMA.split(text)]
    return node_selector(Value.of({"nodeSelectorTerms": [{"matchExpressions": requirements}]}, "selector"))


def _requirement(part: str) -> dict[str, object]:
    for form, operator in _FORMS:
        if match := form.fullmatch(part):
            key, *rest = match.groups()
            values = [one.strip() for one in rest[0].split(",")] if rest else []
            if all(re.fullmatch(_VALUE, one) for one in values) or operator in {"Gt", "Lt"}:
                return {"key": key, "operator": operator, "values": values}
    message = f"expected requirements such as tier=gpu, tier!=gpu, tier in (a, b) or !tier, got {part!r}"
    raise ValueError(message)


def object_selector(selector: Value, more: Sequence[Mapping[str, object]] = ()) -> Callable[[Mapping[str, str]], bool]:
    """Return a predicate for labels that must match a LabelSelector from the API and the requirements in `more`.

    A missing selector matches nothing, and an empty one matches everything (Kubernetes: `LabelSelectorAsSelector`).
    Raises DocumentError if the selector is malformed.
    """
    if selector.data is None:
        return lambda _: False
    equal = {key: one.text("") for key, one in selector["matchLabels"].mapping().items()}
    requirements = [*(one.data for one in selector["matchExpressions"].sequence()), *more]
    terms = Value({"nodeSelectorTerms": [{"matchExpressions": requirements}]}, selector, "matchExpressions")
    by_expressions = node_selector(terms) if requirements else None

    def matches(labels: Mapping[str, str]) -> bool:
        if any(labels.get(key) != value for key, value in equal.items()):
            return False
        return by_expressions is None or by_expressions(TargetNode("", labels))

    return matches
