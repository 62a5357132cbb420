"""Quantities and names: random strings, most of them nearly valid."""

import re
from decimal import ROUND_UP, Decimal
from random import Random

from devicecore.domain import names
from devicecore.domain.errors import InvalidQuantityError
from devicecore.domain.model import is_extended_resource
from devicecore.domain.quantity import MAX_QUANTITY, MAX_QUANTITY_LENGTH, Quantity
from tests.oracle.asking import AGREED, Json, Oracle, Verdict, differences

SUFFIXES = ("", "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "K", "mi", "i")
EXPONENTS = ("e3", "E3", "e-3", "e+2", "e", "e0", "e18", "e19", "E-9", "e-10", "e1.5", "e99")
PARTS = (
    *("a", "z", "0", "9", "-", ".", "_", "/", "A", "Z", "example.com", "gpu", "kubernetes.io", "requests.", "v1"),
    *("example.com/", "1.2.3", "-alpha", "+build", "hugepages-", " ", "\n", "ä", "٣", "x" * 60, "y" * 62),
)


def quantity(random: Random) -> Json:
    """Return a valid or nearly valid quantity."""
    digits = "".join(random.choice("0123456789") for _ in range(random.choice((0, 1, 1, 2, 3, 5, 14, 15, 18, 19, 25))))
    part = "".join(random.choice("0012345") for _ in range(random.choice((0, 1, 3, 9, 10, 12))))
    number = digits + random.choice(("", "", f".{part}"))
    text = random.choice(("", "", "", "-", "+")) + number + random.choice((*SUFFIXES, *EXPONENTS))
    text = _disturbed(random, text, " .eEi+-0mKG٣")
    return {"text": re.sub("([eE][+-]?[0-9]{2})[0-9]+", r"\1", text)}  # Go needs seconds for large exponents


def _disturbed(random: Random, text: str, letters: str) -> str:
    if random.random() < 0.85:
        return text
    place = random.randint(0, len(text))
    return text[:place] + random.choice(letters) + text[place + random.choice((0, 1)) :]


def judge_quantity(case: Json, oracle: Oracle) -> Verdict:
    """Compare the value of a string, and its canonical form, which Go writes once it has dropped the original text.

    D22: differences are allowed for strings that are too long, in the suffix of a number with 21 or more zeros, and in
    the rounding of a negative decimal or of a number that Go cannot represent. In these cases of rounding, our value is
    compared with the exact decimal, rounded away from zero and clamped.
    """
    text = case["text"]
    theirs = oracle.ask("quantity", case)
    try:
        read = Quantity.parse(text)
    except InvalidQuantityError:
        ours: Json = {"ok": False}
    else:
        whole, part = divmod(abs(read.nanos), 10**9)
        exact = f"{'-' if read.nanos < 0 else ''}{whole}.{part:09}"
        ours = {"ok": True, "canonical": str(read), "value": read.whole, "exact": exact, "int64": read.is_int64}
        if theirs["ok"]:
            theirs = {**theirs, "exact": _nanos(theirs["exact"])}
    theirs.pop("text", None)
    if "canonical" in theirs:
        theirs = {**theirs, "canonical": _with_suffix(theirs["canonical"])}
    lines = list(differences(ours, theirs))
    if theirs["ok"]:
        theirs = {**theirs, "canonical": _with_lost_suffix(theirs["canonical"], theirs["exact"])}
    if not lines:
        return AGREED
    if len(text) > MAX_QUANTITY_LENGTH:
        return Verdict("D22" if not ours["ok"] else None, lines)
    if not (ours["ok"] and theirs["ok"]) or Quantity.parse(theirs["canonical"]).nanos == 0:
        return Verdict(None, lines)
    amount = Decimal(theirs["exact"])
    rounded = int(amount.to_integral_value(ROUND_UP))
    if abs(rounded) > MAX_QUANTITY or (amount < 0 and not theirs["int64"]):
        theirs |= {"value": min(max(rounded, -MAX_QUANTITY), MAX_QUANTITY)}
    return Verdict("D22" if ours == theirs else None, lines)


def _with_suffix(canonical: str) -> str:
    """Return a canonical form with a suffix instead of the exponent that Go keeps from the parsed string (D22)."""
    number, _, exponent = canonical.partition("e")
    tens = int(exponent or 0)
    return number + "0" * max(0, tens - 18) + _SUFFIX_OF[min(tens, 18)] if exponent else canonical


_SUFFIX_OF = dict(zip(range(-9, 19, 3), ("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), strict=True))


def _with_lost_suffix(canonical: str, exact: str) -> str:
    """Return a canonical form with the suffix that Go loses: `78000E` becomes `78`, because 10^21 has no suffix."""
    number = exact.partition(".")[0]
    zeros = len(number) - len(canonical)
    is_lost = zeros >= _FIRST_LOST and zeros % 3 == 0 and number == canonical + "0" * zeros
    return f"{canonical}{'0' * (zeros - 18)}E" if is_lost else canonical


_FIRST_LOST = 21


def _nanos(exact: str) -> str:
    """Return a decimal as written by Go with nine digits after the point."""
    whole, _, part = exact.partition(".")
    return f"{whole}.{part:0<9}".removesuffix("0" * max(0, len(part) - 9))


def name(random: Random) -> Json:
    """Return a string that may be a valid name."""
    text = "".join(random.choice(PARTS) for _ in range(random.randint(0, 6)))
    return {"text": text[: random.choice((400, 63, 64, 253))]}


def judge_name(case: Json, oracle: Oracle) -> Verdict:
    """Compare which kinds of names a string is."""
    text = case["text"]
    ours = {
        "dns_label": names.is_dns_label(text),
        "dns_subdomain": names.is_dns_subdomain(text),
        "label_value": names.is_label_value(text),
        "qualified_name": names.is_qualified_name(text),
        "semantic_version": names.is_semantic_version(text),
        "extended_resource": is_extended_resource(text),
    }
    lines = list(differences(ours, oracle.ask("name", case)))
    return Verdict(None, lines) if lines else AGREED
