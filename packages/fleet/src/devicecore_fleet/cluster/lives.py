"""Simulated behavior of a pod's containers, on request: exit with a code, crash repeatedly, never become ready.

Laws: a container's state at a given time depends only on its behavior, its start and that time, so a restart of the
node does not change the state. Containers restart as in a kubelet: the first time at once, then after 10 seconds, and
then after twice as long each time, up to five minutes. If a probe stops the container, the first two restarts come at
once, and a back-off counts from the container's previous exit. A run of more than ten minutes resets the back-off to 10
seconds.
"""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta

from attrs import evolve, field, frozen

from devicecore.domain.names import is_dns_label
from devicecore.domain.text import foreign_text

CONTAINERS = "devicecore.io/containers"
"""The annotation that defines the behavior of a pod's containers, such as `main: exit 1 after 5s; side: not-ready`."""

USAGE = (
    "`exit CODE [after TIME]`, `oom [after TIME]`, `start after TIME`, `not-ready`, `not-live after TIME`, "
    "`not-started after TIME` or `no-image`"
)

TERMINATED, KILLED = 143, 137  # exit codes after SIGTERM and SIGKILL
_FIRST_BACKOFF, _LONGEST_BACKOFF, _FORGIVEN = 10.0, 300.0, 600.0  # seconds (Go: `backOffPeriod`, `MaxContainerBackOff`)
_RELIST = 1.0  # seconds until a kubelet notices that a container has exited
_MAX_CODE, _MAX_PARTS, _MAX_TEXT = 255, 64, 4096
_WORDS = re.compile(r"(?:(exit) (\d{1,3})|(oom)|(start)|not-(live|started)|(not-ready)|(no-image))(?: after (\S+))?")
_PROBES = {"live": "liveness", "started": "startup"}
_TIME = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(h|ms|m|s)", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class BehaviorError(ValueError):
    """A string does not describe a behavior."""


@frozen
class Behavior:
    """The behavior of one container.

    Attributes:
        code: the container's exit code, or None if the container keeps running.
        lasts: seconds from the container's start to its exit.
        is_oom: whether the container is killed for using too much memory.
        probe: `liveness` or `startup` if the container is stopped because that probe fails, otherwise empty.
        starts_after: seconds from the start of the pod to the start of the container.
        is_unready: whether the container's readiness probe fails.
        has_no_image: whether the container's image cannot be pulled.
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
        """Why the container terminates, in the words of a container runtime."""
        return "OOMKilled" if self.is_oom else "Error" if self.code else "Completed"

    def final_end(self, *, restarts: bool) -> float | None:
        """Return the seconds from the start of the pod to the container's last exit, or None if there is none."""
        ends = self.code is not None and not restarts and not self.has_no_image
        return self.starts_after + self.lasts if ends else None


@frozen
class Ended:
    """One termination of a container."""

    code: int
    reason: str
    started: datetime
    ended: datetime


@frozen
class Life:
    """The state of a container at a given time.

    Attributes:
        waiting: the reason and the message if the container is waiting, otherwise None.
        started: when the container last started, if the container is running.
        ended: the container's last termination, if the container is not running.
        last: the termination before the current run, or before `ended`.
        restarts: how many times the container was restarted.
        is_ready: whether the container is running and no probe fails.
        is_starting: whether the container is running and its startup probe has not succeeded.
        until: when this state changes, or None if it stays.
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
        """Return the container's state after its pod was stopped."""
        if self.started is not None:
            reason = "Error" if code else "Completed"
            left = evolve(self, started=None, is_ready=False, is_starting=False, until=None)
            return evolve(left, ended=Ended(code, reason, self.started, now))
        return self if self.ended is None else evolve(self, waiting=None, until=None)

    @property
    def ends(self) -> int:
        """How many times the container has terminated."""
        return self.restarts + (self.ended is not None)

    @property
    def last_shown(self) -> Ended | None:
        """The termination that a status shows as the last state.

        For a waiting container, that is the latest termination.
        """
        return self.last if self.waiting is None else self.ended


