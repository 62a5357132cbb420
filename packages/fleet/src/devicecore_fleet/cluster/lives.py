"""What the containers of a pod would do, if a person says so: end with a code, crash again and again, never be ready.

Laws: How a container is at a time is a function of what it would do, of when it began, and of that time; so a node that
starts again shows what it would have shown. Restarts come as those of a kubelet: the first at once, then after 10
seconds, and each time after twice as long, up to five minutes. One that a probe has stopped starts again at once if it
had run for longer than its back-off.
"""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta

from attrs import evolve, field, frozen

from devicecore.domain.names import is_dns_label
from devicecore.domain.text import foreign_text

CONTAINERS = "devicecore.io/containers"
"""The annotation that says what the containers of a pod would do, such as `main: exit 1 after 5s; side: not-ready`."""

USAGE = (
    "`exit CODE [after TIME]`, `oom [after TIME]`, `start after TIME`, `not-ready`, `not-live after TIME`, "
    "`not-started after TIME` or `no-image`"
)

TERMINATED, KILLED = 143, 137  # by SIGTERM, by SIGKILL
_FIRST_BACKOFF, _LONGEST_BACKOFF, _FORGIVEN = 10.0, 300.0, 600.0  # seconds (Go: `backOffPeriod`, `MaxContainerBackOff`)
_RELIST = 1.0  # seconds in which a kubelet sees that a container has ended
_MAX_CODE, _MAX_PARTS, _MAX_TEXT = 255, 64, 4096
_WORDS = re.compile(r"(?:(exit) (\d{1,3})|(oom)|(start)|not-(live|started)|(not-ready)|(no-image))(?: after (\S+))?")
_PROBES = {"live": "liveness", "started": "startup"}
_TIME = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(h|ms|m|s)", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class BehaviorError(ValueError):
    """A string that says nothing that a container could do."""


@frozen
class Behavior:
    """What one container would do.

    Attributes:
        code: with which it ends, or None if it goes on.
        lasts: seconds from its start to its end.
        is_oom: whether it ends because it needed too much memory.
        probe: `liveness` or `startup` if it is stopped because that probe fails, else empty.
        starts_after: seconds from the start of the pod to that of the container.
        is_unready: whether its readiness probe fails.
        has_no_image: whether its image cannot be pulled.
    """

    code: int | None = None
    lasts: float = 0.0
    is_oom: bool = False
    probe: str = ""
    starts_after: float = 0.0
    is_unready: bool = False
    has_no_image: bool = False

    @property
    def reason(self) -> str:
        """Why it ends, as a runtime says it."""
        return "OOMKilled" if self.is_oom else "Error" if self.code else "Completed"

    def final_end(self, *, restarts: bool) -> float | None:
        """Return the seconds from the start of the pod to the last end of the container, or None if it never ends."""
        ends = self.code is not None and not restarts and not self.has_no_image
        return self.starts_after + self.lasts if ends else None


@frozen
class Ended:
    """An end of a container."""

    code: int
    reason: str
    started: datetime
    ended: datetime


@frozen
class Life:
    """How a container is at a time.

    Attributes:
        waiting: the reason and the message if it waits, else None.
        started: when it started last, if it runs.
        ended: its last end, if it does not run.
        last: the end before that.
        restarts: how often it was started again.
        is_ready: whether it runs, and no probe fails.
        is_starting: whether it runs, and its startup probe has not succeeded.
        until: when it is otherwise, or None if it stays so.
    """

    waiting: tuple[str, str] | None = None
    started: datetime | None = None
    ended: Ended | None = None
    last: Ended | None = None
    restarts: int = 0
    is_ready: bool = False
    is_starting: bool = False
    until: datetime | None = None

    def stopped(self, now: datetime, code: int) -> "Life":
        """Return how the container is after its pod was stopped."""
        if self.started is not None:
            reason = "Error" if code else "Completed"
            left = evolve(self, started=None, is_ready=False, is_starting=False, until=None)
            return evolve(left, ended=Ended(code, reason, self.started, now))
        return self if self.ended is None else evolve(self, waiting=None, until=None)

    @property
    def ends(self) -> int:
        """How often it has ended."""
        return self.restarts + (self.ended is not None)

    @property
    def last_shown(self) -> Ended | None:
        """The end that a status shows as the last state: while a container waits, that is its last one."""
        return self.last if self.waiting is None else self.ended


def parse(text: str) -> Mapping[str, Behavior]:
    """Return what an annotation says, by the names of containers; the name of those that it does not name is empty.

    Raises BehaviorError if it says anything else.
    """
    found: dict[str, Behavior] = {}
    parts = [one.strip() for one in text.split(";") if one.strip()]
    if len(text) > _MAX_TEXT or len(parts) > _MAX_PARTS:
        raise BehaviorError(f"expected at most {_MAX_PARTS} parts and {_MAX_TEXT} characters")
    for part in parts:
        name, colon, words = part.rpartition(":")
        matched = _WORDS.fullmatch(words.strip())
        if matched is None or (colon and not is_dns_label(name.strip())):
            raise BehaviorError(f"expected {USAGE}, perhaps after `CONTAINER:`, got {foreign_text(part, 100)!r}")
        found[name.strip()] = _with(found.get(name.strip(), Behavior()), matched, part)
    return found


