"""Kubernetes quantities: `2`, `500m`, `1.5Gi`, `3e2`.

Law: a string that `k8s.io/apimachinery` refuses is refused, and values are rounded away from zero: a tenth of a device
counts as one device. A string without digits, such as `Gi`, counts as 0, as in Go, unless Go would read the string as a
decimal.
"""

import re
from decimal import ROUND_CEILING, Context, Decimal
from functools import lru_cache
from typing import NamedTuple

from devicecore.domain.errors import InvalidQuantityError

MAX_QUANTITY = 2**63 - 1
"""The largest whole number that a quantity can have; `Quantity.whole` reduces larger numbers to this one."""

MAX_QUANTITY_LENGTH = 200
"""The maximum length of a quantity. The API server has no limit, but anything longer is a mistake or an attack."""

_QUANTITY = re.compile(r"([+-]?)([0-9]*(?:\.[0-9]*)?)(?:[eE]([+-]?[0-9]+)|([KEPTGM]i|[numkMGTPE]?))")
_TENS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_TWOS = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
# the maximum number of digits that can be written, and the number of digits in 2**60
_EXACT = Context(prec=MAX_QUANTITY_LENGTH + 20)
_NANO = 10**9
_KI = 1024
_MOST_DIGITS, _MOST_BINARY_DIGITS = 18, 14  # the maximum number of digits that Go parses without using a decimal
_INT_DIGITS = 9  # the maximum number of digits of an exponent: with more digits, every value is 0 or too large


class Quantity(NamedTuple):
    """An exact quantity: a whole number of billionths, and whether the quantity is written with `Ki`, `Mi` and so on.

    `is_int64` says whether Go keeps the quantity as a 64-bit integer, which depends on how it is written. CEL's
    `isInteger` returns `is_int64`.

    >>> str(Quantity.parse("1536Mi")), str(Quantity.parse("2048Mi")), str(Quantity.of(10**10, binary=True))
    ('1536Mi', '2Gi', '9765625Ki')
    >>> Quantity.parse("1500m").whole, Quantity.parse("2Ki").whole, Quantity.parse("1e3").whole
    (2, 2048, 1000)
    """

    nanos: int
    binary: bool = False
    is_int64: bool = True

    @classmethod
    @lru_cache(maxsize=1024)  # cached, because the pods of a node have the same few quantities
    def parse(cls, text: str) -> "Quantity":
        """Parse a quantity. Fractions of a billionth are rounded away from zero.

        Raises InvalidQuantityError if `text` is not a quantity.
        """
        matched = _QUANTITY.fullmatch(text) if 0 < len(text) <= MAX_QUANTITY_LENGTH else None
        if matched is None or abs(int(matched[3] or 0)) > MAX_QUANTITY:  # Go reads an exponent as a 64-bit number
            raise InvalidQuantityError(text[:MAX_QUANTITY_LENGTH])
        sign, number, exponent, suffix = matched.groups(default="")
        magnitude = _magnitude(number, exponent, suffix)
        has_few_digits, is_whole = _kept_as(number, exponent, suffix)
        if not has_few_digits and number in ("", "."):
            raise InvalidQuantityError(text)  # Go reads such a string as a decimal, which needs a digit
        if not has_few_digits and suffix in _TWOS:
            magnitude = min(magnitude, Decimal(MAX_QUANTITY))  # Go limits only the quantities that it keeps as decimals
        nanos = int(_EXACT.multiply(magnitude, _NANO).to_integral_value(ROUND_CEILING))
        is_int64 = has_few_digits and is_whole and nanos <= MAX_QUANTITY * _NANO
        return cls(-nanos if sign == "-" else nanos, suffix in _TWOS, is_int64)

    @classmethod
    def of(cls, whole: int, *, binary: bool) -> "Quantity":
        """Return an integer as a quantity."""
        return cls(whole * _NANO, binary)

    @property
    def whole(self) -> int:
        """The quantity rounded away from zero to a whole number (Go: `Quantity.Value`).

        In Go, numbers above `MAX_QUANTITY` overflow to arbitrary values.
        """
        whole = min(-(-abs(self.nanos) // _NANO), MAX_QUANTITY)
        return -whole if self.nanos < 0 else whole

    @property
    def is_whole(self) -> bool:
        """Whether the quantity, rounded to billionths as in Kubernetes, is an integer."""
        return self.nanos % _NANO == 0

    def __str__(self) -> str:
        """Return the quantity as an API server writes it: with the largest suffix that leaves a whole number."""
        number, step, suffixes = self.nanos, 1000, iter(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"))
        if self.binary and abs(number) >= _KI * _NANO and number % _NANO == 0:
            number, step, suffixes = number // _NANO, _KI, iter(("", *_TWOS))
        suffix = next(suffixes)
        for larger in suffixes if number else ():
            if number % step:
                break
            number, suffix = number // step, larger
        return f"{number}{suffix if number else ''}"


def _kept_as(number: str, exponent: str, suffix: str) -> tuple[bool, bool]:
    """Return whether Go keeps a quantity as an integer (`ParseQuantity`), and whether it looks like an integer."""
    whole, _, part = number.partition(".")
    digits = len(whole.lstrip("0") or "0") + len(part)
    if suffix in _TWOS:
        return not part and digits + _TWOS[suffix] * 3 // 10 <= _MOST_BINARY_DIGITS, True
    tens = (int(exponent[:_INT_DIGITS]) if exponent else _TENS[suffix]) - len(part)
    return digits <= _MOST_DIGITS and tens >= _TENS["n"], tens >= 0


def _magnitude(number: str, exponent: str, suffix: str) -> Decimal:
    value = _EXACT.multiply(Decimal(f"0{number}"), 2 ** _TWOS.get(suffix, 0))
    tens = int(exponent) if exponent else _TENS.get(suffix, 0)
    limit = 2 * MAX_QUANTITY_LENGTH  # beyond this exponent, every value is 0 or too large
    return value.scaleb(min(max(tens, -limit), limit), _EXACT)
