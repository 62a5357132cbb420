"""Build all distributions and try them: `python -m tools.make_dist [--no-try]` or `make dist`.

Wheels and source distributions are written to `dist/`. Then each Python on this machine installs the library alone,
with the CPU and memory managers, and with the tools, into empty environments outside the clone, and uses the packages
as a user would. To show that no compiler is needed, the newest versions of all dependencies are installed from wheels,
and then the lowest versions, with all extras.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from zipfile import ZipFile

from tools.matrix import EXTRAS, PROJECTS, lowest, pythons

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
WHEELS = ("--only-binary", ":all:")

_ADMISSION = "from devicecore_numa.managers import NumaAdmission; from devicecore_numa.domain.requests import read_pod"

_NO_TOOLS = """
tools = {"devicecore_tools", "click", "rich", "yaml"}
loaded = [name for name in sys.modules if name.split(".")[0] in tools]
assert not loaded, loaded
"""


def main() -> int:
    """Build and try the distributions. Return 1 if a distribution does not work."""
    shutil.rmtree(DIST, ignore_errors=True)
    for project in PROJECTS:
        run(sys.executable, "-m", "build", "--outdir", str(DIST), str(project))
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(DIST.iterdir())))
    for wheel in sorted(DIST.glob("*.whl")):
        relative = relative_links(wheel)
        if relative:
            print(f"== {wheel.name}: expected links with full URLs, got {', '.join(relative)}")
            return 1
    if "--no-try" in sys.argv[1:]:
        return 0
    at_hand = pythons()
    failed = [version for version, python in at_hand.items() if not is_good(python, version)]
    for minor in sorted(set(supported()) - {version.rpartition(".")[0] for version in at_hand}):
        print(f"== Python {minor} is not on this machine: checking that dependencies have wheels", flush=True)
        failed += [] if has_wheels(minor) else [minor]
    print(f"== failed with {', '.join(failed)}" if failed else "== all distributions work")
    return 1 if failed else 0


def is_good(python: str, version: str) -> bool:
    """Return whether the distributions can be installed and used with a Python interpreter."""
    library, numa, tools, fleet = wheels()
    sources = [str(path) for path in sorted(DIST.glob("*.tar.gz"))]
    program = readme_program() + _NO_TOOLS
    with tempfile.TemporaryDirectory(prefix="dc-dist-") as place:
        print(f"== Python {version}: the library", flush=True)
        alone = environment(python, Path(place) / "library", *WHEELS, str(library))
        (Path(place) / "program.py").write_text(f"import sys\n{program}", encoding="utf-8")
        print(f"== Python {version}: the library and the CPU and memory managers", flush=True)
        managers = environment(python, Path(place) / "managers", *WHEELS, str(library), str(numa))
        print(f"== Python {version}: the library and the tools", flush=True)
        both = environment(python, Path(place) / "both", *WHEELS, str(library), str(tools))
        (Path(place) / "lowest.txt").write_text("\n".join(lowest()), encoding="utf-8")
        bounded = ("--constraint", str(Path(place) / "lowest.txt"))
        everything = (f"{library}[{EXTRAS}]", str(numa), str(tools), str(fleet))
        old = environment(python, Path(place) / "old", *WHEELS, *bounded, *everything)
        built = environment(python, Path(place) / "sources", *sources)
        steps = [
            (alone / "python", "program.py"),
            (alone / "python", "-c", "import importlib.util as u; assert u.find_spec('devicecore_tools') is None"),
            (managers / "python", "-c", f"{_ADMISSION}; import sys\n{_NO_TOOLS}"),
            (both / "python", "program.py"),
            (both / "python", "-c", "import importlib.util as u; assert u.find_spec('devicecore_numa') is None"),
            (both / "devicecore", "--version"),
            (both / "devicecore", "demo", "--json"),
            (old / "python", "program.py"),
            (both / "python", "-c", "import importlib.util as u; assert u.find_spec('devicecore_fleet') is None"),
            (old / "devicecore", "demo", "--json"),
            (old / "python", "-c", _ADMISSION),
            (old / "devicecore", "fleet", "shapes"),
            (built / "devicecore", "fleet", "shapes"),
            (built / "devicecore", "--version"),
        ]
        return all(
            subprocess.run([str(word) for word in step], cwd=place, check=False, stdout=subprocess.DEVNULL).returncode
            == 0
            for step in steps
        )


def relative_links(wheel: Path) -> list[str]:
    """Return the links in a wheel's description that are broken on a package index."""
    with ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return re.findall(r"\]\((?!https://)([^)]*)\)", archive.read(metadata).decode())


def wheels() -> list[Path]:
    """Return the wheels of the library, the CPU and memory managers, the tools and the fleet."""
    names = ("devicecore", "devicecore_numa", "devicecore_tools", "devicecore_fleet")
    return [min(DIST.glob(f"{name}-[0-9]*.whl")) for name in names]


def supported() -> list[str]:
    """Return the Python versions that the project declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return re.findall(r"(?<=Python :: )3\.\d+$", "\n".join(project["classifiers"]), re.MULTILINE)


def has_wheels(minor: str) -> bool:
    """Return whether all dependencies, in their lowest and newest versions, have wheels for a version of Python."""
    library, numa, tools, fleet = wheels()
    with tempfile.TemporaryDirectory(prefix="dc-dist-") as place:
        bounds = Path(place) / "lowest.txt"
        bounds.write_text("\n".join(lowest()), encoding="utf-8")
        look = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check", "install", "--dry-run", *WHEELS]
        look += ["--python-version", minor, "--target", place]
        look += [f"{library}[{EXTRAS}]", str(numa), str(tools), str(fleet)]
        return all(
            subprocess.run([*look, *bounded], cwd=place, check=False).returncode == 0
            for bounded in ((), ("--constraint", str(bounds)))
        )


def environment(python: str, home: Path, *packages: str) -> Path:
    """Create an environment with packages, and return its `bin` folder."""
    run(python, "-m", "venv", str(home))
    run(str(home / "bin" / "python"), "-m", "pip", "-qq", "--disable-pip-version-check", "install", *packages)
    return home / "bin"


def readme_program() -> str:
    """Return the README's first Python example."""
    (program, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    return str(program)


def run(*command: str) -> None:
    """Run a command outside the clone, because a program inside it could import the sources in `src/`."""
    subprocess.run(command, cwd=tempfile.gettempdir(), check=True)


if __name__ == "__main__":
    sys.exit(main())
