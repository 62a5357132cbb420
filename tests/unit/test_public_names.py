"""What `import devicecore` offers: `tests/data/public_names.txt` lists each public name with its signature.

After a wanted change, `python -m tests.unit.test_public_names` writes the list anew.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

from attrs import has

import devicecore
from devicecore.domain.node_state import NodeState

LIST = Path(__file__).parent.parent / "data" / "public_names.txt"
_ROOM = re.compile(r"\bdevicecore\.[a-z_.]+(?=[A-Z])|\bcollections\.abc\.|\btyping\.|\'")


class _Default:
    """Stands for any default, because some are long and some depend on the version of Python."""

    def __repr__(self) -> str:
        return "..."


def public_names() -> str:
    """Each name with its signature, and each class with its public attributes."""
    return "\n".join(line for name in devicecore.__all__ for line in _lines(name, getattr(devicecore, name))) + "\n"


def _lines(name: str, value: object) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"{name}{_signature(value)}" if inspect.isfunction(value) else f"{name} = {_ROOM.sub('', str(value))}"
        return
    bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
    made_by_others = (issubclass(value, Enum | Exception) and not has(value)) or Protocol in value.__bases__
    yield f"{name}{'' if made_by_others else _signature(value)}" + (f" is {bases}" if bases else "")
    for attribute, member in sorted(vars(value).items()):
        if not attribute.startswith("_"):
            function = getattr(member, "__func__", member)  # of a class method
            yield f"    .{attribute}{_signature(function) if inspect.isfunction(function) else ''}"


def _signature(value: Callable[..., object]) -> str:
    signature = inspect.signature(value)
    parameters = [
        one if one.default is one.empty else one.replace(default=_Default()) for one in signature.parameters.values()
    ]
    return _ROOM.sub("", str(signature.replace(parameters=parameters)))


def test_the_public_names_are_those_of_the_list() -> None:
    """A change of the public interface is a decision: the list changes with it, and CHANGELOG.md says it."""
    assert public_names() == LIST.read_text(encoding="utf-8")


def test_every_public_name_is_there() -> None:
    """Names are fetched when they are first used; sorted, and listed by `dir`."""
    assert sorted(devicecore.__all__) == devicecore.__all__
    assert set(devicecore.__all__) <= set(dir(devicecore))
    for name in devicecore.__all__:
        assert getattr(devicecore, name) is not None
    assert devicecore.NodeState is NodeState


def test_the_version_is_that_of_the_installed_package() -> None:
    assert devicecore.__version__ == version("devicecore")


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    assert not hasattr(devicecore, "DeviceManger")


if __name__ == "__main__":
    LIST.write_text(public_names(), encoding="utf-8")
