"""Runs the Python blocks of README.md and docs/ as tests; the blocks of one document share one namespace."""

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

pytest_plugins = ["devicecore.testing.pytest_plugin"]

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()],
    patterns=["README.md", "docs/*.md", "docs/**/*.md"],  # before Python 3.13, ** stands for exactly one folder
).pytest()
