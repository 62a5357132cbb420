"""House rules for this repository that no other tool checks.

Each test reads all files, and reports every violation as `file:line: text`.
"""

import ast
import gc
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from string import Formatter
from tomllib import loads
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    [
        *ROOT.glob("*.py"),
        *(
            path
            for folder in ("benchmarks", "docs", "packages", "src", "tests", "tools")
            for path in (ROOT / folder).rglob("*.py")
        ),
    ]
)
FOLDERS = ("tools", "numa", "fleet")
PACKAGES = (
    ROOT / "src" / "devicecore",
    *(ROOT / "packages" / name / "src" / f"devicecore_{name}" for name in FOLDERS),
)
TESTS = (ROOT / "tests", *(ROOT / "packages" / name / "tests" for name in FOLDERS))
GUIDES = sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "conformance")  # see `make docs`
PROJECTS = (ROOT, *(ROOT / "packages" / name for name in FOLDERS))
READMES = [folder / "README.md" for folder in PROJECTS]
PAGES = [*ROOT.glob("*.md"), *READMES[1:], *(ROOT / "peers").rglob("*.md")]
SOURCE_URL = loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]
PUBLISHED = re.compile(
    f"^{SOURCE_URL}/(blob|tree)/main/|^https://raw.githubusercontent.com{urlsplit(SOURCE_URL).path}/main/"
)
GLOSSARY = ROOT / "docs" / "glossary.md"
PEERS = [path for pattern in ("*.go", "*.md") for path in (ROOT / "peers").rglob(pattern)]
TEXTS = sorted([*SOURCES, *GUIDES, *PEERS, *ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"])

# Comments that switch off a check, and their required form: the name of the check, then the reason.
EXCUSES = {
    re.compile(r"#\s*type:\s*ignore"): re.compile(r"# type: ignore\[[a-z, -]+\]\s+# \S.+"),
    re.compile(r"#.*\bnoqa\b"): re.compile(r"# noqa: [A-Z]+\d+(, [A-Z]+\d+)*\s+[-#] \S.+"),
    re.compile(r"#\s*pragma:"): re.compile(r"# pragma: no (cover|branch)\s+[-#] \S.+"),
}

# Phrases that many sentences contained but that a native speaker would not write, each with a better one. The spelling
# is American, as in Kubernetes.
BETTER = {
    r"\banew\b(?![\"=:-]| =)": "again, over, or a verb such as recreate and rewrite",
    r"\b[Ii]n the place of\b": "in place of, or instead of",
    r"\b(plugins|drivers|programs) of others\b": "third-party plugins, drivers or programs",
    r"\bdevices of others\b": "each other's devices",
    r"[Cc]olour": "color",
    r"[Bb]ehaviour": "behavior",
    r"[Rr]ecognis": "recognize",
    r"[Nn]eighbour": "neighbor",
    r"\b[Ll]icence": "license",
    r"\bdial(led|ling)\b": "dialed, dialing",
    r"\bfor ever\b": "forever",
    r"; None if ": ", or None if",
    r"\b[Ss]omebody\b": "someone",
    r"\bin any case\b": "anyway, or regardless",
    r"\b(a check|checks) of severity (must|should|info)\b": 'a "must" check',
    r"\bin vain\b": "needlessly, or without success",
    r"\b(kubelet|API server) (is|was) away\b": "down, or unavailable",
    r"\b[Pp]lanted (fault|error|bug)s?\b": "injected faults",
    r"\b[Ff]oreign (string|object)s?\b": "untrusted string or object",
    r"\b(is|are|be) looked at\b": "checked, examined or read",
}

QUOTES = {"CHANGELOG.md", "cards.md"}
"""Pages whose wording is kept, because they record what a release could do or what programs printed."""

# A reference to a document of rules and its clauses, such as `kubelet.md 5.4` or `kubelet.md 5.5, 7.2`. If a document
# has parts, they are in the folder of the same name.
CITATION = re.compile(r"\b(kubelet[\w-]*\.md) (\d+(?:\.\d+)?(?:(?:, | and )\d+(?:\.\d+)?)*)")
CLAUSE = re.compile(r"^#+ (\d+(?:\.\d+)?)\b", re.MULTILINE)

WITH_LAW = re.compile(r'"""((?!""").)*?Law', re.DOTALL)  # matches the module's docstring without parsing the module


def is_below(path: Path, folders: Iterable[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def report(offenders: Iterable[object]) -> None:
    """Fail if there are offenders, and name all of them, one per line, because pytest would shorten a list."""
    lines = [str(offender) for offender in offenders]
    assert not lines, "\n".join(["", *lines])


def location(path: Path, line: int, text: str) -> str:
    return f"{path.relative_to(ROOT)}:{line}: {text}"


@cache
def with_parts(name: str) -> str:
    """Return the text of a guide and of its parts in the folder of the same name, or "" if there is no such guide."""
    guide = ROOT / "docs" / name
    return "\n".join(
        path.read_text("utf-8") for path in GUIDES if path == guide or path.parent == guide.with_suffix("")
    )


@cache
def tree_of(path: Path) -> ast.Module:
    gc.disable()  # no node of a tree is garbage, and a collection would visit them all
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.enable()


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line number and the text of each name in the code, but not in strings and comments."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from ((node.lineno, alias.name) for alias in aliases)
                yield node.lineno, getattr(node, "module", None) or ""
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.Name(id=name)
                | ast.Attribute(attr=name)
                | ast.arg(arg=name)
                | ast.ClassDef(name=name)
            ):
                yield node.lineno, name
            case _:
                pass


@cache
def identifiers_in(path: Path) -> tuple[tuple[int, str], ...]:
    return tuple(identifiers(tree_of(path)))


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def lines_with(pattern: re.Pattern[str], paths: Iterable[Path]) -> list[str]:
    r"""Return the lines in `paths` that `pattern` matches. This file is skipped, because it contains the patterns.

    To save seconds, each file is first searched as a whole, and without a `\b` at the beginning of the pattern.
    """
    somewhere = re.compile(pattern.pattern.removeprefix(r"\b"), re.MULTILINE)
    return [
        location(path, number, line.strip())
        for path in paths
        if path != Path(__file__) and somewhere.search(text_of(path))
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        if pattern.search(line)
    ]


def is_bare_excuse(text: str) -> bool:
    """Return whether a text switches off a check without naming both the check and a reason."""
    return any(silences.search(text) and not excuse.search(text) for silences, excuse in EXCUSES.items())


def comments_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line number and the text of each comment."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phrase", BETTER)
def test_a_phrase_that_nobody_would_say_has_a_better_one(phrase: str) -> None:
    found = lines_with(re.compile(phrase), (path for path in (*TEXTS, *PAGES) if path.name not in QUOTES))
    assert not found, f"write {BETTER[phrase]}:\n" + "\n".join(found)


# --- code -------------------------------------------------------------------------------------------------------------


def test_nothing_is_mocked_because_every_fake_is_an_adapter() -> None:
    report(
        location(path, line, name)
        for path in SOURCES
        if "mock" in path.read_text(encoding="utf-8").lower()  # parsing all tests would take seconds
        for line, name in identifiers_in(path)
        if re.search(r"(^|\.)mock|Mock", name)
    )


def test_the_library_waits_for_no_thread_to_begin_without_a_limit() -> None:
    library = ROOT / "src" / "devicecore"
    others = {library / "runtime" / "thread.py", *(library / "testing").rglob("*.py")}
    report(
        lines_with(re.compile(r"\bthreading\.Thread\("), [one for one in library.rglob("*.py") if one not in others])
    )


def test_a_check_that_is_switched_off_is_named_with_a_reason() -> None:
    report(
        location(path, line, comment)
        for path in SOURCES
        if any(is_bare_excuse(line) for line in path.read_text(encoding="utf-8").splitlines())
        for line, comment in comments_of(path)  # searching all files for comments takes seconds
        if is_bare_excuse(comment)
    )


def test_a_heading_of_a_section_stays_on_the_line_of_its_rule() -> None:
    report(lines_with(re.compile(r"^\s*# -{20,}$"), SOURCES))


def test_the_domain_and_the_ports_never_say_any() -> None:
    layers = [ROOT / "src" / "devicecore" / layer for layer in ("domain", "ports")]
    report(
        location(path, line, name)
        for path in SOURCES
        if is_below(path, layers) and "Any" in path.read_text(encoding="utf-8")
        for line, name in identifiers_in(path)
        if name == "Any"
    )


def test_the_text_of_an_error_names_its_own_fields() -> None:
    """`_text` is formatted only when the error is shown, so no type checker sees the names of fields in it."""
    report(
        location(path, text.lineno, f"{error.name}: {{{name}}}")
        for path in SOURCES
        if is_below(path, PACKAGES) and "    _text = " in path.read_text(encoding="utf-8")
        for error in ast.walk(tree_of(path))
        if isinstance(error, ast.ClassDef)
        for text in error.body
        if isinstance(text, ast.Assign) and ast.unparse(text.targets[0]) == "_text"
        for _, name, _, _ in Formatter().parse(ast.literal_eval(text.value))
        if name is not None
        and name not in [ast.unparse(one.target) for one in error.body if isinstance(one, ast.AnnAssign)]
    )


def test_every_module_states_its_law() -> None:
    """Packages, entry points, lists of messages (which have a stub) and examples for guides need no law."""
    report(
        path.relative_to(ROOT)
        for path in SOURCES
        if is_below(path, PACKAGES) and not path.stem.startswith("__") and path.parent.stem != "examples"
        if not path.with_suffix(".pyi").exists() and not WITH_LAW.match(path.read_text(encoding="utf-8"))
    )


# --- citations --------------------------------------------------------------------------------------------------------


def test_every_clause_that_is_cited_exists() -> None:
    cited = [
        (location(path, number, match.group()), match[1], clause)
        for path in TEXTS
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        for match in CITATION.finditer(line)
        for clause in re.split(r", | and ", match[2])
    ]
    assert len(cited) > 20
    report(where for where, guide, clause in cited if clause not in CLAUSE.findall(with_parts(guide)))


def test_every_difference_from_a_kubelet_that_is_cited_is_listed() -> None:
    listed = re.findall(r"^\| (D\d+) \|", with_parts("differences.md"), re.MULTILINE)
    assert listed == [f"D{number}" for number in range(1, len(listed) + 1)]
    report(sorted(set(re.findall(r"\bD\d+\b", with_parts("kubelet.md"))) - set(listed)))


def test_the_names_of_the_glossary_exist() -> None:
    rows = [line.split("|")[1] for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    sources = [path for path in SOURCES if is_below(path, PACKAGES)]
    assert len(named) > 50
    named -= {path.stem for path in sources} | {path.parent.stem for path in sources}
    for path in sources:
        if not named.isdisjoint(re.findall(r"\w+", path.read_text(encoding="utf-8"))):
            named -= {name for _, name in identifiers_in(path)}
    report(sorted(named))


# --- guides -----------------------------------------------------------------------------------------------------------


def anchors(guide: Path) -> set[str]:
    """Return the anchors that GitHub generates for the headings of a Markdown file."""
    headings = re.findall(r"^#+ (.*)$", guide.read_text(encoding="utf-8"), re.MULTILINE)
    return {"", *(re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings)}


def links_of(guide: Path) -> Iterator[tuple[Path, str]]:
    """Yield the file and the anchor of each link to a place in this repository, whether relative or absolute."""
    prose = re.sub(r"`[^`]*`", "", guide.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]*)\)|^\[[^\]]*\]: (\S+)$", prose, re.MULTILINE):
        place, _, anchor = "".join(link).partition("#")
        file = PUBLISHED.sub("", place)
        if file != place or not re.match(r"\w+:", place):
            yield (ROOT / file if file != place else guide.parent / (file or guide.name)), anchor