def parse(text: str) -> Mapping[str, Behavior]:
    """Return the behaviors in an annotation by container name. An empty name means all other containers.

    Raises BehaviorError if the annotation contains anything other than behaviors.
    """
    found: dict[str, Behavior] = {}
    parts = [one.strip() for one in text.split(";") if one.strip()]
    if len(text) > _MAX_TEXT or len(parts) > _MAX_PARTS:
        raise BehaviorError(f"expected at most {_MAX_PARTS} parts and {_MAX_TEXT} characters")
    for part in parts:
        name, colon, words = part.rpartition(":")
        matched = _WORDS.fullmatch(words.strip())
        if matched is None or (colon and not is_dns_label(name.strip())):
            raise BehaviorError(f"expected {USAGE}, optionally after `CONTAINER:`, got {foreign_text(part, 100)!r}")
        found[name.strip()] = _with(found.get(name.strip(), Behavior()), matched, part)
    return found


def _with(before: Behavior, matched: re.Match[str], part: str) -> Behavior:
    is_exit, code, is_oom, is_start, probe, is_unready, has_no_image, after = matched.groups()
    seconds = _seconds(after)
    if seconds is None or ((is_start or probe) and after is None) or (after and (is_unready or has_no_image)):
        raise BehaviorError(
            "expected a time such as `after 5s` in exactly those behaviors that take one, got "
            f"{foreign_text(part, 100)!r}"
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
    """A container of a pod.

    Attributes:
        pod: the pod in a kubelet's notation: `NAME_NAMESPACE(UID)`.
        container: the name of the container.
        image: the container's image.
        restarts: whether the container is restarted after a termination.
    """

    pod: str
    container: str
    image: str = field(default="")
    restarts: bool = True


def life(behavior: Behavior, at: Place, began: datetime, now: datetime) -> Life:
    """Return the state of a container at the time `now`.

    Args:
        behavior: the container's behavior.
        at: the container, and the pod that it is in.
        began: when the pod started.
        now: the time at which the state is wanted.
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
            # A kubelet stops and restarts the container in one sync, so the back-off is based on the previous
            # termination (Go: `doBackOff`, which looks for an exited container).
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
            count = (now - start) // cycle - 1  # skip periods, so that an old pod costs no more than a young one
            start, restarts = start + count * cycle, restarts + count * times
            last = evolve(end, started=end.started + count * cycle, ended=end.ended + count * cycle)
    until = None if behavior.code is None else start + lasts
    is_starting = behavior.probe == _PROBES["started"]
    is_ready = not (behavior.is_unready or is_starting)
    return Life(started=start, last=last, restarts=restarts, is_ready=is_ready, is_starting=is_starting, until=until)


def _next_backoff(behavior: Behavior, backoff: float, restarts: int) -> float:
    """Return the next back-off in seconds, after `restarts` restarts."""
    if behavior.probe and restarts == 1:
        return 0.0  # no container had exited before
    if behavior.lasts > _FORGIVEN:
        return _FIRST_BACKOFF
    return min(backoff * 2 or _FIRST_BACKOFF, _LONGEST_BACKOFF)


def _cycle(behavior: Behavior, backoff: float) -> tuple[timedelta, int]:
    """Return the period with which the state repeats once the back-off is constant, and the restarts in a period."""
    if not behavior.probe:
        return timedelta(seconds=max(_RELIST, backoff) + behavior.lasts), 1
    if behavior.lasts >= backoff:
        return timedelta(seconds=behavior.lasts), 1
    return timedelta(seconds=backoff + 2 * behavior.lasts), 2  # the container waits only before every second run


def _without_image(at: Place, start: datetime, now: datetime) -> Life:
    why = f"no image: the annotation {CONTAINERS} says so"
    seen = start + timedelta(seconds=_RELIST)
    if now < seen:
        return Life(("ErrImagePull", why), until=seen)
    return Life(("ImagePullBackOff", f'Back-off pulling image "{at.image}": ErrImagePull: {why}'))


def _written(seconds: float) -> str:
    """Return a duration in Go's notation."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
