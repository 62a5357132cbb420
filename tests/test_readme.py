"""README and guides say what their examples print."""

import re
import tomllib
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.parametrize(("page", "prints"), [("README.md", 3), ("docs/tutorial.md", 11), ("docs/faults.md", 2)])
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
    variables = re.findall(r"# \{'([^']+)': 'gpu-0,gpu-1'\}", README.read_text(encoding="utf-8"))
    assert [re.fullmatch(r"[A-Z_][A-Z0-9_]*", name) is not None for name in variables] == [True]


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_the_readme_and_the_page_about_installing_list_each_extra(page: str) -> None:
    project = tomllib.loads((README.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    table = (README.parent / page).read_text(encoding="utf-8").partition("| extra |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == sorted(project["optional-dependencies"])


def test_each_guide_is_reached_from_the_readme() -> None:
    """The simulation is for those who change devicecore: CONTRIBUTING.md leads to it. A guide leads to its parts."""
    pages = (README, README.parent / "CONTRIBUTING.md")
    linked = {link for page in pages for link in re.findall(r"\bdocs/[\w-]+\.md\b", page.read_text(encoding="utf-8"))}
    assert {f"docs/{guide.name}" for guide in README.parent.glob("docs/*.md")} - linked == set()


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
