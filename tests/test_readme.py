"""The README and the guides say what their examples print."""

import re
import tomllib
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.parametrize(("page", "prints"), [("README.md", 2), ("docs/tutorial.md", 11), ("docs/faults.md", 2)])
def test_the_examples_of_a_page_print_what_it_says(page: str, prints: int) -> None:
    text = (README.parent / page).read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    expected = re.findall(r"print\(.*\)  # (.*)", code)
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(code, page, "exec"), {})  # noqa: S102 - a page of this repository
    assert len(expected) == prints
    assert printed.getvalue().splitlines() == expected


def test_the_first_example_shows_a_variable_that_a_shell_can_use() -> None:
    variables = re.findall(r"# \{'([^']+)': 'gpu-0,gpu-1,gpu-2'\}", README.read_text(encoding="utf-8"))
    assert [re.fullmatch(r"[A-Z_][A-Z0-9_]*", name) is not None for name in variables] == [True]


def test_the_page_about_installing_lists_each_extra() -> None:
    project = tomllib.loads((README.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    table = (
        (README.parent / "docs" / "install.md")
        .read_text(encoding="utf-8")
        .partition("| extra |")[2]
        .partition("\n\n")[0]
    )
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == sorted(project["optional-dependencies"])


def test_the_list_of_pages_has_a_link_to_each() -> None:
    """The list leaves out parts of pages, and pages that are generated from docstrings and are only on the site."""
    docs = README.parent / "docs"
    linked = set(re.findall(r"\]\(([\w/-]+\.md)\)", (docs / "index.md").read_text(encoding="utf-8")))
    pages = [*docs.glob("*.md"), *docs.glob("maintain/*.md")]
    assert {str(page.relative_to(docs)) for page in pages} - linked == {"index.md"}
    assert "docs/index.md" in README.read_text(encoding="utf-8")


def test_no_guide_teaches_to_catch_every_exception() -> None:
    pages = [
        README,
        *README.parent.glob("docs/*.md"),
        *README.parent.glob("packages/tools/src/devicecore_tools/testing/examples/*.py"),
    ]
    caught = re.compile(r"except(\s+(Base)?Exception\b.*)?:")
    assert len(pages) > 10
    assert [page.name for page in pages if caught.search(page.read_text(encoding="utf-8"))] == []


def test_the_pictures_load_nothing() -> None:
    pictures = [*README.parent.glob("docs/**/*.svg")]
    assert len(pictures) > 3
    for picture in pictures:
        text = re.sub(r'xmlns(:\w+)?="[^"]*"|<!--.*?-->', "", picture.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.search(r"https?:|@import|@font-face", text), picture.name
