import threading

import pytest

from devicecore.runtime.open_call import OpenCall


def test_a_call_is_open_until_it_returns() -> None:
    def begin() -> OpenCall:
        call = OpenCall()
        assert not call.has_ended
        return call

    assert begin().has_ended


def test_a_call_that_raised_has_ended_although_its_traceback_is_kept() -> None:
    calls: list[OpenCall] = []

    def begin() -> None:
        calls.append(OpenCall())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        begin()
    assert caught.tb is not None
    assert calls[0].has_ended


def test_a_call_is_around_those_that_it_makes_and_no_others() -> None:
    call = OpenCall()
    seen: list[bool] = []

    def look() -> None:
        seen.append(call.encloses_caller)

    look()
    other = threading.Thread(target=look)
    other.start()
    other.join()
    assert seen == [True, False]
    assert not call.has_ended


def test_a_call_of_another_thread_is_open_while_it_waits() -> None:
    calls: list[OpenCall] = []
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        calls.append(OpenCall())
        begun.set()
        go_on.wait(60)

    thread = threading.Thread(target=wait)
    thread.start()
    assert begun.wait(60)
    assert not calls[0].has_ended
    go_on.set()
    thread.join()
    assert calls[0].has_ended
