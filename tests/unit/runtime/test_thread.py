import threading

import pytest

from devicecore.runtime import thread
from devicecore.runtime.thread import Thread


class EndsBeforeItBegins(Thread):
    """A thread that ends early, like a thread whose first steps need more memory than there is."""

    def _bootstrap(self) -> None:
        """Do nothing."""


def test_a_start_ends_with_an_error_if_the_thread_ends_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread, "LIMIT", 1)
    with pytest.raises(RuntimeError, match=r"can't start new thread: it did not begin within 1 s"):
        EndsBeforeItBegins(target=print, name="ends", daemon=True).start()


def test_a_thread_runs_as_pythons_own_does() -> None:
    ran: list[str] = []
    started = Thread(
        target=lambda name: ran.append(f"{name} in {threading.current_thread().name}"), args=("a",), name="t"
    )
    started.start()
    started.join()
    assert ran == ["a in t"]
    assert not started.is_alive()
