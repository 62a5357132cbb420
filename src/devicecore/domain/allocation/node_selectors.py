"""Which nodes an API NodeSelector accepts.

Law: a selector without terms accepts no node, nor does a term without requirements. The terms are alternatives, and all
requirements of a term must be met.
"""

from collections.abc import Callable, Mapping

from devicecore.domain.allocation.model import TargetNode
from devicecore.domain.documents import Value

Check = Callable[[Mapping[str, str]], bool]


def node_selector(selector: Value) -> Callable[[TargetNode], bool]:
    """Return a function that says whether a node is selected. Raises DocumentError for an invalid selector."""
    terms = [
        (
            [_check(one) for one in term["matchExpressions"].sequence()],
            [_check(one) for one in term["matchFields"].sequence()],
        )
        for term in selector["nodeSelectorTerms"].sequence()
    ]

    def selects(node: TargetNode) -> bool:
        fields = {"metadata.name": node.name}
        return any(
            (by_labels or by_fields)
            and all(check(node.labels) for check in by_labels)
            and all(check(fields) for check in by_fields)
            for by_labels, by_fields in terms
        )

    return selects


def _check(requirement: Value) -> Check:
    key, operator = requirement["key"].text(), requirement["operator"].text()
    values = tuple(value.text("") for value in requirement["values"].sequence())
    checks: Mapping[str, Check] = {
        "In": lambda labels: labels.get(key) in values,
        "NotIn": lambda labels: labels.get(key) not in values,
        "Exists": lambda labels: key in labels,
        "DoesNotExist": lambda labels: key not in labels,
        "Gt": lambda labels: (number := _number(labels.get(key))) is not None and number > limit,
        "Lt": lambda labels: (number := _number(labels.get(key))) is not None and number < limit,
    }
    if operator not in checks:
        requirement["operator"].refuse(f"expected one of {', '.join(checks)}, got {operator}")
    limit = 0
    if operator in {"Gt", "Lt"}:
        parsed = _number(values[0]) if len(values) == 1 else None
        if parsed is None:
            requirement["values"].refuse("expected one whole number")
        limit = parsed
    return checks[operator]


def _number(text: str | None) -> int | None:
    """Return a 64-bit integer, or None."""
    digits = (text or "").removeprefix("-")
    return int(text or "") if digits.isascii() and digits.isdigit() and len(digits) <= len(str(2**63)) else None