def test_each_page_says_in_its_first_lines_for_whom_it_is() -> None:
    pages = [page for page in GUIDES if page.is_relative_to(ROOT / "docs")]
    assert len(pages) > 50
    report(page.name for page in pages if not page.read_text(encoding="utf-8").split("\n\n")[1].startswith("For "))


def test_every_link_between_guides_leads_to_a_file_and_a_heading() -> None:
    links = [(guide, *link) for guide in (*GUIDES, *PAGES) for link in links_of(guide)]
    assert len(links) > 20
    assert {guide for guide, _, _ in links} >= set(READMES)
    report(f"{guide.name}: {target.name}" for guide, target, _ in links if not target.exists())
    report(
        f"{guide.name}: {target.name}#{anchor}"
        for guide, target, anchor in links
        if anchor and anchor not in anchors(target)
    )


def test_links_of_a_readme_are_relative_and_get_addresses_in_its_distribution() -> None:
    """A package index shows README.md, but no other file of this repository. `make dist` checks the wheels."""
    report(lines_with(re.compile(re.escape(SOURCE_URL)), READMES))
    for readme in READMES:
        project = loads((readme.parent / "pyproject.toml").read_text(encoding="utf-8"))
        text = readme.read_text(encoding="utf-8")
        for one in project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
            text = re.sub(one["pattern"], one["replacement"], text)
        links = re.findall(r"\]\(([^)]*)\)", text)
        assert links
        report(link for link in links if not (ROOT / PUBLISHED.sub("", link)).exists() or not PUBLISHED.match(link))


