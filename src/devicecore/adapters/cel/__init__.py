"""CEL evaluated by Google's C++ library, in the environment that Kubernetes provides for device selectors.

Laws: compiled expressions and their results are cached. Devices share a result only if they do not differ in anything
that the expression reads. A domain in which the device has no attributes is an empty map. Every evaluation is bounded
in memory and time: an expression that might need much memory or time is compiled and evaluated in a process with
limits.

The library visits at most 10,000 elements for one expression; Kubernetes allows more if each element costs little.
"""

import re
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache

from attrs import field, frozen

from devicecore.system.extras import needs_extra

with needs_extra("cel"):
    from cel_expr_python import cel

from devicecore.adapters.cel import functions, rewriting
from devicecore.adapters.cel.limited import LimitedProcess, NoProcessError, is_harmless
from devicecore.domain.allocation import EvaluationsGivenUpError, Features, PoolDevice, SelectorError
from devicecore.domain.allocation.model import Attribute
from devicecore.domain.checks import checked
from devicecore.domain.text import foreign_text
from devicecore.system.arguments import checks_arguments

__all__ = ["CelSelectors"]

MAX_EXPRESSION = 10 * 1024
"""The maximum length of an expression, as in the API."""

MAX_GROWTH = 10**5
"""The maximum factor by which additions in nested scopes may make a value longer than its parts."""

_LIBRARIES = """
extensions:
- {name: bindings}
- {name: optional}
- {name: sets}
- {name: lists}
- {name: two-var-comprehensions}
- {name: strings, version: 2}
"""
_MIXED_NUMBERS = re.compile(r":\d+:(\d+): [^:\n]* '_[<>]=?_' applied to '\((?:int|uint|double), (?:int|uint|double)\)'")
_NO_KEY = re.compile(r'NOT_FOUND: Key not found in map : "([^"]*)"')
_PLACE = re.compile(r"ERROR: <input>:(\d+):(\d+): ")
_MAX_VALUES = 10_000
"""The maximum number of values that are cached for one expression."""

_TOO_LONG = "Iteration budget exceeded"
"""The library's message about an expression that visits too many elements.

An expression that fails with this message is evaluated in pieces if it can be split.
"""

_TYPE_NAMES = frozenset(("kubernetes", ".", name) for name in (*functions.TYPES, "Value"))

_TYPE_WORD = re.compile(r"[\w.]+")
_GO_TYPES = {
    "NULL": "null_type",
    "DURATION": "google.protobuf.Duration",
    "TIMESTAMP": "google.protobuf.Timestamp",
    "kubernetes.IP": "net.IP",
    "kubernetes.CIDR": "net.CIDR",
}
"""Types whose names differ from Go's in more than case."""

_PLAIN_KINDS = frozenset({"int", "bool", "string"})

_SCOPES = frozenset(
    (
        *("all", "exists", "exists_one", "existsOne", "map", "filter", "bind", "optMap", "optFlatMap", "sortBy"),
        *("transformList", "transformMap", "transformMapEntry"),
    )
)


def _sentence(error: Exception) -> str:
    """Return an error from the library on one line, without the library's rendering of the expression."""
    lines = str(error).removeprefix("INVALID_ARGUMENT: ").splitlines()
    text = "; ".join(line for line in lines if not line.startswith(" | "))
    return foreign_text(_PLACE.sub(r"line \1, column \2: ", _in_go(text)))


def _in_go(text: str) -> str:
    """Return an error in the words of Kubernetes' library, because people search for that library's messages."""
    return _NO_KEY.sub(r"no such key: \1", text)


def _again(error: SelectorError) -> SelectorError:
    """Return a copy of an error, because a cached error would collect the tracebacks of all callers that raise it."""
    return SelectorError(error.problem, at_run_time=error.at_run_time)


def _type_name(kind: "cel.Type") -> str:
    """Return the name of a type as Kubernetes writes it: `list(int)`, where the library writes `LIST<INT>`."""

    def in_go(word: re.Match[str]) -> str:
        return _GO_TYPES.get(word[0], word[0].lower() if word[0].isupper() else word[0])

    return _TYPE_WORD.sub(in_go, kind.name()).replace("<", "(").replace(">", ")")


