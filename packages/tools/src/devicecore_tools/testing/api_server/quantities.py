"""Quantities of a Node's status, checked and written as an API server writes them.

Law: a quantity that a write does not change keeps its spelling.
"""

import re

from devicecore_tools.testing.api_server.status import Json, bad_request

_QUANTITY = re.compile(r"[+-]?[0-9.]+([eE][+-]?\d+|[numkMGTPE]|[KMGTPE]i)?")


def canonical_quantities(before: Json, after: Json) -> None:
    """Write the quantities of `after` that are not those of `before` in their canonical form, in place.

    Raises ApiError if one of them is no quantity.
    """
    for section in ("capacity", "allocatable"):
        old, new = ((of.get("status") or {}).get(section) or {} for of in (before, after))
        for name, value in new.items() if isinstance(new, dict) else ():
            if name in old and value == old[name]:
                continue
            if not _QUANTITY.fullmatch(str(value)):
                message = f"quantities must match the regular expression: {name}: {value!r}"
                raise bad_request(message)
            new[name] = canonical(value)


def canonical(quantity: object) -> object:
    """A whole number as an API server writes it, such as "4k" for 4000. Return anything else as it is."""
    if not re.fullmatch(r"\d{1,100}", str(quantity)):  # Python refuses to read thousands of digits
        return quantity
    number, suffix = int(str(quantity)), ""
    for larger in ("k", "M", "G", "T", "P", "E"):
        if not number or number % 1000:
            break
        number, suffix = number // 1000, larger
    return f"{number}{suffix}"
