"""CEL by Google's C++ library, in the environment that Kubernetes gives to the selectors of devices.

Laws: an expression is compiled once, and evaluated once for all devices that do not differ in what it reads. A domain
that a device has no attributes of is an empty map. Every evaluation is bounded: by the library in the elements that it
visits, and here in the length of an expression and of what it makes.

The library visits at most 10,000 elements for one expression; Kubernetes allows more, if each costs little.
"""

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

from attrs import field, frozen

from devicecore.system.extras import missing_extra

try:
    from cel_expr_python import cel
except ModuleNotFoundError as _error:
    raise missing_extra(_error, "cel") from None

from devicecore.adapters.cel.functions import POOL, QUANTITY, VALUE, extensions, quantity_message, version_message
from devicecore.domain.allocation import Features, PoolDevice, SelectorError
from devicecore.domain.allocation.model import Attribute
from devicecore.domain.text import foreign_text

MAX_EXPRESSION = 10 * 1024
"""Characters of an expression, as in the API."""

MAX_GROWTH = 10**5
"""How many times as long as its parts a value may become by additions in nested scopes."""

_LIBRARIES = """
extensions:
- {name: bindings}
- {name: optional}
- {name: sets}
- {name: lists}
- {name: two-var-comprehensions}
- {name: strings, version: 2}
"""
_TOKEN = re.compile(
    r"""(?s)//[^\n]*|[rRbB]{0,2}(?:\"\"\".*?\"\"\"|'''.*?''')|[bB]?[rR][bB]?(?:"[^"\n]*"|'[^'\n]*')"""
    r"""|[bB]?(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|[A-Za-z_]\w*|[0-9][\w.]*|\s+|."""
)
_LITERAL = re.compile(r"""(?s)[0-9].*|[rRbB]{0,2}["'].*""")
_PLAIN_TEXT = re.compile(r"""(["'])([^"'\\\n]*)\1""")
_PLACE = re.compile(r"ERROR: <input>:(\d+):(\d+): ")
_MAPS = ("attributes", "capacity")
_RENAMED = {"replace": "bounded_replace", "join": "bounded_join"}
_MAX_VALUES = 10_000
"""Values of one expression that are remembered."""

_TOO_LONG = "Iteration budget exceeded"
"""What the library says of an expression that visits too many elements. It is evaluated in pieces then."""

_GROUPS = 10
"""Groups into which a list is split."""

_MAX_PARTS = 50
_PLAIN_KINDS = frozenset({"int", "bool", "string"})
_VARIABLES = frozenset({"driver", "allowMultipleAllocations"})
_ENDS_BEFORE = ([], *([token] for token in "([&|?:,"))
_ENDS_AFTER = ([], *([token] for token in ")]&|?:,"))

_SCOPES = frozenset(
    (
        *("all", "exists", "exists_one", "existsOne", "map", "filter", "bind", "optMap", "optFlatMap", "sortBy"),
        *("transformList", "transformMap", "transformMapEntry"),
    )
)


def _sentence(error: Exception) -> str:
    """Return an error of the library in one line. Its drawing of the expression is left out."""
    lines = str(error).removeprefix("INVALID_ARGUMENT: ").splitlines()
    text = "; ".join(line for line in lines if not line.startswith(" | "))
    return foreign_text(_PLACE.sub(r"line \1, column \2: ", text))


@frozen
class _Pieces:
    """Expressions that together say what `[a, b].all(x, ...)` or `[a, b].exists(x, ...)` says."""

    texts: tuple[str, ...]
    is_exists: bool


@frozen(eq=False)
class _Compiled:
    """An expression ready for use, with what is known of it.

    Attributes:
        pieces: what to evaluate one by one if the library finds the whole one too long; None if it has no pieces.
        reads: the attributes and capacities that it reads; None if they are not known.
        values: known values.
    """

    expression: "cel.Expression"
    pieces: _Pieces | None
    reads: tuple[tuple[str, str, str], ...] | None
    values: dict[Hashable, "bool | SelectorError"] = field(factory=dict)

    def key(self, device: PoolDevice) -> Hashable:
        """Return what decides about the value for a device: the same for devices that have the same value."""
        parts: list[Hashable] = [device.key.driver, device.is_shared]
        for where, domain, name in self.reads or ():
            found = device.attributes if where == "attributes" else device.capacity
            parts.append(found.get(f"{domain}/{name}"))
            if domain == device.key.driver:
                parts.append(found.get(name))
        return tuple(parts)