def test_the_repositorys_address_is_the_projects() -> None:
    """No file has an address other than the one in `[project.urls]`, so a fork can replace it everywhere."""
    urls = [loads((folder / "pyproject.toml").read_text("utf-8"))["project"]["urls"] for folder in PROJECTS]
    assert urls[0] == urls[1]
    owner, name = SOURCE_URL.split("/")[-2:]
    address = re.compile(
        rf"(?:githubusercontent\.com|github\.com|ghcr\.io)/([\w.-]+)/{name}\b|([\w-]+)\.github\.io/{name}\b"
    )
    others = [ROOT / "action.yml", *ROOT.glob("*.cff"), *(ROOT / ".github").rglob("*.*")]
    report(
        location(path, number, line)
        for path in (*TEXTS, *READMES, *others)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if name in line  # faster than a search with the pattern
        for match in address.finditer(line)
        if (match[1] or match[2]) != owner
    )


def test_each_page_of_the_site_is_in_its_contents_once() -> None:
    listed = [
        guide.parent / f"{entry}.md"
        for guide in GUIDES
        for block in re.findall(r"```\{toctree\}\n(?:.+\n)*\n((?:.+\n)*)```", guide.read_text(encoding="utf-8"))
        for entry in block.split()
        if "*" not in entry
    ]
    assert sorted([ROOT / "docs" / "index.md", *listed]) == GUIDES


