"""Tests in several processes (`-n 2`) have the same results as in a single process, and a dying process is noticed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import os, sys

def test_passes(tmp_path):
    tmp_path.rmdir()

def test_fails():
    print("what it printed")
    os.write(1, b"and wrote")
    assert "expected" == "got"
"""
OTHERS = """
import os, pytest

def test_is_skipped():
    pytest.skip("no reason")

@pytest.fixture(scope="session")
def broken():
    yield
    raise OSError("at the end")

def test_with_a_fixture(broken): ...

def test_dies():
    if "DIES" in os.environ:
        os._exit(0)
"""
APART = """
import os, time
from pathlib import Path
import pytest

@pytest.mark.apart
@pytest.mark.parametrize("number", range(2))
def test_is_in_one_of_two_processes(number):
    Path(f"{os.getpid()}.here").touch()
    end = time.monotonic() + 20
    while len(list(Path().glob("*.here"))) < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
"""


@pytest.mark.parametrize("dies", [False, True])
def test_all_reports_of_all_workers_are_printed(dies: bool, tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(TESTS)
    (tmp_path / "test_two.py").write_text(OTHERS)
    (tmp_path / "test_apart.py").write_text(APART)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])} | ({"DIES": ""} if dies else {})
    plugins = ("--disable-plugin-autoload", "-ptests.workers")
    command = [sys.executable, "-m", "pytest", *plugins, "-n2"]
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    if dies:
        assert "a worker died while running test_two.py::test_dies" in ran.stdout
        assert ran.returncode == pytest.ExitCode.INTERNAL_ERROR
        return
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 5 passed, 1 skipped, 1 error in" in ran.stdout, ran.stdout
    assert "what it printed\nand wrote" in ran.stdout
    assert "OSError: at the end" in ran.stdout


def test_tests_that_take_very_long_begin_first(request: pytest.FixtureRequest) -> None:
    """These are the tests with the mark `apart`. If they began last, the run would take longer."""
    apart = [number for number, test in enumerate(request.session.items) if test.get_closest_marker("apart")]
    assert apart == list(range(len(apart)))
