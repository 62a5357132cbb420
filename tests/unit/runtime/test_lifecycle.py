from devicecore.runtime.lifecycle import Lifecycle


def test_what_starts_or_stops_is_not_running_yet() -> None:
    lifecycle = Lifecycle("the object")
    seen: list[bool] = []

    def look() -> None:
        seen.append(lifecycle.is_running)

    look()
    lifecycle.start(look, look, after=look)
    look()
    lifecycle.stop(look)
    look()
    assert seen == [False, False, False, True, False, False]