def test_the_files_that_the_guides_name_exist() -> None:
    tops = (ROOT, *PACKAGES, *TESTS)
    named = [
        (guide.name, file)
        for guide in (*GUIDES, ROOT / "README.md", ROOT / "CONTRIBUTING.md")
        for file in re.findall(r"`((?:\w+/)+(?:\w+\.(?:py|toml)|(?=`)))", guide.read_text(encoding="utf-8"))
    ]
    assert len(named) > 50
    report((guide, file) for guide, file in named if not any((top / file).exists() for top in tops))


def test_the_targets_that_the_guides_name_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = [
        (page.name, target)
        for page in (*GUIDES, *PAGES)
        for target in re.findall(r"(?:`|^\$ )make ([a-z]+)\b", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(named) > 50
    report((page, target) for page, target in named if target not in targets)


def test_the_tests_that_the_guides_name_exist() -> None:
    named = [
        (guide, file, name)
        for guide in GUIDES
        for file, name in re.findall(
            r"`(?:packages/\w+/)?(?:tests/)?((?:\w+/)*test_\w+\.py)(?:::(\w+))?`", guide.read_text(encoding="utf-8")
        )
    ]
    assert len(named) > 50
    places = {file: [path for tests in TESTS if (path := tests / file).is_file()] for _, file, _ in named}
    report((guide.name, file) for guide, file, _ in named if not places[file])
    definition = re.compile(r"^ *(?:def|class) (\w+)", re.MULTILINE)
    defined = {file: set(definition.findall(path.read_text("utf-8"))) for file, (path,) in places.items()}
    report((guide.name, file, name) for guide, file, name in named if name and name not in defined[file])


@pytest.mark.parametrize(
    ("folder", "prefix"),
    [
        ("", ""),
        ("domain", ""),
        ("ports", ""),
        ("adapters", "adapters."),
        ("../../packages/tools/src/devicecore_tools", ""),
        ("../../packages/fleet/src/devicecore_fleet", ""),
    ],
)
def test_the_design_says_where_everything_is(folder: str, prefix: str) -> None:
    tables = [line for line in (ROOT / "docs" / "design.md").read_text("utf-8").splitlines() if line.startswith("| `")]
    named = set(re.findall(r"`([\w.]+)`", "\n".join(tables)))
    paths = (ROOT / "src" / "devicecore" / folder).glob("[!_]*")
    modules = {prefix + path.stem for path in paths if path.is_dir() or path.suffix == ".py"}
    assert modules - named <= {"adapters"}  # the table names each adapter instead of the package


def test_the_plugins_that_a_guide_has_people_write_are_annotated() -> None:
    guide = (ROOT / "docs" / "write-a-plugin.md").read_text(encoding="utf-8")
    trees = [ast.parse(block) for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL)]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert len(functions) > 2
    report(
        function.name
        for function in functions
        if function.returns is None or any(argument.annotation is None for argument in function.args.args[1:])
    )
