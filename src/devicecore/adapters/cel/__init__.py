"""CEL by Google's C++ library, in the environment that Kubernetes gives to the selectors of devices.

Laws: an expression is compiled once. A domain that a device has no attributes of is an empty map. Every evaluation is
bounded: by the library in the elements that it visits, and here in the length of an expression and of what it makes.

The library visits at most 10,000 elements for one expression; Kubernetes allows more, if each costs little.
"""

import re
from functools import lru_cache

try:
    from cel_expr_python import cel
except ModuleNotFoundError as _error:
    _message = f"{_error}: install the extra `cel`: pip install 'devicecore[cel]'"
    raise ModuleNotFoundError(_message, name=_error.name) from None

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
    r"""|[bB]?(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|[A-Za-z_]\w*|\s+|."""
)
_MAPS = ("attributes", "capacity")
_RENAMED = {"replace": "bounded_replace", "join": "bounded_join"}
_SCOPES = frozenset(
    (
        *("all", "exists", "exists_one", "existsOne", "map", "filter", "bind", "optMap", "optFlatMap", "sortBy"),
        *("transformList", "transformMap", "transformMapEntry"),
    )
)


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

    def __call__(self, expression: str, device: PoolDevice) -> bool:
        """Return whether an expression selects a device.

        Raises:
            SelectorError: the expression is not valid, or has no value for this device.
        """
        compiled = self._compiled(expression)
        if isinstance(compiled, SelectorError):
            raise compiled
        try:
            result = compiled.eval(self._activation(device))
            value = result.value()
            kind = cel.Type.BOOL if isinstance(value, bool) else result.type()
        except (RuntimeError, TypeError, UnicodeError) as error:  # not each value has a form in both languages
            raise SelectorError(foreign_text(str(error))) from None
        if not isinstance(value, bool):
            problem = str(value) if kind == cel.Type.ERROR else f"expected a bool, got {kind.name()}"
            raise SelectorError(foreign_text(problem))
        return value

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

    def _compile(self, expression: str) -> "cel.Expression | SelectorError":
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
            if result not in (cel.Type.BOOL, cel.Type.DYN):
                problem = f"must evaluate to bool or the unknown type, not {result.name()}"
                return SelectorError(problem, at_run_time=False)
            return self._environment.compile("".join(_with_defaults(tokens)))
        except (RuntimeError, TypeError) as error:  # the second for texts that are no Unicode
            return SelectorError(foreign_text(str(error)), at_run_time=False)

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


def _closing(tokens: list[str], opening: int) -> int | None:
    """Return where the bracket ends that begins at `opening`."""
    depth = 0
    for index in range(opening, len(tokens)):
        depth += (tokens[index] in ("[", "(", "{")) - (tokens[index] in ("]", ")", "}"))
        if depth == 0:
            return index
    return None
