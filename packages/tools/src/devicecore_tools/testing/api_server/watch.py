"""The events that a client gets when it watches objects.

Law: a watch sends the existing objects if the client requests them, then every later event that matches its selectors,
once and in order. If the history no longer reaches back far enough, the watch reports that and ends.
"""

import json
from collections.abc import Iterator, Mapping
from time import monotonic

from devicecore_tools.testing.api_server.list_options import is_set, number, wants_initial_events
from devicecore_tools.testing.api_server.operations import Target, selector_of, typed
from devicecore_tools.testing.api_server.served import ServedApi
from devicecore_tools.testing.api_server.status import ApiError, Json

_INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class Watch:
    """A single watch, from request to end. `generation` is the generation of watches at the time of the request.

    Raises:
        ApiError: the request is refused.
    """

    def __init__(self, api: ServedApi, target: Target, query: Mapping[str, str], generation: int) -> None:
        self._api = api
        self._target = target
        self._selector = selector_of(target, query)
        self._bookmarks = is_set(query, "allowWatchBookmarks")
        self._initial = wants_initial_events(query, is_served=api.serves_watch_list)
        self._version = number(query, "resourceVersion")
        self._seconds = number(query, "timeoutSeconds") or api.watch_seconds
        self._generation = generation
        self._is_late = api.is_stopping  # read after `generation`, because `stop` changes the two in the opposite order
        self._present: list[Json] = []
        if self._initial or not self._version:  # sent now, because a client may write as soon as it has the headers
            present, self._version = api.store.select(target.kind, target.namespace, self._selector)
            self._present = [] if self._initial is False else present

    @property
    def is_cut(self) -> bool:
        """Whether `cut_watches` was called after the watch was requested, or the server was already stopping."""
        return self._is_late or self._api.watch_generation != self._generation

    @property
    def last_words(self) -> bytes:
        """What an interrupted watch sends last: nothing, or half of an event."""
        line = json.dumps(self._bookmark()).encode()
        return line[: len(line) // 2] if self._api.cuts_lines else b""

    def events(self) -> Iterator[Json]:
        """Yield the events as they happen, until the timeout or until the watch is interrupted."""
        yield from (self._event("ADDED", value) for value in self._present)
        if self._initial and self._bookmarks:
            yield self._bookmark({_INITIAL_EVENTS_END: "true"})
        try:
            yield from self._later_events()
        except ApiError as error:
            yield {"type": "ERROR", "object": error.status}

    def _later_events(self) -> Iterator[Json]:
        store, kind, namespace = self._api.store, self._target.kind, self._target.namespace
        now = monotonic()
        end = next_bookmark = now + self._seconds
        if self._bookmarks:
            next_bookmark = now + self._api.bookmark_seconds
        while True:
            events, self._version = store.events_after(self._version, kind)
            for event in events:
                if namespace in (None, event.namespace) and (seen := event.seen_by(self._selector)):
                    yield self._event(*seen)
            now = monotonic()
            if self._bookmarks and now >= min(end, next_bookmark):
                yield self._bookmark()
                next_bookmark = now + self._api.bookmark_seconds
            if self.is_cut or now >= end:
                return
            store.wait_for(lambda: store.version > self._version or self.is_cut, min(end, next_bookmark) - now)

    def _event(self, kind: str, value: Json) -> Json:
        return {"type": kind, "object": typed(value, self._target)}

    def _bookmark(self, annotations: Mapping[str, str] = {}) -> Json:
        metadata: Json = {"resourceVersion": str(self._version)}
        if annotations:
            metadata["annotations"] = dict(annotations)
        return self._event("BOOKMARK", {"metadata": metadata})
