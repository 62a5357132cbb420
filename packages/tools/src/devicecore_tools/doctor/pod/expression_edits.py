"""Proposes edits that may make CEL expressions select published devices.

Law: where an edit replaces a name, a type or a value, devices have the new one. Callers test whether the edit helps
before they propose it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import SequenceMatcher, get_close_matches
from heapq import nsmallest
from itertools import combinations, product

from attrs import frozen

from devicecore.domain.allocation import PoolDevice
from devicecore.domain.allocation.model import Attribute
from devicecore.domain.errors import InvalidQuantityError
from devicecore.domain.quantity import Quantity
from devicecore.domain.text import foreign_text

_MAX_EDITED = 10 * 1024  # maximum length of an expression, as in the API; longer expressions are not edited
_MAX_WHOLE = 200  # maximum length of an expression that is shown completely if several parts are replaced
_MAX_VALUES = 100  # how many of an attribute's values are compared with a literal
_LEAST_ALIKE = 0.7  # the minimum similarity of names, so that `tpye` is taken for `type`
_MAX_EDITS = 12  # the maximum number of edits of an expression that replace a single value
_MAX_PLACES = 4  # how many literals of an expression are replaced in pairs
_MAX_TOGETHER = 3  # how many values are tried for each literal of a pair
_TEXT = r"""(?:"[^"\\\n]*"|'[^'\\\n]*')"""
_MAP = rf"(?:device\.(?:attributes|capacity)\[\s*{_TEXT}\s*\]|\b[A-Za-z_]\w*)"
_NAME = rf"(?:\.\??\s*\w+|\[\??\s*{_TEXT}\s*\])"
_LITERAL = rf"(?:{_TEXT}|-?\d[\d.]*\b|true\b|false\b)"
_PATH = re.compile(
    rf"device\.(?P<kind>attributes|capacity)\[\s*(?P<domain>{_TEXT})\s*\]"
    rf"(?P<start>\.\??\s*|\[\??\s*)(?P<name>\w+|{_TEXT})(?P<end>\s*\])?"
)
_COMPARED = re.compile(
    rf"(?P<left>{_MAP}(?P<name>{_NAME}))(?:\.orValue\([^()]*\))?\s*(?P<operator>==|!=|<=|>=|<|>)\s*"
    rf"(?P<right>(?P<function>quantity|semver)\(\s*(?P<inner>{_TEXT})\s*\)|{_LITERAL})"
)
_VALUED = re.compile(
    rf"{_MAP}(?P<name>{_NAME})(?:\.orValue\([^()]*\))?(?:\s*(?:==|<=|>=|<|>)\s*|\.\w+\(\s*)"
    rf"(?:(?:quantity|semver)\(\s*)?(?P<literal>{_LITERAL})"
)
_ANY_TEXT = re.compile(_TEXT)
_MISSPELT = re.compile(r"(?<![=!<>&|])(?:=|&|\|)(?![=&|~])|\b(?i:and|or)\b")
_OPERATORS = {"=": "==", "&": "&&", "|": "||", "and": "&&", "or": "||"}
_UNQUOTED = re.compile(r"device\.(?P<kind>attributes|capacity)\[\s*(?P<domain>[a-z0-9]+(?:[.-][a-z0-9]+)+)\s*\]")
_JOINED = re.compile(
    rf"device\.(?P<kind>attributes|capacity)(?:\[\s*(?P<whole>{_TEXT})\s*\](?!\s*[.\[])|\.(?P<bare>[A-Za-z_]\w*)(?!\w*\())"
)
"""A name without its domain, or with its domain in the same string."""

_WORDS = {"int": "a number", "bool": "true or false", "string": "a string", "version": "a version", "": "a value"}
_DEFAULTS = {"int": "0", "bool": "false", "string": '""', "capacity": 'quantity("0")'}


@frozen
class Edit:
    """An expression after an edit, with each replaced part and its replacement."""

    expression: str
    replaced: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return ", and ".join(f"{after} instead of {before}" for before, after in self.replaced)

    def after(self, first: "Edit | None", original: str) -> "Edit":
        """Return a single edit of the original expression that combines an earlier edit with this edit."""
        if first is None:
            return self
        whole = " ".join(original.split()), " ".join(self.expression.split())
        return Edit(self.expression, (whole,) if len(whole[0]) <= _MAX_WHOLE else (*first.replaced, *self.replaced))


