"""The options of lists and watches: the starting version, and the initial events.

Law: an option that kube-apiserver honors is honored, and an option that it refuses is refused with the same message.
Only `limit` has no effect, so a list contains all objects, and no client gets a continue token.
"""

from collections.abc import Iterator, Mapping

from devicecore.domain.text import foreign_text
from devicecore_tools.testing.api_server import status
from devicecore_tools.testing.api_server.status import ApiError, Cause

_TRUE = ("1", "true")
_MATCHES = ("Exact", "NotOlderThan")
_OPTIONS = "ListOptions.meta.k8s.io"
_MATCH, _INITIAL = "resourceVersionMatch", "sendInitialEvents"

MAX_DIGITS = 18
"""The maximum number of digits of a number in a query, so that the number always fits into 64 bits."""


def number(query: Mapping[str, str], name: str) -> int:
    """Return the number in a parameter, or 0 if there is none. Raises ApiError if the parameter is not a number."""
    text = query.get(name) or "0"
    if not (text.isascii() and text.isdigit()) or len(text) > MAX_DIGITS:
        shown = foreign_text(text, 50)
        if name == "limit":
            raise status.bad_request(f'strconv.ParseInt: parsing "{shown}": invalid syntax')
        raise status.invalid_options(options="ListOptions", field=name, kind=f'Invalid value: "{shown}"')
    return int(text)


def is_set(query: Mapping[str, str], name: str) -> bool:
    """Return whether a parameter is present and true."""
    return query.get(name) in _TRUE


def check_list(query: Mapping[str, str], current: int) -> None:
    """Refuse a list that cannot be served at the requested version. `current` is the current version of the objects.

    Raises ApiError if the list is refused.
    """
    match, wanted = query.get(_MATCH, ""), number(query, "resourceVersion")
    number(query, "limit")
    _refuse_if([*_match_causes(query, match), *_list_causes(query, match, wanted)])
    if query.get("continue"):
        message = "continue key is not valid: this API server sends whole lists, without a token to continue with"
        raise status.bad_request(message)
    if wanted > current:
        raise status.too_large_version(wanted, current)
    if match == "Exact" and wanted < current:
        raise ApiError(410, "Expired", "The resourceVersion for the provided list is too old.")


def wants_initial_events(query: Mapping[str, str], *, is_served: bool) -> bool | None:
    """Return whether a watch starts with the existing objects, or None if the client does not say.

    Raises ApiError if the watch is refused. `is_served` is whether the server supports such watches.
    """
    match = query.get(_MATCH, "")
    if _INITIAL not in query:
        if match:
            _refuse_if([_forbidden(_MATCH, f"{_MATCH} is forbidden for watch unless {_INITIAL} is provided")])
        return None
    causes = []
    if match != "NotOlderThan":
        causes.append(_forbidden(_MATCH, f"{_INITIAL} requires setting {_MATCH} to NotOlderThan"))
    if not is_served:
        detail = f"{_INITIAL} is forbidden for watch unless the WatchList feature gate is enabled"
        causes.append(_forbidden(_INITIAL, detail))
    _refuse_if([*causes, *_match_causes(query, match)])
    return is_set(query, _INITIAL)


def _match_causes(query: Mapping[str, str], match: str) -> Iterator[Cause]:
    if match and query.get("continue"):
        yield _forbidden(_MATCH, f"{_MATCH} is forbidden when continue is provided")
    if match and match not in _MATCHES:
        known = ", ".join(f'"{one}"' for one in _MATCHES)
        shown = foreign_text(match, 50)
        yield Cause(_MATCH, f'Unsupported value: "{shown}"', f"supported values: {known}")


def _list_causes(query: Mapping[str, str], match: str, wanted: int) -> Iterator[Cause]:
    if match and not query.get("resourceVersion"):
        yield _forbidden(_MATCH, f"{_MATCH} is forbidden unless resourceVersion is provided")
    elif match == "Exact" and not wanted:
        yield _forbidden(_MATCH, f'{_MATCH} "exact" is forbidden for resourceVersion "0"')
    if _INITIAL in query:
        yield _forbidden(_INITIAL, f"{_INITIAL} is forbidden for list")


def _forbidden(option: str, detail: str) -> Cause:
    return Cause(option, "Forbidden", detail)


def _refuse_if(causes: list[Cause]) -> None:
    if causes:
        raise status.invalid(_OPTIONS, "", causes)