class CelSelectors:
    """The port `Selectors`. One object may be kept for ever: it remembers the expressions used last.

    Args:
        features: the feature gates of the scheduler.
    """

    def __init__(self, features: Features = Features()) -> None:
        self._features = features
        checked, evaluated = extensions(lists=features.list_attributes)
        self._checking = self._make_environment(QUANTITY, checked)
        self._environment = self._make_environment(VALUE, evaluated)
        self._compiled = lru_cache(maxsize=1000)(self._compile)
        # A device is usually asked about several expressions, one after the other.
        self._activation = lru_cache(maxsize=1)(self._make_activation)
        self._is_sound = lru_cache(maxsize=1)(self._has_sound_attributes)

    def __call__(self, expression: str, device: PoolDevice) -> bool:
        """Return whether an expression selects a device.

        Raises:
            SelectorError: the expression is not valid, or has no value for this device.
        """
        compiled = self._compiled(expression)
        if isinstance(compiled, SelectorError):
            raise compiled
        if compiled.reads is None or not self._is_sound(device):
            return self._evaluate(compiled, device)
        key = compiled.key(device)
        known = compiled.values.get(key)
        if known is None:
            try:
                known = self._evaluate(compiled, device)
            except SelectorError as error:
                known = error
            if len(compiled.values) == _MAX_VALUES:
                compiled.values.clear()
            compiled.values[key] = known
        if isinstance(known, SelectorError):
            raise SelectorError(known.problem)
        return known

    def _evaluate(self, compiled: _Compiled, device: PoolDevice) -> bool:
        """Return the value of an expression for a device.

        Raises:
            SelectorError: it has none.
        """
        try:
            return self._evaluate_whole(compiled, device)
        except SelectorError as error:
            if compiled.pieces is None or _TOO_LONG not in error.problem:
                raise
        return self._evaluate_pieces(compiled.pieces, device)

    def _evaluate_whole(self, compiled: _Compiled, device: PoolDevice) -> bool:
        try:
            result = compiled.expression.eval(self._activation(device))
            value = result.value()
            kind = cel.Type.BOOL if isinstance(value, bool) else result.type()
        except (RuntimeError, TypeError, UnicodeError) as error:  # not each value has a form in both languages
            raise SelectorError(_sentence(error)) from None
        if not isinstance(value, bool):
            problem = str(value) if kind == cel.Type.ERROR else f"expected a bool, got {kind.name()}"
            raise SelectorError(foreign_text(problem))
        return value

    def _evaluate_pieces(self, pieces: _Pieces, device: PoolDevice) -> bool:
        """Return what pieces of `all` or `exists` say together: an error counts only if no other piece decides.

        Raises:
            SelectorError: it cannot be told.
        """
        failed = None
        for piece in pieces.texts:
            compiled = self._compile(piece)
            if isinstance(compiled, SelectorError):
                raise compiled
            try:
                if self._evaluate_whole(compiled, device) is pieces.is_exists:
                    return pieces.is_exists
            except SelectorError as error:
                failed = error
        if failed is not None:
            raise failed
        return not pieces.is_exists

    def check(self, expression: str) -> None:
        """Compile an expression.

        Raises:
            SelectorError: the expression is not valid.
        """
        if isinstance(compiled := self._compiled(expression), SelectorError):
            raise compiled

    def _make_environment(self, quantity: "cel.Type", functions: "cel.CelExtension") -> "cel.Env":
        text = cel.Type.STRING
        variables = {
            "device.driver": text,
            "device.attributes": cel.Type.Map(text, cel.Type.Map(text, cel.Type.DYN)),
            "device.capacity": cel.Type.Map(text, cel.Type.Map(text, quantity)),
        }
        if self._features.consumable_capacity:
            variables["device.allowMultipleAllocations"] = cel.Type.BOOL
        libraries = cel.NewEnvConfigFromYaml(_LIBRARIES)
        return cel.NewEnv(POOL, config=libraries, variables=variables, extensions=[functions])

    def _compile(self, expression: str) -> "_Compiled | SelectorError":
        """Return an expression ready for use, or what is wrong with it. Both are remembered."""
        if len(expression) > MAX_EXPRESSION:
            problem = f"expected at most {MAX_EXPRESSION} characters, got {len(expression)}"
            return SelectorError(problem, at_run_time=False)
        tokens = _TOKEN.findall(expression)
        scopes, additions = sum(token in _SCOPES for token in tokens), tokens.count("+")
        if additions and (additions / max(scopes, 1) + 1) ** scopes > MAX_GROWTH:
            return SelectorError("it could make values without a bound", at_run_time=False)
        try:
            result = self._checking.compile(expression).return_type()
            if problem := self._unlike(tokens):
                return SelectorError(problem, at_run_time=False)
            if result not in (cel.Type.BOOL, cel.Type.DYN):
                problem = f"must evaluate to bool or the unknown type, not {result.name()}"
                return SelectorError(problem, at_run_time=False)
            written = "".join(_with_defaults(_with_comparable_values(tokens)))
            return _Compiled(self._environment.compile(written), _pieces(_solid(tokens)), _reads(tokens))
        except (RuntimeError, TypeError) as error:  # the second for texts that are no Unicode
            return SelectorError(_sentence(error), at_run_time=False)

    def _unlike(self, tokens: list[str]) -> str:
        """Return what Kubernetes refuses in literals and the library does not: mixed types, and formats of any type."""
        apart = "".join(_with_literals_apart(tokens))
        try:
            if apart != "".join(tokens):
                self._checking.compile(apart)
        except RuntimeError as error:
            if "'_+_'" in str(error):
                return "the elements of a list or a map have different types"
        for argument in _formatted(tokens):
            try:
                if self._checking.compile(argument).return_type() == cel.Type.DYN:
                    return f"the type of what is formatted is not known: {foreign_text(argument)}"
            except RuntimeError:
                continue  # it has a variable of a macro
        return ""

    def _make_activation(self, device: PoolDevice) -> "cel.Activation":
        driver = device.key.driver
        attributes: dict[str, dict[str, object]] = {}
        for name, attribute in device.attributes.items():
            domain, _, identifier = name.rpartition("/")
            attributes.setdefault(domain or driver, {})[identifier] = self._value(name, attribute)
        capacity: dict[str, dict[str, object]] = {}
        for name, one in device.capacity.items():
            domain, _, identifier = name.rpartition("/")
            capacity.setdefault(domain or driver, {})[identifier] = quantity_message(one.value)
        variables: dict[str, object] = {
            "device.driver": driver,
            "device.attributes": attributes,
            "device.capacity": capacity,
        }
        if self._features.consumable_capacity:
            variables["device.allowMultipleAllocations"] = device.is_shared
        return self._environment.Activation(variables)

    def _has_sound_attributes(self, device: PoolDevice) -> bool:
        """Return whether each attribute has a value. One without makes every expression fail."""
        try:
            return all(one.kind in _PLAIN_KINDS or self._value(name, one) for name, one in device.attributes.items())
        except SelectorError:
            return False

    def _value(self, name: str, attribute: Attribute) -> object:
        if not attribute.kind or (attribute.is_list and not self._features.list_attributes):
            message = f"attribute {name}: unsupported attribute value"
            raise SelectorError(message)
        values: list[object] = list(attribute.values)
        if attribute.kind.startswith("version"):
            try:
                values = [version_message(str(value)) for value in values]
            except ValueError as error:
                message = f"attribute {name}: parse semantic version: {error}"
                raise SelectorError(message) from None
        return values if attribute.is_list else values[0]