def repaired(expression: str, devices: Sequence[PoolDevice]) -> Edit | None:
    """Return an expression with the names and types that devices have, or None if nothing can be repaired."""
    if len(expression) > _MAX_EDITED:
        return None
    spelt = _respelled(expression, devices)
    if spelt is not None:
        named = _with_known_names(spelt.expression, devices)
        return named.after(spelt, expression) if named else spelt
    return _with_known_names(expression, devices)


def _with_known_names(expression: str, devices: Sequence[PoolDevice]) -> Edit | None:
    known = {of: sorted({one for device in devices for one in _names(device, of)}) for of in ("attributes", "capacity")}
    named = _replaced(expression, [one for match in _PATH.finditer(expression) for one in _renamed(match, known)])
    text = named.expression if named else expression
    kinds: dict[str, set[str]] = {}
    for device in devices:
        for name, one in device.attributes.items():
            kinds.setdefault(name.rpartition("/")[2], set()).add(one.kind)
    typed = _replaced(text, [one for match in _COMPARED.finditer(text) for one in _retyped(match, kinds)])
    return typed.after(named, expression) if typed else named


def _respelled(expression: str, devices: Sequence[PoolDevice]) -> Edit | None:
    """Return an expression with CEL's operators and quotes, and with domains before names, or None if it has them."""
    literals = [match.span() for match in _ANY_TEXT.finditer(expression)]
    found = [
        (match.start(), match[0], _OPERATORS[match[0].lower()])
        for match in _MISSPELT.finditer(expression)
        if not any(start <= match.start() < end for start, end in literals)
    ]
    for match in _UNQUOTED.finditer(expression):
        of, domain = match["kind"], match["domain"]
        names = {name for device in devices for where, name in _names(device, of) if where == domain}
        if names:
            found.append((match.start(), match[0], f'device.{of}["{domain}"]'))
    for match in _JOINED.finditer(expression):
        of, whole = match["kind"], _unquoted(match["whole"]) if match["whole"] else match["bare"]
        domain, _, name = whole.rpartition("/")
        places = {where for device in devices for where, one in _names(device, of) if one == name}
        where = domain if domain in places else min(places) if not domain and len(places) == 1 else ""
        is_domain = any(where == whole for device in devices for where, _ in _names(device, of))
        if where and not is_domain:
            found.append((match.start(), match[0], f'device.{of}["{where}"].{name}'))
    return _replaced(expression, sorted(found))


def conjuncts(expression: str) -> list[str]:
    """Return the parts of an expression that must all be true.

    An expression with `||` or `?` outside parentheses is a single part.
    """
    parts, depth, start, place = [], 0, 0, 0
    literals = {match.start(): match.end() for match in _ANY_TEXT.finditer(expression)}
    while place < len(expression):
        if place in literals:
            place = literals[place]
            continue
        one = expression[place]
        depth += (one in "([{") - (one in ")]}")
        is_choice = one == "?" and expression[place - 1 : place] not in {".", "["}
        if depth == 0 and (is_choice or expression.startswith("||", place)):
            return [expression]
        if depth == 0 and expression.startswith("&&", place):
            parts.append(expression[start:place].strip())
            start = place = place + 2
            continue
        place += 1
    return [*parts, expression[start:].strip()]


def optional(expression: str, devices: Sequence[PoolDevice]) -> Edit | None:
    """Return a version of an expression that has a value even for devices that lack an attribute, or None."""
    found = []
    for match in _PATH.finditer(expression[:_MAX_EDITED]):
        name, is_capacity = _unquoted(match["name"]), match["kind"] == "capacity"
        kinds = {"capacity"} if is_capacity else _kinds(name, devices)
        rest = expression[match.end() :].lstrip()
        if match["start"] == "." and not rest.startswith(".") and kinds <= _DEFAULTS.keys() and len(kinds) < 2:
            default = _DEFAULTS[next(iter(kinds), "string")]
            found.append((match.start(), match[0], f"{_map(match)}.?{name}.orValue({default})"))
    return _replaced(expression, found)