def _with(before: Behavior, matched: re.Match[str], part: str) -> Behavior:
    is_exit, code, is_oom, is_start, probe, is_unready, has_no_image, after = matched.groups()
    seconds = _seconds(after)
    if seconds is None or ((is_start or probe) and after is None) or (after and (is_unready or has_no_image)):
        raise BehaviorError(
            f"expected a time such as `after 5s` where one is possible, got {foreign_text(part, 100)!r}"
        )
    if is_exit:
        if int(code) > _MAX_CODE:
            raise BehaviorError(f"expected an exit code of at most {_MAX_CODE}, got {code}")
        return evolve(before, code=int(code), lasts=seconds, is_oom=False, probe="")
    if is_oom:
        return evolve(before, code=KILLED, lasts=seconds, is_oom=True, probe="")
    if probe:
        return evolve(before, code=TERMINATED, lasts=seconds, is_oom=False, probe=_PROBES[probe])
    if is_start:
        return evolve(before, starts_after=seconds)
    return evolve(before, is_unready=True) if is_unready else evolve(before, has_no_image=True)


def _seconds(text: str | None) -> float | None:
    if text is None:
        return 0.0
    parts = _TIME.findall(text)
    if not parts or "".join(map("".join, parts)) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


@frozen
class Place:
    """Of which pod a container is.

    Attributes:
        pod: the pod, as a kubelet names it: `NAME_NAMESPACE(UID)`.
        container: the name of the container.
        image: its image.
        restarts: whether it is started again when it has ended.
    """

    pod: str
    container: str
    image: str = field(default="")
    restarts: bool = True


def life(behavior: Behavior, at: Place, began: datetime, now: datetime) -> Life:
    """Return how a container is at a time.

    Args:
        behavior: what it would do.
        at: of which pod it is.
        began: when its pod has started.
        now: the time.
    """
    start = began + timedelta(seconds=behavior.starts_after)
    if behavior.has_no_image:
        return _without_image(at, start, now)
    if now < start:
        return Life(("ContainerCreating", ""), until=start)
    last, backoff, waited, restarts = None, 0.0, 0.0, 0
    lasts = timedelta(seconds=behavior.lasts)
    while behavior.code is not None and start + lasts <= now:
        end = Ended(behavior.code, behavior.reason, start, start + lasts)
        if behavior.final_end(restarts=at.restarts) is not None:
            return Life(ended=end, last=last, restarts=restarts)
        seen, waits = end.ended + timedelta(seconds=_RELIST), backoff
        if behavior.probe:
            # One sync of a kubelet stops it and starts it again, so the back-off is that of its end before (Go:
            # `doBackOff`, which looks for a container that has exited).
            seen, waits = end.ended, backoff if waited + behavior.lasts < backoff else 0.0
        again = max(seen, end.ended + timedelta(seconds=waits))
        if now < seen:
            return Life(ended=end, last=last, restarts=restarts, until=seen)
        if now < again:
            text = f"back-off {_written(waits)} restarting failed container={at.container} pod={at.pod}"
            return Life(("CrashLoopBackOff", text), ended=end, last=last, restarts=restarts, until=again)
        last, start, waited, restarts, before = end, again, waits, restarts + 1, backoff
        backoff = _next_backoff(behavior, backoff, restarts)
        cycle, times = _cycle(behavior, backoff)
        if backoff == before and restarts > 1 and cycle * 2 < now - start:
            count = (now - start) // cycle - 1  # so that a pod of a year costs no more than one of an hour
            start, restarts = start + count * cycle, restarts + count * times
            last = evolve(end, started=end.started + count * cycle, ended=end.ended + count * cycle)
    until = None if behavior.code is None else start + lasts
    is_starting = behavior.probe == _PROBES["started"]
    is_ready = not (behavior.is_unready or is_starting)
    return Life(started=start, last=last, restarts=restarts, is_ready=is_ready, is_starting=is_starting, until=until)


def _next_backoff(behavior: Behavior, backoff: float, restarts: int) -> float:
    """Return the seconds of the next back-off, after so many restarts."""
    if behavior.probe and restarts == 1:
        return 0.0  # no container had exited before
    if behavior.lasts > _FORGIVEN:
        return _FIRST_BACKOFF
    return min(backoff * 2 or _FIRST_BACKOFF, _LONGEST_BACKOFF)


def _cycle(behavior: Behavior, backoff: float) -> tuple[timedelta, int]:
    """Return the time after which all is the same again if the back-off does not grow, and the restarts in it."""
    if not behavior.probe:
        return timedelta(seconds=max(_RELIST, backoff) + behavior.lasts), 1
    if behavior.lasts >= backoff:
        return timedelta(seconds=behavior.lasts), 1
    return timedelta(seconds=backoff + 2 * behavior.lasts), 2  # it waits each second time


def _without_image(at: Place, start: datetime, now: datetime) -> Life:
    why = f"no image: the annotation {CONTAINERS} says so"
    seen = start + timedelta(seconds=_RELIST)
    if now < seen:
        return Life(("ErrImagePull", why), until=seen)
    return Life(("ImagePullBackOff", f'Back-off pulling image "{at.image}": ErrImagePull: {why}'))


def _written(seconds: float) -> str:
    """Return a time as Go writes it."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
