"""Names from other programs, formatted for sentences.

Law: names are escaped, and long lists are cut off with a count.
"""

from collections.abc import Collection
from heapq import nsmallest

from devicecore.domain.device_set import natural_key
from devicecore.domain.text import counted, foreign_text

_MAX_NAMES = 5
_MAX_NAME = 100  # the maximum length at which the name of a device, pod or container is shown


def name(text: str) -> str:
    """Return a name in quotes, as findings show it."""
    return repr(foreign_text(text, _MAX_NAME)) if text else "''"


def names(ids: Collection[str]) -> str:
    """Return the first names in natural order, with the number of remaining names."""
    listed = ", ".join(foreign_text(one, _MAX_NAME) for one in nsmallest(_MAX_NAMES, ids, key=natural_key))
    return listed if len(ids) <= _MAX_NAMES else f"{listed} and {len(ids) - _MAX_NAMES:,} more"


def by_number(things: Collection[object], one: str, several: str) -> str:
    """Return the singular or plural form of a word, depending on the number of things."""
    return one if len(things) == 1 else several


def devices_of(ids: Collection[str], resource: str) -> str:
    """Return a phrase such as `2 devices of example.com/gpu (gpu-0, gpu-1)`."""
    which = f" ({names(ids)})" if ids else ""
    return f"{counted(len(ids), 'device')} of {foreign_text(resource, _MAX_NAME)}{which}"
