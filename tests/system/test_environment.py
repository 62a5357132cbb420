"""The environment that child processes inherit."""

import os

import pytest

from devicecore.system.environment import inherited_environment


def test_a_variable_that_another_thread_removes_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"A": "1", "B": "2"}

    def decode(text: str) -> str:
        data.pop("B", None)  # as another thread may do after the names are read and before the values are
        return text

    monkeypatch.setattr(os, "environ", type(os.environ)(data, str, decode, str, decode))
    assert inherited_environment() == {"A": "1"}