@frozen(eq=False)
class _Compiled:
    """An expression ready for use, with what is known about it.

    Attributes:
        expression: the compiled expression, or None if it is evaluated in a process with limits.
        pieces: the parts to evaluate one by one if the whole expression visits too many elements, or None if the
            expression cannot be split.
        reads: the attributes and capacities that the expression reads, or None if they are not known.
        values: the cached values and errors, by `key`.
    """

    expression: "cel.Expression"
    pieces: rewriting.Pieces | None
    reads: tuple[tuple[str, str, str], ...] | None
    values: dict[Hashable, "bool | SelectorError"] = field(factory=dict)

    def key(self, device: PoolDevice) -> Hashable:
        """Return a cache key: for all devices with the same key, the expression has the same value."""
        parts: list[Hashable] = [device.key.driver, device.is_shared]
        for where, domain, name in self.reads or ():
            found = device.attributes if where == "attributes" else device.capacity
            parts.append(found.get(f"{domain}/{name}"))
            if domain == device.key.driver:
                parts.append(found.get(name))
        return tuple(parts)


class CelSelectors:
    """Implements the port `Selectors`.

    An instance can be kept forever, because it remembers only the most recently used expressions.

    Args:
        features: the feature gates of the scheduler.
        is_limited: whether expensive expressions are evaluated in a process with limits.
        max_seconds: the time limit, in seconds, for all compilations and evaluations together, such as the time after
            which a scheduler gives up on a node. Use an instance with `max_seconds` for one question only: once the
            time is used up, asking for a value that is not yet known raises `EvaluationsGivenUpError`.
    """

    @checks_arguments()
    def __init__(
        self, features: Features = Features(), *, is_limited: bool = True, max_seconds: float | None = None
    ) -> None:
        self._max_seconds = max_seconds
        self._left = max_seconds or 0.0
        self._features = features
        self._ask = LimitedProcess(features).ask if is_limited else None
        checked, evaluated = functions.extensions()
        self._checking = self._make_environment(functions.QUANTITY, checked)
        self._environment = self._make_environment(functions.VALUE, evaluated)
        self._compiled = lru_cache(maxsize=1000)(self._compile)
        # Usually several expressions are evaluated for one device in a row.
        self._activation = lru_cache(maxsize=1)(self._make_activation)
        self._is_sound = lru_cache(maxsize=1)(self._has_sound_attributes)

    def __call__(self, expression: str, device: PoolDevice) -> bool:
        """Return whether an expression selects a device.

        Raises:
            SelectorError: the expression is not valid, or has no value for this device.
        """
        compiled = self._compiled(expression)
        if isinstance(compiled, SelectorError):
            raise _again(compiled)
        if compiled.reads is None or not self._is_sound(device):
            return self._evaluate(expression, compiled, device)
        key = compiled.key(device)
        known = compiled.values.get(key)
        if known is None:
            try:
                known = self._evaluate(expression, compiled, device)
            except (NoProcessError, EvaluationsGivenUpError):
                raise
            except SelectorError as error:
                known = _again(error)
            if len(compiled.values) == _MAX_VALUES:
                compiled.values.clear()
            compiled.values[key] = known
        if isinstance(known, SelectorError):
            raise _again(known)
        return known

    def _evaluate(self, text: str, compiled: _Compiled, device: PoolDevice) -> bool:
        """Return the value of an expression for a device. Raises SelectorError if the expression has no value."""
        with self._charged():
            if self._ask is not None and compiled.expression is None:
                return self._ask(text, device)
            try:
                return self._evaluate_whole(compiled, device)
            except SelectorError as error:
                if compiled.pieces is None or _TOO_LONG not in error.problem:
                    raise
            return self._evaluate_pieces(compiled.pieces, device)

    @contextmanager
    def _charged(self) -> Iterator[None]:
        """Charge the time of a `with` block to the shared limit. Raises EvaluationsGivenUpError if no time is left."""
        if self._max_seconds is None:
            yield
            return
        if self._left <= 0:
            raise EvaluationsGivenUpError(self._max_seconds)
        began = time.monotonic()
        try:
            yield
        finally:
            self._left -= time.monotonic() - began

    def _evaluate_whole(self, compiled: _Compiled, device: PoolDevice) -> bool:
        try:
            result = compiled.expression.eval(self._activation(device))
            value = result.value()
            kind = cel.Type.BOOL if isinstance(value, bool) else result.type()
        # some values cannot be converted between Python and C++
        except (RuntimeError, TypeError, UnicodeError) as error:
            raise SelectorError(_sentence(error)) from None
        if not isinstance(value, bool):
            problem = _in_go(str(value)) if kind == cel.Type.ERROR else f"expected a bool, got {_type_name(kind)}"
            raise SelectorError(foreign_text(problem))
        return value

    def _evaluate_pieces(self, pieces: rewriting.Pieces, device: PoolDevice) -> bool:
        """Combine the results of the pieces of an `all` or `exists` expression.

        An evaluation error counts only if no other piece decides the result.
        """
        failed = None
        for piece in pieces.parts:
            compiled = self._compile_tokens(piece, " ".join(piece))
            if isinstance(compiled, SelectorError):
                raise _again(compiled)
            try:
                if self._evaluate_whole(compiled, device) is pieces.is_exists:
                    return pieces.is_exists
            except SelectorError as error:
                failed = error
        if failed is not None:
            raise failed
        return not pieces.is_exists

    @checks_arguments()
    def check(self, expression: str) -> None:
        """Compile an expression.

        Raises:
            SelectorError: the expression is not valid.
        """
        if isinstance(compiled := self._compiled(expression), SelectorError):
            raise _again(compiled)

    def _make_environment(self, quantity: "cel.Type", extension: "cel.CelExtension") -> "cel.Env":
        text = cel.Type.STRING
        variables = {
            "device.driver": text,
            "device.attributes": cel.Type.Map(text, cel.Type.Map(text, cel.Type.DYN)),
            "device.capacity": cel.Type.Map(text, cel.Type.Map(text, quantity)),
            "device.allowMultipleAllocations": cel.Type.BOOL,  # regardless of a scheduler's feature gates
        }
        libraries = cel.NewEnvConfigFromYaml(_LIBRARIES)
        return cel.NewEnv(functions.POOL, config=libraries, variables=variables, extensions=[extension])

    def _compile(self, expression: str) -> "_Compiled | SelectorError":
        """Compile an expression. An error is returned instead of raised, so that it is cached, too."""
        with self._charged():
            return self._compile_now(expression)

    def _compile_now(self, expression: str) -> "_Compiled | SelectorError":
        if len(expression) > MAX_EXPRESSION:
            problem = f"expected at most {MAX_EXPRESSION} characters, got {len(expression)}"
            return SelectorError(problem, at_run_time=False)
        tokens = rewriting.tokens_of(expression)
        if self._ask is not None and not is_harmless(tokens):
            try:
                self._ask(expression, None)
            except NoProcessError:
                raise  # the error is not cached
            except SelectorError as error:
                return _again(error)
            return _Compiled(None, None, rewriting.reads(rewriting.written_out(tokens)))
        written = rewriting.written_out(tokens)
        return self._compile_tokens(written, expression if written == tokens else " ".join(written))

    def _compile_tokens(self, tokens: list[str], text: str) -> "_Compiled | SelectorError":
        """Compile tokens. Syntax errors refer to positions in `text`."""
        scopes, additions = sum(token in _SCOPES for token in tokens), tokens.count("+")
        if additions and (additions / max(scopes, 1) + 1) ** scopes > MAX_GROWTH:
            return SelectorError("its values could grow without bound", at_run_time=False)
        try:
            result, tokens = self._checked(tokens, text)
            problem = self._unlike(tokens)
            is_known = self._features.list_attributes or not rewriting.is_unknown_type(tokens)
            if not problem and (result not in (cel.Type.BOOL, cel.Type.DYN) or not is_known):
                problem = f"must evaluate to bool or the unknown type, not {_type_name(result)}"
            if problem := problem or self._failing_constant(tokens):
                return SelectorError(problem, at_run_time=False)
            expression = self._environment.compile(rewriting.for_evaluation(tokens))
            return _Compiled(expression, rewriting.pieces(tokens), rewriting.reads(tokens))
        except (RuntimeError, TypeError) as error:  # a TypeError is raised for strings that are not Unicode
            return SelectorError(_sentence(error), at_run_time=False)

    def _checked(self, tokens: list[str], text: str) -> "tuple[cel.Type, list[str]]":
        """Return the type of an expression, and the expression changed so that its numbers can be compared."""
        try:
            return self._checking.compile(text).return_type(), tokens
        except RuntimeError as error:
            if not (columns := set(map(int, _MIXED_NUMBERS.findall(str(error))))):
                raise
        if text != (joined := " ".join(tokens)):
            return self._checked(tokens, joined)
        mixed = rewriting.with_mixed_numbers(tokens, columns)
        return self._checking.compile(" ".join(mixed)).return_type(), mixed

    def _failing_constant(self, tokens: list[str]) -> str:
        """Return why a conversion or regular expression that Kubernetes evaluates at compile time fails, or ""."""
        for part in rewriting.constant_parts(tokens):
            value = self._environment.compile(part).eval(data={})
            if value.type() == cel.Type.ERROR:
                return foreign_text(f"{part}: {value.value()}")
        return ""

    def _unlike(self, tokens: list[str]) -> str:
        """Return why an expression that the library accepts is refused, or "" if it is not refused."""
        named = zip(tokens, tokens[1:], tokens[2:], strict=False)
        if "`" in tokens or not _TYPE_NAMES.isdisjoint(named):
            return "names in backquotes and type names such as kubernetes.Semver are not supported"
        apart = rewriting.with_literals_apart(tokens)
        try:
            if apart != tokens:
                self._checking.compile(" ".join(apart))
        except RuntimeError as error:
            if "'_+_'" in str(error):
                return "the elements of a list or a map have different types"
        if any(self._has_an_unknown_type(parts) for parts in rewriting.literals(tokens)):
            return "an element of a list has an unknown type, and another element has a known one"
        for argument in rewriting.formatted(tokens):
            try:
                if self._checking.compile(" ".join(argument)).return_type() == cel.Type.DYN:
                    return f"the type of a formatted value is not known: {foreign_text(''.join(argument))}"
            except RuntimeError:
                continue  # the argument contains a macro's variable
        return ""

    def _has_an_unknown_type(self, elements: list[list[str]]) -> bool:
        """Return whether some elements have a known type and other elements an unknown type."""
        if not any(token in ("device", "dyn") for one in elements for token in one):
            return False
        kinds = set()
        for one in elements:
            try:
                kinds.add(self._checking.compile(" ".join(one)).return_type() == cel.Type.DYN)
            except RuntimeError:
                return False  # the element contains a macro's variable
        return len(kinds) > 1

    def _make_activation(self, device: PoolDevice) -> "cel.Activation":
        driver = checked(device, PoolDevice, "CelSelectors: device").key.driver
        attributes: dict[str, dict[str, object]] = {}
        for name, attribute in device.attributes.items():
            domain, _, identifier = name.rpartition("/")
            attributes.setdefault(domain or driver, {})[identifier] = self._value(name, attribute)
        capacity: dict[str, dict[str, object]] = {}
        for name, one in device.capacity.items():
            domain, _, identifier = name.rpartition("/")
            capacity.setdefault(domain or driver, {})[identifier] = functions.quantity_message(one.value)
        variables: dict[str, object] = {
            "device.driver": driver,
            "device.attributes": attributes,
            "device.capacity": capacity,
            "device.allowMultipleAllocations": device.is_shared,
        }
        return self._environment.Activation(variables)

    def _has_sound_attributes(self, device: PoolDevice) -> bool:
        """Return whether each attribute has a value. An attribute without a value makes every expression fail."""
        checked(device, PoolDevice, "CelSelectors: device")
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
                values = [functions.version_message(str(value)) for value in values]
            except ValueError as error:
                message = f"attribute {name}: parse semantic version: {error}"
                raise SelectorError(message) from None
        return values if attribute.is_list else values[0]
