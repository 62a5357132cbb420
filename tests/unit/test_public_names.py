"""The public names of the library and the tools.

`tests/data/public_names.txt` lists the public names of each module, and `public_signatures.txt` beside it lists their
signatures.

docs/reference/public.md says which modules are public. After an intended change, `python -m
tests.unit.test_public_names` rewrites both files.
"""

import ast
import doctest
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from textwrap import fill
from types import GenericAlias, ModuleType, UnionType
from typing import NewType, Protocol, TypeVar

import pytest
from attrs import has

import devicecore
from devicecore.domain.node_state import NodeState
from tests.guides import forbid_private_modules

ROOT = Path(__file__).parent.parent.parent
LIST = ROOT / "tests" / "data" / "public_names.txt"
SIGNATURES = ROOT / "tests" / "data" / "public_signatures.txt"
_ROOM = re.compile(r"\bdevicecore(?:_tools)?\.[a-z_.]+(?=[A-Z])|\bcollections\.abc\.|\btyping\.|\b_local\.|\'")
_OPTIONAL = re.compile(r"\bOptional\[((?:[^][]|\[(?:[^][]|\[[^][]*\])*\])*)\]")  # before Python 3.14
_RAISED = re.compile(r"^ +(\w+): ", re.MULTILINE)
_RAISES = re.compile(r"^ *Raises:\n(.*?)(?:\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)


class _Default:
    """A stand-in for any default value, because some are long, and some depend on the Python version."""

    def __repr__(self) -> str:
        return "..."


@cache
def public_modules() -> Mapping[str, Mapping[str, object]]:
    """Return the modules that docs/reference/public.md calls public, with their public names and values."""
    section = (ROOT / "docs" / "reference" / "public.md").read_text(encoding="utf-8")
    found: dict[str, Mapping[str, object]] = {}
    for name in re.findall(r"`(devicecore(?:_tools)?(?:\.[\w.*]+)?)`", section):
        package = import_module(name.removesuffix(".*"))
        inside = pkgutil.iter_modules(package.__path__, f"{package.__name__}.") if name.endswith(".*") else ()
        for public in [one.name for one in inside] or [name]:
            found[public] = names_of(import_module(public))
    return found


def names_of(module: ModuleType) -> dict[str, object]:
    """Return a module's public names with their values: `__all__`, or its own names without a leading underscore."""
    names = getattr(module, "__all__", None) or sorted(_defined_in(module))
    values = {name: getattr(module, name) for name in names if not name.startswith("_")}
    return {name: value for name, value in values.items() if not isinstance(value, TypeVar)}


def _defined_in(module: ModuleType) -> Iterator[str]:
    for statement in ast.parse(inspect.getsource(module)).body:
        match statement:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case _:
                pass  # an import, a docstring, or a choice that depends on installed packages


def public_names() -> str:
    """Return the content of `public_names.txt`: the public names of each module."""
    paragraphs = (f"{module}: {', '.join(sorted(names))}" for module, names in public_modules().items())
    return "\n".join(fill(one, 120, subsequent_indent="  ", break_on_hyphens=False) for one in paragraphs) + "\n"


def public_signatures() -> str:
    """Return each name with its signature, and each class with its public attributes, by module."""
    homes: dict[int, str] = {}
    lines = []
    for module, names in public_modules().items():
        lines.append(f"{module}:")
        for name, value in names.items():
            home = homes.setdefault(id(value), module)
            lines += _lines(name, value) if home == module else [f"{name}: see {home}"]
        lines.append("")
    return "\n".join(lines)


def _lines(name: str, value: object) -> Iterator[str]:
    if not inspect.isclass(value) or isinstance(value, GenericAlias):
        if inspect.isfunction(value):
            yield f"{name}{_signature(value)}"
        elif isinstance(value, NewType | UnionType | GenericAlias):
            yield f"{name} = {_ROOM.sub('', str(value))}"
        else:
            yield f"{name}: {type(value).__name__}"
        return
    bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
    made_by_others = (issubclass(value, Enum | Exception | str) and not has(value)) or Protocol in value.__bases__
    yield f"{name}{'' if made_by_others else _signature(value)}" + (f" is {bases}" if bases else "")
    for attribute, member in sorted(_members(value).items()):
        if not attribute.startswith("_"):
            function = getattr(member, "__func__", member)  # the function of a class method
            yield f"    .{attribute}{_signature(function) if inspect.isfunction(function) else ''}"


def _members(cls: type) -> dict[str, object]:
    """Return what a class defines, and what it inherits from our base classes that are not public."""
    public = {id(value) for names in public_modules().values() for value in names.values()}
    ours = [base for base in cls.__mro__[1:] if base.__module__.startswith("devicecore") and id(base) not in public]
    return {name: member for base in (*reversed(ours), cls) for name, member in vars(base).items()}


def _signature(value: Callable[..., object]) -> str:
    signature = inspect.signature(value)
    parameters = [
        one if one.default is one.empty else one.replace(default=_Default()) for one in signature.parameters.values()
    ]
    return _OPTIONAL.sub(r"\1 | None", _ROOM.sub("", str(signature.replace(parameters=parameters))))


def raised_by(value: object) -> Iterator[str]:
    """Yield the names of the errors that a public function, or a method of a public class, documents."""
    for member in (value, *(vars(value).values() if inspect.isclass(value) else ())):
        function = getattr(member, "__func__", getattr(member, "fget", member))
        if callable(function) and not getattr(function, "__name__", "_").startswith("_"):
            for block in _RAISES.findall(inspect.getdoc(function) or ""):
                yield from _RAISED.findall(f"\n{block}")


def test_the_public_names_match_the_list() -> None:
    """A change to the public interface is a decision, so the list changes with it, and CHANGELOG.md mentions it."""
    assert public_names() == LIST.read_text(encoding="utf-8")
    assert public_signatures() == SIGNATURES.read_text(encoding="utf-8")


def test_the_examples_in_docstrings_are_true() -> None:
    sources = [path for folder in (ROOT / "src", ROOT / "packages" / "tools" / "src") for path in folder.rglob("*.py")]
    with_example = [path for path in sources if ">>> " in path.read_text(encoding="utf-8")]
    assert with_example
    for path in with_example:
        parts = path.with_suffix("").parts
        name = ".".join(parts[len(parts) - parts[::-1].index("src") :]).removesuffix(".__init__")
        found = doctest.testmod(import_module(name))
        assert (name, found.failed) == (name, 0)
        assert found.attempted


def test_every_error_that_a_public_function_raises_is_public() -> None:
    public = {name for names in public_modules().values() for name in names} | set(vars(__import__("builtins")))
    missing = {
        error: f"{module}.{name}"
        for module, names in public_modules().items()
        for name, value in names.items()
        for error in raised_by(value)
        if error not in public
    }
    assert missing == {}


def test_the_reference_describes_each_public_module_once() -> None:
    described = [
        module
        for page in (ROOT / "docs" / "reference").glob("*.md")
        for module in re.findall(r"^\.\. automodule:: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert sorted(described) == sorted(public_modules())


@pytest.mark.parametrize(
    "private",
    ["from devicecore.domain.model import Pod", "import devicecore.system.files", "from devicecore import wire"],
)
def test_a_guide_cannot_import_private_names(private: str) -> None:
    namespace: dict[str, object] = {}
    forbid_private_modules(namespace)
    exec("from devicecore import Pod\nfrom devicecore.plugins import simulated\nimport devicecore.dra", namespace)  # noqa: S102 - as a guide
    with pytest.raises(ImportError, match=r"public\.md says what is"):
        exec(private, namespace)  # noqa: S102 - as above


@pytest.mark.parametrize("module", ["devicecore", "devicecore.dra"])
def test_every_public_name_exists(module: str) -> None:
    """`__all__` is sorted, and `dir` lists all of its names."""
    names = import_module(module).__all__
    assert sorted(names) == names
    assert set(names) <= set(dir(import_module(module)))


def test_a_name_is_fetched_when_it_is_first_used() -> None:
    assert devicecore.NodeState is NodeState


def test_the_version_matches_the_installed_package() -> None:
    assert devicecore.__version__ == version("devicecore")


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    assert not hasattr(devicecore, "DeviceManger")


if __name__ == "__main__":
    LIST.write_text(public_names(), encoding="utf-8")
    SIGNATURES.write_text(public_signatures(), encoding="utf-8")
