from typing import Any

import pytest

from devicecore import Notification
from devicecore.runtime.observers import Observers


class Something:
    """A stand-in for a notification, because `Observers` does not read notifications."""


def test_an_observer_that_raises_is_logged_and_the_others_are_notified(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Notification) -> None:
        raise RuntimeError("no")

    heard: list[Any] = []
    notification: Any = Something()
    Observers([broken, heard.append]).notify([notification])
    assert heard == [notification]
    assert "failed on Something" in caplog.text


def test_without_observers_no_notification_is_created() -> None:
    def made() -> Any:  # noqa: ANN401 - as above
        raise AssertionError

    observers = Observers[Notification](())
    assert not observers.exist
    observers.notify(made() for _ in range(1))
