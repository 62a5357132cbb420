"""Quantities and names: random texts, most of them nearly right."""

import re
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
    """A text that is a quantity, or nearly one."""
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
    """Compare what a text is. D22: the forms of a text, and numbers that Go cannot hold."""
    text = case["text"]
    theirs = oracle.ask("quantity", case)
    try:
        read = Quantity.parse(text)
    except InvalidQuantityError:
        ours: Json = {"ok": False}
    else:
        whole, part = divmod(abs(read.nanos), 10**9)
        exact = f"{'-' if read.nanos < 0 else ''}{whole}.{part:09}"
        ours = {"ok": True, "text": str(read), "value": read.whole, "exact": exact, "int64": read.is_int64}
        if theirs["ok"]:
            theirs = {**theirs, "exact": _nanos(theirs["exact"])}
    lines = list(differences(ours, theirs))
    if not lines:
        return AGREED
    same = set[str]()
    if ours["ok"] and theirs["ok"]:
        same |= {"value"} if read.nanos < 0 or read.nanos > MAX_QUANTITY else set()
        same |= {"text"} if Quantity.parse(theirs["text"]).nanos == read.nanos else set()
    is_known = len(text) > MAX_QUANTITY_LENGTH or {**ours, **dict.fromkeys(same)} == {**theirs, **dict.fromkeys(same)}
    return Verdict("D22" if is_known else None, lines)


def _nanos(exact: str) -> str:
    """A decimal of Go with nine digits behind the point."""
    whole, _, part = exact.partition(".")
    return f"{whole}.{part:0<9}".removesuffix("0" * max(0, len(part) - 9))


def name(random: Random) -> Json:
    """A text that may be a name."""
    text = "".join(random.choice(PARTS) for _ in range(random.randint(0, 6)))
    return {"text": text[: random.choice((400, 63, 64, 253))]}


def judge_name(case: Json, oracle: Oracle) -> Verdict:
    """Compare what a text can be the name of."""
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
