"""Label and field selectors.

Law: a selector is either fully understood or refused; no term is ignored.
"""

import re
from collections.abc import Callable

from devicecore_tools.testing.api_server.kinds import Kind
from devicecore_tools.testing.api_server.status import Json, bad_request

Selector = Callable[[Json], bool]

_TRUTHS = ("spec.hostNetwork", "spec.unschedulable")
_FIELD = re.compile(r"(?P<path>[^=!]+)(?P<operator>==|=|!=)(?P<value>(?:[^\\,=]|\\.)*)")
_COMMA = re.compile(r"(?<!\\),")  # a comma without a preceding backslash
_LABEL = re.compile(r"(?:\([^()]*\)|[^,])+")  # up to a comma that is not in parentheses
_SET = re.compile(r"(?P<key>\S+)\s+(?P<operator>in|notin)\s+\((?P<values>[^()]*)\)")
_EQUAL = re.compile(r"(?P<key>[^=!\s]+)\s*(?P<operator>==|=|!=)\s*(?P<value>[^=!\s]*)")


def field_selector(kind: Kind, text: str, api_version: str) -> Selector:
    """Parse a field selector such as `spec.nodeName=a,spec.driver!=b`. An unset field counts as an empty string.

    Raises ApiError if the string is not a selector, or names a field that does not support selection.
    """
    terms: list[Selector] = []
    for term in filter(None, _COMMA.split(text)):
        matched = _FIELD.fullmatch(term)
        if matched is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        path, value = matched["path"], re.sub(r"\\(.)", r"\1", matched["value"])
        if path not in kind.selectable:
            raise kind.unknown_selector(path, api_version)
        terms.append(_compare(path, value, equal=matched["operator"] != "!="))
    return lambda value: all(term(value) for term in terms)


def label_selector(text: str) -> Selector:
    """Parse a label selector such as `a=b,c!=d,e,!f,g in (h, i)`. Raises ApiError if the string is not a selector."""
    if text.rstrip().endswith(","):
        raise bad_request("found '', expected: identifier after ','")
    terms = [_label_term(term.strip(), text) for term in _LABEL.findall(text) if term.strip()]
    return lambda value: all(term(value["metadata"].get("labels") or {}) for term in terms)


def _compare(path: str, expected: str, *, equal: bool) -> Selector:
    def matches(value: Json) -> bool:
        found: object = value
        for part in path.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        shown = str(bool(found)).lower() if path in _TRUTHS else str(found or "")
        return (shown == expected) is equal

    return matches


def _label_term(term: str, text: str) -> Callable[[Json], bool]:
    if matched := _SET.fullmatch(term):
        values = {value.strip() for value in matched["values"].split(",")}
        key, wanted = matched["key"], matched["operator"] == "in"
        return lambda labels: (key in labels and labels[key] in values) if wanted else labels.get(key) not in values
    if matched := _EQUAL.fullmatch(term):
        key, expected, equal = matched["key"], matched["value"], matched["operator"] != "!="
        return lambda labels: (labels.get(key) == expected) is equal
    if re.fullmatch(r"!?\s*[^\s=!()]+", term):
        key, present = term.lstrip("! "), not term.startswith("!")
        return lambda labels: (key in labels) is present
    raise bad_request(f"unable to parse requirement: found '{term}' in '{text}'")
