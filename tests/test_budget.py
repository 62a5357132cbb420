"""How many lines the repository has: a table of ceilings, so that growth is a decision and not an accident.

A room that has outgrown its ceiling fails here. First look for what can go: a mechanism that exists twice, a test of
what another one shows. If the lines earn their place, raise the ceiling in the commit that needs it, and say why there.
Lower it when a room shrinks by more than a tenth.
"""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIBRARY = ROOT / "src" / "devicecore"
TOOLS = ROOT / "packages" / "tools"
PURE = [LIBRARY / name for name in ("domain", "ports", "runtime", "manager", "dra_manager")]

CEILINGS = {
    "the library": (30_855, [LIBRARY]),
    "its pure part, the runtime and the managers": (14_090, PURE),
    "the library and the tools": (72_230, [LIBRARY, TOOLS / "src"]),
    "the tests of both": (54_920, [ROOT / "tests", TOOLS / "tests"]),
}


@pytest.mark.parametrize("room", CEILINGS)
def test_a_room_has_at_most_as_many_lines_as_it_may(room: str) -> None:
    ceiling, folders = CEILINGS[room]
    assert ceiling // 2 < sum(map(_lines, folders)) <= ceiling


def test_the_checks_of_conformance_need_little_harness_for_each_line() -> None:
    """Checks are the modules that make them. Harness is all else of conformance, and the API server for tests.

    That server has Kubernetes' own rules of server-side apply, 150 lines more than what they replaced.
    """
    package = TOOLS / "src" / "devicecore_tools"
    conformance = package / "conformance"
    checks = [conformance / "device_plugin" / "checks.py", conformance / "dra" / "checks"]
    number = sum(map(_lines, checks))
    harness = _lines(conformance) - number + _lines(package / "testing" / "api_server")
    assert 1 < harness / number < 1.93


def _lines(path: Path) -> int:
    files = path.rglob("*.py") if path.is_dir() else [path]
    return sum(len(one.read_bytes().splitlines()) for one in files)