def _reads(tokens: Sequence[str]) -> tuple[tuple[str, str, str], ...] | None:
    """Return map, domain and name of what an expression reads of a device. Return None if that cannot be told.

    It can if each of its uses of the device is `device.driver`, `device.attributes["domain"].name`, or the like.
    """
    solid = _solid(tokens)
    found = []
    for index in (index for index, token in enumerate(solid) if token == "device"):  # noqa: S105 - no password
        following = [token for token in solid[index + 1 : index + 10] if token != "?"]  # noqa: S105 - as above
        dot, what, opening, domain, closing, second, name, after, *_ = [*following, *[""] * 8]
        if dot == "." and what in _VARIABLES:
            continue
        text = _PLAIN_TEXT.fullmatch(domain)
        is_field = (dot, opening, closing, second) == (".", "[", "]", ".") and what in _MAPS and after != "("
        if not (is_field and text and name.isidentifier()):
            return None
        found.append((what, text[2], name))
    return tuple(dict.fromkeys(found))


def _solid(tokens: Iterable[str]) -> list[str]:
    return [token for token in tokens if not token.isspace() and not token.startswith("//")]


def _joined(solid: Iterable[str]) -> str:
    return "".join(" in " if token == "in" else token for token in solid)  # noqa: S105 - no password


