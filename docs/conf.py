"""How Sphinx builds the site (`make docs`): pages from the files next to this one, and a reference from docstrings.

Law: a type in a signature links to its description in the reference.
"""

import re
from pathlib import Path
from tomllib import loads

from docutils.nodes import Element, Text, TextElement, document, reference
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

ROOT = Path(__file__).parent.parent
SOURCE = loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]

project = "devicecore"
author = "The devicecore authors"
html_title = "devicecore"
html_theme = "furo"
html_theme_options = {"source_repository": f"{SOURCE}/", "source_branch": "main", "source_directory": "docs/"}
html_copy_source = False

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
myst_heading_anchors = 4  # those that GitHub makes
default_role = "code"  # docstrings have single backticks
autodoc_default_options = {"members": True, "undoc-members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # the attributes themselves are listed too


def lead_to_the_reference(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: TextElement
) -> Element | None:
    """Resolve a name that a signature gives by its defining module to the public module that exports it.

    Nothing is linked if two public modules document a class of that name.
    """
    if node.get("refdomain") != "py":
        return None
    python = env.domains.python_domain
    name = "." + node["reftarget"].rpartition(".")[2]
    documented = [full for full, entry in python.objects.items() if full.endswith(name) and entry.objtype in _TYPES]
    if len(documented) != 1:
        return None
    return python.resolve_xref(env, node["refdoc"], app.builder, "obj", documented[0], node, content)


_TYPES = {"class", "exception"}


def keep_colons(_app: Sphinx, what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Start an attribute's docstring with an empty comment, in which napoleon looks for `type: description`.

    Otherwise it would take the words before the first colon of the docstring for the type, and print them last.
    """
    if what in {"attribute", "data", "property"}:
        lines[:0] = ["..", ""]


def address_what_the_site_has_not(_app: Sphinx, page: str, source: list[str]) -> None:
    """Lead relative links to files outside `docs/`, which work in a clone and on a forge, to the repository."""
    folder = (ROOT / "docs" / page).parent

    def addressed(link: re.Match[str]) -> str:
        place, _, anchor = link[1].partition("#")
        target = (folder / place).resolve()
        if re.match(r"\w+:|$", place) or target.is_relative_to(ROOT / "docs"):
            return link[0]
        return f"]({SOURCE}/blob/main/{target.relative_to(ROOT)}{'#' * bool(anchor)}{anchor})"

    source[0] = re.sub(r"\]\(([^)\s]+)\)", addressed, source[0])


def keep_patterns(_app: Sphinx, _context: object, lines: list[str]) -> None:
    """Show the asterisk of a pattern in a command's help, which would otherwise start emphasis."""
    lines[:] = [re.sub(r"(?<=[-/])\*", r"\*", line) for line in lines]


def name_pages_by_their_titles(app: Sphinx, doctree: document, _page: str) -> None:
    """Show a page's title as the text of a link that gives its file name, which is what readers of the files see."""
    titles = {f"{page.rpartition('/')[2]}.md": title for page, title in app.env.titles.items()}
    for link in doctree.findall(reference):
        if link.astext() in titles:
            title = titles[link.astext()].astext().partition(":")[0]
            link.clear()
            link.append(Text(title))


def setup(app: Sphinx) -> None:
    """Connect what this file defines."""
    app.connect("missing-reference", lead_to_the_reference)
    app.connect("doctree-resolved", name_pages_by_their_titles)
    app.connect("source-read", address_what_the_site_has_not)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)  # before napoleon
    app.connect("sphinx-click-process-description", keep_patterns)
    app.connect("sphinx-click-process-options", keep_patterns)
