"""What no other tool checks about how this repository is written."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    [
        *ROOT.glob("*.py"),
        *(path for folder in ("benchmarks", "src", "tests", "tools") for path in (ROOT / folder).rglob("*.py")),
    ]
)

# A comment that switches a check off, and what it must look like: which check, then why.
EXCUSES = {
    re.compile(r"#\s*type:\s*ignore"): re.compile(r"# type: ignore\[[a-z, -]+\]\s+# \S.+"),
    re.compile(r"#.*\bnoqa\b"): re.compile(r"# noqa: [A-Z]+\d+(, [A-Z]+\d+)*\s+[-#] \S.+"),
    re.compile(r"#\s*pragma:"): re.compile(r"# pragma: no (cover|branch)\s+[-#] \S.+"),
}

every_source = pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of every name that code mentions; not what strings and comments say."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from ((node.lineno, alias.name) for alias in aliases)
                yield node.lineno, getattr(node, "module", None) or ""
            case (
                ast.FunctionDef(name=name)
                | ast.Name(id=name)
                | ast.Attribute(attr=name)
                | ast.arg(arg=name)
                | ast.ClassDef(name=name)
            ):
                yield node.lineno, name
            case _:
                pass


@every_source
def test_nothing_is_mocked_for_every_fake_is_an_adapter(path: Path) -> None:
    mentioned = identifiers(ast.parse(path.read_text(encoding="utf-8")))
    assert [(line, name) for line, name in mentioned if re.search(r"(^|\.)mock|Mock", name)] == []


@every_source
def test_whoever_silences_a_check_says_which_and_why(path: Path) -> None:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    comments = [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    assert [
        (line, comment)
        for line, comment in comments
        for silences, excuse in EXCUSES.items()
        if silences.search(comment) and not excuse.search(comment)
    ] == []


def test_no_public_class_name_exists_twice() -> None:
    """Generated protobuf messages have the API's names; they are in `.pyi` files, which are not read here."""
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        if path.is_relative_to(ROOT / "src"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(path.stem)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


@pytest.mark.parametrize("guide", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_the_tests_that_a_guide_names_exist(guide: Path) -> None:
    named = re.findall(r"`(?:tests/)?((?:\w+/)*test_\w+\.py)(?:::(\w+))?`", guide.read_text(encoding="utf-8"))
    assert [file for file, _ in named if not (ROOT / "tests" / file).is_file()] == []
    trees = {file: ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8")) for file in dict(named)}
    defined = {file: {"", *(name for _, name in identifiers(tree))} for file, tree in trees.items()}
    assert [(file, name) for file, name in named if name not in defined[file]] == []


@pytest.mark.parametrize(("folder", "prefix"), [("", ""), ("domain", ""), ("ports", ""), ("adapters", "adapters.")])
def test_the_design_says_where_everything_is(folder: str, prefix: str) -> None:
    tables = [line for line in (ROOT / "docs" / "design.md").read_text("utf-8").splitlines() if line.startswith("| `")]
    named = set(re.findall(r"`([\w.]+)`", "\n".join(tables)))
    paths = (ROOT / "src" / "devicecore" / folder).glob("[!_]*")
    rooms = {prefix + path.stem for path in paths if path.is_dir() or path.suffix == ".py"}
    assert rooms - named <= {"adapters"}  # whose rooms are named one by one


def test_the_plugins_that_a_guide_has_people_write_are_annotated() -> None:
    guide = (ROOT / "docs" / "write-a-plugin.md").read_text(encoding="utf-8")
    trees = [ast.parse(block) for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL)]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert len(functions) > 2
    assert [
        function.name
        for function in functions
        if function.returns is None or any(argument.annotation is None for argument in function.args.args[1:])
    ] == []


@pytest.mark.parametrize("layer", ["domain", "ports"])
def test_the_domain_and_the_ports_never_say_any(layer: str) -> None:
    paths = (path for path in SOURCES if path.is_relative_to(ROOT / "src" / "devicecore" / layer))
    mentioned = ((path, *name) for path in paths for name in identifiers(ast.parse(path.read_text(encoding="utf-8"))))
    assert [(path, line) for path, line, name in mentioned if name == "Any"] == []
