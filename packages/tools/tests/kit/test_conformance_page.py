"""The pages that `make docs` writes from the conformance checks."""

import re
from collections.abc import Sequence
from typing import Any

from devicecore_tools.conformance import Check
from devicecore_tools.conformance.device_plugin import CHECKS
from devicecore_tools.conformance.dra import CHECKS as DRA_CHECKS

from tools.conformance_documents import ROWS
from tools.make_conformance import pages

ALL: Sequence[Check[Any]] = (*CHECKS, *DRA_CHECKS)


def test_each_check_is_on_one_page_with_its_rule() -> None:
    entries = [
        entry.split("\n\n", 1)[0]
        for text in pages().values()
        for entry in re.split(r"^#{2,3} ", text, flags=re.MULTILINE)
        if "* Because: " in entry
    ]
    assert sorted(entries) == sorted(check.name for check in ALL)


def test_each_sentence_of_a_document_has_checks_that_exist_or_a_reason() -> None:
    known = {check.name for check in ALL}
    assert [
        row.sentence for row in ROWS if bool(row.checks) is bool(row.reason) or not known.issuperset(row.checks)
    ] == []


def test_each_check_says_what_it_does_what_it_expects_and_why() -> None:
    assert [check.name for check in ALL if not all((check.done, check.expected, check.clause))] == []