def _pieces(tokens: list[str], depth: int = 2) -> _Pieces | None:
    """Return the pieces of `[a, b].all(x, ...)` or `[a, b].exists(x, ...)`. Return None of anything else."""
    end = _closing(tokens, 0) if tokens[:1] == ["["] and depth else None
    name, variable, *body = [*tokens[end + 2 : end + 3], *tokens[end + 4 : -1]] if end else ["", ""]
    is_whole = end and tokens[end + 3 : end + 4] == ["("] and _closing(tokens, end + 3) == len(tokens) - 1
    if name not in ("all", "exists") or not is_whole or end is None or body[:1] != [","]:
        return None
    edges = [0, *_commas(tokens, 0, end), end]
    elements = [_joined(tokens[a + 1 : b]) for a, b in pairwise(edges)]
    size = -(-len(elements) // _GROUPS)
    groups = [", ".join(elements[start : start + size]) for start in range(0, len(elements), size)]
    is_exists = name == "exists"
    inner = _pieces(body[1:], depth - 1)
    wanted = inner.texts if inner and inner.is_exists == is_exists else (_joined(body[1:]),)
    return _Pieces(tuple(f"[{group}].{name}({variable}, {one})" for group in groups for one in wanted), is_exists)


def _with_comparable_values(tokens: list[str]) -> list[str]:
    """Rewrite comparisons of an attribute with a literal so that a version beside a text is an error."""
    written = list(tokens)
    solid = [index for index, token in enumerate(tokens) if not token.isspace() and not token.startswith("//")]
    text = [tokens[index] for index in solid]
    for middle in range(1, len(text) - 2):
        if text[middle + 1] != "=" or text[middle] not in ("=", "!"):
            continue
        before = next((middle - size for size in (8, 11, 1) if _operand_size(text, middle - size) == size), None)
        size = _operand_size(text, middle + 2)
        after = middle + 2 + size
        if before is None or not size or "device" not in (text[before], text[middle + 2]):
            continue
        if text[before - 1 : before] in _ENDS_BEFORE and text[after : after + 1] in _ENDS_AFTER:
            left, right = "".join(text[before:middle]), "".join(text[middle + 2 : after])
            if text[middle + 2] == "[":
                value = "true" if text[middle] == "=" else "false"
                written[solid[before]] = f"(unlike_versions({left}, {right}) ? {value} : {written[solid[before]]}"
                written[solid[after - 1]] += ")"
            else:
                written[solid[before]] = f"(comparable({left}, {right}) ? {written[solid[before]]}"
                written[solid[after - 1]] += " : false)"
    return [part for token in written for part in (_TOKEN.findall(token) if "(" in token[1:] else [token])]


def _operand_size(text: Sequence[str], start: int) -> int:
    """Return of how many tokens an attribute, an element of one, or a literal is that begins here; 0 if none does."""
    if start < 0:
        return 0
    if _LITERAL.fullmatch(text[start]):
        return 1
    if text[start] == "[" and (end := _closing(text, start)) is not None:
        return end - start + 1
    dot, what, opening, domain, closing, second, name, *more = [*text[start + 1 : start + 11], *[""] * 10]
    found = text[start], dot, what, opening, closing, second
    if found != ("device", ".", "attributes", "[", "]", ".") or not _PLAIN_TEXT.fullmatch(domain):
        return 0
    if more[0] == "[" and more[1].isdigit() and more[2] == "]":
        return 11
    return 8 if name.isidentifier() and more[0] not in ("(", "[", ".") else 0


def _with_defaults(tokens: list[str]) -> list[str]:
    """Rewrite an expression so that a missing domain is an empty map, and that what texts can grow to is bounded."""
    written = [_RENAMED.get(token, token) if tokens[index - 1] == "." else token for index, token in enumerate(tokens)]
    solid = [index for index, token in enumerate(tokens) if not token.isspace() and not token.startswith("//")]
    for position, first in enumerate(solid):
        following = solid[position : position + 5]
        found = [tokens[index] for index in following]
        is_lookup = found[:2] == ["device", "."] and len(found) > 3 and found[2] in _MAPS and found[3] == "["  # noqa: PLR2004 - four tokens
        if not is_lookup or (position and tokens[solid[position - 1]] == "."):
            continue
        opening = following[3]
        closing = _closing(tokens, opening)
        if closing is None:
            continue
        if found[4:] == ["?"]:
            written[first] = "optional.of(" + written[first]
            written[closing] += ".orValue({}))"
        else:
            written[opening] += "?"
            written[closing] += ".orValue({})"
    return written


def _with_literals_apart(tokens: list[str]) -> list[str]:
    """Rewrite `[a, b]` as `([a] + [b])`, and maps alike, so that elements of two types are an error."""
    written = list(tokens)
    for opening, closing, before in _brackets(tokens):
        commas = list(_commas(tokens, opening, closing))
        parts = ["".join(tokens[a + 1 : b]).strip() for a, b in pairwise([opening, *commas, closing])]
        is_call = before.isidentifier() and before != "in"
        if is_call or before in (")", "]", "}") or _LITERAL.fullmatch(before) or not commas:
            continue
        if any(not part or part.startswith("?") for part in parts) or "".join(tokens[:opening]).endswith(".format("):
            continue
        first, between, last = ("([", "] + [", "])") if tokens[opening] == "[" else ("([{", "}] + [{", "}])[0]")
        written[opening], written[closing] = first, last
        known = {parts[0]}
        for comma, end, part in zip(commas, [*commas[1:], closing], parts[1:], strict=True):
            if part not in known and len(known) < _MAX_PARTS:
                written[comma] = between
            else:
                written[comma:end] = [""] * (end - comma)  # which has a type that was seen
            known.add(part)
    return written


def _formatted(tokens: list[str]) -> Iterator[str]:
    """Return what is formatted in lists that are arguments of `format`."""
    for opening, closing, _ in _brackets(tokens):
        if tokens[opening] == "[" and "".join(tokens[:opening]).endswith(".format("):
            edges = [opening, *_commas(tokens, opening, closing), closing]
            yield from filter(None, ("".join(tokens[a + 1 : b]).strip() for a, b in pairwise(edges)))


def _brackets(tokens: list[str]) -> Iterator[tuple[int, int, str]]:
    """Return where each `[` and `{` is, where it ends, and the token before it."""
    before = ""
    for opening, token in enumerate(tokens):
        if token in ("[", "{") and (closing := _closing(tokens, opening)) is not None:
            yield opening, closing, before
        if not token.isspace() and not token.startswith("//"):
            before = token


def _commas(tokens: list[str], opening: int, closing: int) -> Iterator[int]:
    depth = 0
    for index in range(opening + 1, closing):
        depth += (tokens[index] in ("[", "(", "{")) - (tokens[index] in ("]", ")", "}"))
        if tokens[index] == "," and depth == 0:
            yield index


def _closing(tokens: Sequence[str], opening: int) -> int | None:
    """Return where the bracket ends that begins at `opening`."""
    depth = 0
    for index in range(opening, len(tokens)):
        depth += (tokens[index] in ("[", "(", "{")) - (tokens[index] in ("]", ")", "}"))
        if depth == 0:
            return index
    return None
