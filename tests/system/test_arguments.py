"""The checks of arguments against annotations, for each kind of annotation that a public function has."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from signal import SIGTERM, Signals
from typing import TYPE_CHECKING, Any, Literal, NewType, Protocol, TypeVar

import pytest
from attrs import frozen

from devicecore.domain.model import Health
from devicecore.system.arguments import checks_arguments, checks_fields

if TYPE_CHECKING:
    from devicecore.domain.model import Pod

Name = NewType("Name", str)
T = TypeVar("T")


class Port(Protocol):
    def call(self) -> None: ...


class Whole:
    """A whole number that is not an int, like those of NumPy."""

    def __index__(self) -> int:
        return 4


@checks_arguments("inside")
def called(
    count: int = 1,
    is_open: bool = False,  # noqa: FBT002 - a flag, as some functions have
    name: Name = Name("a"),
    path: str | os.PathLike[str] = "a",
    seconds: float = 1.0,
    requests_per_second: float | None = None,
    names: Sequence[str] = (),
    sizes: Collection[int] = (),
    limits: Mapping[str, int] = {},
    action: Callable[[], object] = print,
    health: Health = Health.HEALTHY,
    number: Signals = SIGTERM,
    now: float = 0.0,
    kind: Literal["a", "b"] = "a",
    number_or_text: int | str = 1,
    classes: Iterable[type] = (),
    inside: int = 1,
    anything: Any = None,  # noqa: ANN401 - it is checked, too
    port: Port | None = None,
    given: T | None = None,
) -> None:
    """Do nothing."""


CALLED: Any = called
MISTAKES: list[tuple[str, object, str]] = [
    ("count", "1", "expected int, got '1'"),
    ("count", None, "expected int, got None"),
    ("is_open", "no", "expected bool, got 'no'"),
    ("name", 7, "expected str, got 7"),
    ("path", b"a", "expected a path, such as a string, got b'a'"),
    ("seconds", "5s", "expected a number of seconds, got '5s'"),
    ("seconds", -1, "expected a non-negative number of seconds, got -1"),
    ("requests_per_second", "5", "expected a number, got '5'"),
    ("names", "abc", "expected several values, such as a tuple, got 'abc'"),
    ("names", [1], "expected str, got 1"),
    ("sizes", {"a"}, "expected int, got 'a'"),
    ("sizes", 4, "expected several values, such as a tuple, got 4"),
    ("limits", [("a", 1)], "expected a mapping, such as a dict, got [('a', 1)]"),
    ("action", "rm", "expected a function, got 'rm'"),
    ("health", True, "expected Health, got True"),
    ("number", "SIGTERM", "expected Signals, got 'SIGTERM'"),
    ("now", "1", "expected a number, got '1'"),
    ("kind", "c", "expected 'a' or 'b', got 'c'"),
    ("number_or_text", 1.5, "expected int or str, got 1.5"),
    ("classes", [1], "expected type, got 1"),
]


@pytest.mark.parametrize(("name", "value", "problem"), MISTAKES)
def test_an_argument_of_the_wrong_type_is_named(name: str, value: object, problem: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        CALLED(**{name: value})
    assert str(refused.value) == f"called: {name}: {problem}"


def test_each_of_several_arguments_is_checked() -> None:
    @checks_arguments()
    def several(*names: str) -> tuple[str, ...]:
        return names

    assert several("a", "b") == ("a", "b")
    wrong: Any = 7
    with pytest.raises(TypeError, match=r"^several: names: expected str, got 7$"):
        several("a", wrong)


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": Path("a"), "seconds": 0, "requests_per_second": 5, "names": ["a"], "limits": {"a": 1}, "action": dict},
        {
            "health": "Healthy",
            "number_or_text": "a",
            "inside": "checked by the function",
            "port": 7,
            "anything": called,
        },
        {"count": Whole(), "sizes": [Whole()], "number": 9, "now": -1.0},
        {"names": ("a",), "sizes": frozenset({1}), "given": called, "requests_per_second": None},
    ],
)
def test_what_may_be_right_is_accepted(arguments: Mapping[str, object]) -> None:
    CALLED(**arguments)


def test_an_iterator_is_left_for_the_function_to_read() -> None:
    @checks_arguments()
    def read(numbers: Iterable[int]) -> list[int]:
        return list(numbers)

    assert read(iter([1, 2])) == [1, 2]


def test_a_wrong_call_has_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'cuont'"):
        CALLED(cuont=1)


class Owner:
    @checks_arguments()
    def __init__(self, size: int) -> None:
        self.size = size

    @checks_arguments()
    def call(self, pod: "Pod", size: int) -> None:
        """Do nothing. The class Pod is not imported at run time, so only `size` is checked."""


class Heir(Owner):
    pass


@checks_fields
@frozen
class Value:
    size: int = 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Heir, "Heir: size: expected int, got 'x'"),
        (lambda wrong: Heir(1).call(wrong, wrong), "Heir.call: size: expected int, got 'x'"),
        (Value, "Value.size: expected int, got 'x'"),
    ],
)
def test_the_class_is_named_with_the_method_or_the_field(make: Callable[[Any], object], message: str) -> None:
    with pytest.raises(TypeError) as refused:
        make("x")
    assert str(refused.value) == message
