"""Random CEL expressions like those in DeviceClasses and claims; most are valid, and some are cut off or misspelled."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

Json = Any
DRIVER, OTHER, NONE = "gpu.example.com", "dra.net", "none.example.com"
DEVICES: Sequence[Json] = (
    {
        "attributes": {
            "model": {"string": "A100"},
            "index": {"int": 3},
            "ok": {"bool": True},
            "ver": {"version": "1.2.3"},
            "uuid": {"string": "GPU-1"},
            f"{OTHER}/rdma": {"bool": False},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:01"},
        },
        "capacity": {"memory": {"value": "40Gi"}, "cores": {"value": "8"}, f"{OTHER}/bw": {"value": "100M"}},
    },
    {
        "attributes": {
            "model": {"string": ""},
            "index": {"int": -1},
            "ok": {"bool": False},
            "ver": {"version": "2.0.0-rc.1"},
            "ip": {"string": "10.0.0.1"},
        },
        "capacity": {"memory": {"value": "1500M"}},
        "allowMultipleAllocations": True,
    },
    {},
)
"""Devices with different attributes and capacities."""

_DEFAULTS = {"model": "''", "index": "0", "ok": "false", "rdma": "false", "ver": "semver('0.0.0')"}


def expression(random: Random) -> str:
    """Return an expression. A few expressions are broken, and a few are not Boolean."""
    made = _Expressions(random)
    if random.random() < 0.03:
        return made.value()
    text = made.truth(random.choice((1, 2, 2, 3)))
    if random.random() > 0.06:
        return text
    cut = text[:-1], f"{text} &&", text.replace("device.", "dev.", 1), text.replace("==", "=", 1)
    return random.choice((*cut, text.replace("'", '"', 1), text.replace("attributes", "attribute", 1)))


class _Expressions:
    def __init__(self, random: Random) -> None:
        self._random = random

    def _one(self, *of: str) -> str:
        return self._random.choice(of)

    def _made(self, *of: Callable[[], str]) -> str:
        return self._random.choice(of)()

    def _domain(self) -> str:
        return self._one(DRIVER, DRIVER, DRIVER, OTHER, NONE, "resource.kubernetes.io")

    def _attribute(self, name: str = "") -> str:
        name = name or self._one("model", "model", "index", "ok", "ver", "uuid", "none", "rdma", "ip", "pcieRoot")
        domain, default = self._domain(), _DEFAULTS.get(name, "'x'")
        return self._one(
            f"device.attributes['{domain}'].{name}",
            f"device.attributes['{domain}'].{name}",
            f'device.attributes["{domain}"]["{name}"]',
            f"device.attributes['{domain}'].?{name}.orValue({default})",
            f"device.attributes[?'{domain}'].?{name}.orValue({default})",
            f"device.attributes['{domain}'].?{name}.hasValue()",
        )

    def _capacity(self) -> str:
        return f"device.capacity['{self._domain()}'].{self._one('memory', 'memory', 'cores', 'bw', 'none')}"

    def _text(self, depth: int) -> str:
        if depth <= 0:
            return self._one("'A100'", "'a'", "''", "'1.2.3'", "device.driver")
        method = self._one(".lowerAscii()", ".trim()", ".substring(0, 1)", ".replace('A', 'b')", ".charAt(0)")
        return self._made(
            lambda: self._one("'A100'", "'GPU-1'", "'pci0000:01'"),
            lambda: self._attribute("model"),
            lambda: self._attribute("model") + method,
            lambda: f"string({self._number(depth - 1)})",
            lambda: f"{self._text(depth - 1)} + {self._text(depth - 1)}",
            lambda: f"{self._text(depth - 1)}.split('0').join('-')",
        )

    def _number(self, depth: int) -> str:
        if depth <= 0:
            return self._one("0", "1", "3", "-1", "100")
        operator = self._one("+", "-", "*", "/", "%")
        return self._made(
            lambda: self._attribute("index"),
            lambda: f"size({self._text(depth - 1)})",
            lambda: f"{self._text(depth - 1)}.indexOf('1')",
            lambda: f"({self._number(depth - 1)} {operator} {self._number(depth - 1)})",
            lambda: f"{self._capacity()}.asInteger()",
            lambda: f"int({self._text(depth - 1)})",
            lambda: f"device.attributes['{self._domain()}'].size()",
            lambda: f"{self._attribute('ver')}.{self._one('major', 'minor', 'patch')}()",
            lambda: f"{self._capacity()}.compareTo({self._quantity()})",
        )

    def _quantity(self) -> str:
        return self._one(f"quantity('{self._one('1Gi', '40Gi', '1500M', '8', '0.5', 'x')}')", self._capacity())

    def _version(self) -> str:
        return self._one("semver('1.0.0')", "semver('1.2.3')", "semver('v1.2', true)", self._attribute("ver"))

    def _list(self, depth: int) -> str:
        return self._one(
            *("['A100', 'H100']", "[1, 2, 3]", "lists.range(3)", "[]", "['b', 'a'].sort()"),
            f"[{self._text(depth - 1)}, {self._text(depth - 1)}]",
            f"[{self._number(depth - 1)}]",
            f"{self._text(depth - 1)}.split('')",
            f"{self._text(depth - 1)}.findAll('[0-9]')",
        )

    def value(self) -> str:
        """Return an expression of any type."""
        one = self._made(
            lambda: self._text(1),
            lambda: self._number(1),
            lambda: self._list(1),
            self._quantity,
            self._version,
            lambda: self._one("1u", "1.5", "b'a'", "null", "duration('1s')", "ip('::1')", "cidr('::/0')", "type(1)"),
            lambda: self._one("device.attributes", "device.capacity", f"device.attributes['{DRIVER}'].?model"),
        )
        return self._one(one, one, f"[{one}]", f"{{'a': {one}}}", f"optional.of({one})")

    def truth(self, depth: int) -> str:
        """Return an expression that is true or false."""
        if depth <= 0:
            return self._one("true", "false", self._attribute("ok"), "device.allowMultipleAllocations")
        one, domain, below = self._one, self._domain(), depth - 1
        name, each = one("model", "index", "none"), one("x == 1", f"x == {self._text(0)}", "true", "x in [1, 2]")
        return self._made(
            lambda: f"{self._text(below)} {one('==', '!=')} {self._text(below)}",
            lambda: f"{self._number(below)} {one('==', '<', '>=', '!=')} {self._number(below)}",
            lambda: f"{self._attribute()} {one('==', '!=')} {self._attribute()}",
            lambda: f"{self.truth(below)} {one('&&', '||')} {self.truth(below)}",
            lambda: f"!({self.truth(below)})",
            lambda: f"({self.truth(below)} ? {self.truth(below)} : {self.truth(below)})",
            lambda: f"{self._capacity()}.{one('isGreaterThan', 'isLessThan')}({self._quantity()})",
            lambda: f"{self._capacity()} {one('==', '!=')} {self._quantity()}",
            lambda: f"{self._version()}.{one('isGreaterThan', 'isLessThan')}({self._version()})",
            lambda: f"{self._version()} == {self._version()}",
            lambda: f"{self._attribute('ver')} == '1.2.3'",
            lambda: f"'{name}' in device.attributes['{domain}']",
            lambda: f"'{domain}' in device.attributes",
            lambda: f"has(device.{one('attributes', 'capacity')}['{domain}'].{one('model', 'memory')})",
            lambda: f"{self._text(below)}.{one('startsWith', 'contains', 'matches')}('{one('A', '1', '^A.*0$')}')",
            lambda: f"{one(self._text(below), self._number(below))} in {self._list(depth)}",
            lambda: f"{self._list(depth)}.{one('exists', 'all', 'exists_one')}(x, {each})",
            lambda: f"{self._list(depth)}.{one('map(x, x)', 'filter(x, x != 1)')}.size() > 0",
            lambda: f"device.attributes['{domain}'].{one('exists', 'all')}(k, k == '{name}')",
            lambda: f"cidr('10.0.0.0/8').containsIP({one(self._attribute('ip'), repr('10.2.3.4'), repr('::1'))})",
            lambda: f"cel.bind(a, device.attributes['{domain}'], a.model == 'A100')",
            lambda: f"sets.contains({self._list(depth)}, {self._list(depth)})",
            lambda: f"{self._list(depth)}[0] == {self._text(0)}",
        )
