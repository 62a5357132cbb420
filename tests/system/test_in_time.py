"""Work that may never end."""

import threading

import pytest

from devicecore.system.in_time import in_time


def test_the_result_of_the_work_is_returned_and_its_error_raised() -> None:
    assert in_time(lambda: 1, 60) == 1
    with pytest.raises(ZeroDivisionError):
        in_time(lambda: 1 // 0, 60)


def test_work_that_does_not_end_is_given_up() -> None:
    end = threading.Event()
    with pytest.raises(TimeoutError):
        in_time(end.wait, 0.01)
    end.set()