def with_other_values(expression: str, devices: Sequence[PoolDevice]) -> list[Edit]:
    """Return variants of an expression with values that devices have, most similar first."""
    if len(expression) > _MAX_EDITED:
        return []
    found: list[tuple[float, str, int, int]] = []
    values: dict[str, list[str]] = {}
    for match in _VALUED.finditer(expression):
        literal, name = match["literal"], _identifier(match["name"])
        text = _unquoted(literal)
        if name not in values:
            values[name] = sorted(dict.fromkeys(_values(name, devices)))[:_MAX_VALUES]
        others = values[name] if literal not in ("true", "false") else []
        found.extend(
            (-_likeness(text, value), value, *match.span("literal"))
            for value in others
            if value != text and not set(value) & set("\"'\\\n")
        )
    # each edit costs time and memory in proportion to the expression's length
    most = min(_MAX_EDITS, 1 + _MAX_EDITED // max(len(expression), 1))
    best = nsmallest(most, found)
    singles = [(_written(expression, start, end, value), start) for _, value, start, end in best]
    nearest: dict[int, list[tuple[str, str]]] = {}
    for (before, after), start in singles:
        nearest.setdefault(start, []).append((before, after))
    edits = [_replaced(expression, [(start, *texts)]) for texts, start in singles]
    places = sorted(nearest)
    for one, other in combinations(places[:_MAX_PLACES], 2):
        for first, second in product(nearest[one][:_MAX_TOGETHER], nearest[other][:_MAX_TOGETHER]):
            edits.append(_replaced(expression, [(one, *first), (other, *second)]))
    return [one for one in edits if one is not None]


def _written(expression: str, start: int, end: int, value: str) -> tuple[str, str]:
    """Return the literal between two positions, and a value in the literal's notation."""
    before = expression[start:end]
    return before, f"{before[0]}{value}{before[0]}" if before[0] in "\"'" else value


def unlike_types(expression: str, device: PoolDevice) -> Iterator[str]:
    """Yield a sentence for each comparison of a device attribute with a literal of a different type."""
    for match in _COMPARED.finditer(expression[:_MAX_EDITED]):
        for name, one in device.attributes.items():
            literal = "string" if match["right"][0] in "\"'" else _kind_of(match["right"])
            is_meant = name.rpartition("/")[2] == _identifier(match["name"]) and match["function"] is None
            if is_meant and one.kind != literal:
                example = f'semver("{one.values[0]}")' if one.kind == "version" else str(one)
                yield (
                    f"{name} of device {device.key} is {one}, {_WORDS.get(one.kind, 'a value')}, and {match['right']} "
                    f"is {_WORDS[literal]}: compare it with a value of the same type, such as {example}"
                )


def misplaced(expression: str, devices: Sequence[PoolDevice]) -> Iterator[str]:
    """Yield a sentence for each capacity that is looked up as an attribute, and vice versa."""
    for match in _PATH.finditer(expression[:_MAX_EDITED]):
        name, kind = _unquoted(match["name"]), match["kind"]
        own, other = ("an attribute", "a capacity")[:: 1 if kind == "attributes" else -1]
        others = "capacity" if kind == "attributes" else "attributes"
        has_own = any(identifier == name for one in devices for _, identifier in _names(one, kind))
        if not has_own and any(identifier == name for one in devices for _, identifier in _names(one, others)):
            values = ", ".join(dict.fromkeys(_values(name, devices)))
            yield f"{name} is {other}, not {own}; devices have {foreign_text(values, _MAX_WHOLE)}"


def wanted_drivers(expression: str) -> list[str]:
    """Return the drivers that an expression requires, or none if the expression contains a negation."""
    found = re.findall(rf"\bdevice\.driver\s*==\s*({_TEXT})", expression)
    return [] if re.search("!(?!=)", expression) else list(map(_unquoted, found))


def _replaced(expression: str, found: Sequence[tuple[int, str, str]]) -> Edit | None:
    """Return an expression with the given parts replaced, or None if `found` is empty."""
    text = expression
    for start, before, after in reversed(found):
        text = f"{text[:start]}{after}{text[start + len(before) :]}"
    return Edit(text, tuple(dict.fromkeys((before, after) for _, before, after in found))) if found else None


def _renamed(match: re.Match[str], known: Mapping[str, Sequence[tuple[str, str]]]) -> Iterator[tuple[int, str, str]]:
    """Yield a path with the domain, map or spelling that devices have, if no device has the given path.

    `known` contains the domains and names of attributes and of capacities.
    """
    kind, domain, name = match["kind"], _unquoted(match["domain"]), _unquoted(match["name"])
    if (domain, name) in known[kind]:
        return
    other = "capacity" if kind == "attributes" else "attributes"
    alike = {identifier.lower(): identifier for where, identifier in known[kind] if where == domain}
    close = get_close_matches(name.lower(), alike, n=1, cutoff=_LEAST_ALIKE)
    choices = [
        *((kind, where, name) for where, identifier in known[kind] if identifier == name),
        *((other, where, name) for where, identifier in known[other] if identifier == name),
        *((kind, domain, alike[one]) for one in close),
    ]
    for of, where, identifier in choices[:1]:
        quote = match["domain"][0]
        yield match.start(), match[0], f"device.{of}[{quote}{where}{quote}].{identifier}"


def _retyped(match: re.Match[str], kinds_of: Mapping[str, set[str]]) -> Iterator[tuple[int, str, str]]:
    """Yield a comparison with the type of the attribute or capacity. `kinds_of` maps names to types of attributes."""
    left, operator, right, inner = match["left"], match["operator"], match["right"], match["inner"]
    name, text = _identifier(match["name"]), _unquoted(right)
    kinds = {"capacity"} if left.startswith("device.capacity") else kinds_of.get(name, set())
    if len(kinds) != 1:
        return
    (kind,) = kinds
    after = ""
    is_text = right[0] in "\"'"
    if kind in ("int", "bool") and is_text and _kind_of(text) == kind:
        after = text
    elif kind == "string" and not is_text and inner is None and operator in ("==", "!="):
        after = f'"{right}"'
    if after:
        yield match.start("right"), right, after
    elif kind in ("capacity", "version") and (is_text or (inner is None) or operator not in ("==", "!=")):
        function = "quantity" if kind == "capacity" else "semver"
        value = inner or (right if is_text else f'"{right}"')
        yield match.start("left"), match[0], f"{left}.compareTo({function}({value})) {operator} 0"
    elif kind == "string" and match["function"] == "semver":
        yield match.start("left"), match[0], f"semver({left}).compareTo({right}) {operator} 0"


def _map(match: re.Match[str]) -> str:
    return f"device.{match['kind']}[{match['domain']}]"


def _unquoted(text: str) -> str:
    return text[1:-1] if text[:1] in ("'", '"') else text


def _identifier(name: str) -> str:
    return name.strip(".?[]\"' \n")


def _kind_of(literal: str) -> str:
    """Return the type of a literal without quotes."""
    return "bool" if literal in ("true", "false") else "int" if re.fullmatch(r"-?\d+", literal) else ""


def _names(device: PoolDevice, kind: str) -> Iterator[tuple[str, str]]:
    for name in device.attributes if kind == "attributes" else device.capacity:
        domain, _, identifier = name.rpartition("/")
        yield domain or device.key.driver, identifier


def _kinds(identifier: str, devices: Sequence[PoolDevice]) -> set[str]:
    """Return the types of an attribute."""
    return {one.kind for device in devices for one in _called(identifier, device)}


def _called(identifier: str, device: PoolDevice) -> Iterator[Attribute]:
    return (one for name, one in device.attributes.items() if name.rpartition("/")[2] == identifier)


def _values(identifier: str, devices: Sequence[PoolDevice]) -> Iterator[str]:
    """Yield the values of an attribute or a capacity in an expression's notation, without quotes."""
    for device in devices:
        for one in _called(identifier, device):
            yield from (str(value).lower() if isinstance(value, bool) else str(value) for value in one.values)
        for name, capacity in device.capacity.items():
            if name.rpartition("/")[2] == identifier:
                yield str(capacity.value)


def _likeness(one: str, other: str) -> float:
    """Return the similarity of two values: the ratio of two quantities, or otherwise the similarity of the letters."""
    with suppress(InvalidQuantityError):
        mine, its = Quantity.parse(one).nanos, Quantity.parse(other).nanos
        return min(mine, its) / max(mine, its, 1) if min(mine, its) >= 0 else 0.0
    return SequenceMatcher(None, one, other).ratio()
