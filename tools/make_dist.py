"""Build both distributions and try them: `python -m tools.make_dist [--no-try]`; `make dist` calls it.

Wheels and source distributions are written to `dist/`. Then each Python on this machine installs the library alone, and
the library with the tools, into empty environments outside the clone, and uses them as a user would.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.matrix import pythons

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
PROJECTS = (ROOT, ROOT / "packages" / "tools")

_NO_TOOLS = """
tools = {"devicecore_tools", "click", "jsonpatch", "rich", "yaml"}
loaded = [name for name in sys.modules if name.split(".")[0] in tools]
assert not loaded, loaded
"""


def main() -> int:
    """Build the distributions, and return 1 if one of them does not work."""
    shutil.rmtree(DIST, ignore_errors=True)
    for project in PROJECTS:
        run(sys.executable, "-m", "build", "--outdir", str(DIST), str(project))
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(DIST.iterdir())))
    if "--no-try" in sys.argv[1:]:
        return 0
    failed = [version for version, python in pythons().items() if not is_good(python, version)]
    print(f"== failed with {', '.join(failed)}" if failed else "== all distributions work")
    return 1 if failed else 0


def is_good(python: str, version: str) -> bool:
    """Return whether the distributions can be installed and used with an interpreter."""
    library, tools = (min(DIST.glob(f"{name}-[0-9]*.whl")) for name in ("devicecore", "devicecore_tools"))
    sources = [str(path) for path in sorted(DIST.glob("*.tar.gz"))]
    program = readme_program() + _NO_TOOLS
    with tempfile.TemporaryDirectory(prefix="dc-dist-") as place:
        print(f"== Python {version}: the library", flush=True)
        alone = environment(python, Path(place) / "library", str(library))
        (Path(place) / "program.py").write_text(f"import sys\n{program}", encoding="utf-8")
        print(f"== Python {version}: the library and the tools", flush=True)
        both = environment(python, Path(place) / "both", str(library), str(tools))
        built = environment(python, Path(place) / "sources", *sources)
        steps = [
            (alone / "python", "program.py"),
            (alone / "python", "-c", "import importlib.util as u; assert u.find_spec('devicecore_tools') is None"),
            (both / "python", "program.py"),
            (both / "devicecore", "--version"),
            (both / "devicecore", "demo", "--json"),
            (built / "devicecore", "--version"),
        ]
        return all(
            subprocess.run([str(word) for word in step], cwd=place, check=False, stdout=subprocess.DEVNULL).returncode
            == 0
            for step in steps
        )


def environment(python: str, home: Path, *packages: str) -> Path:
    """Make an environment with packages, and return the folder of its programs."""
    run(python, "-m", "venv", str(home))
    run(str(home / "bin" / "python"), "-m", "pip", "-qq", "--disable-pip-version-check", "install", *packages)
    return home / "bin"


def readme_program() -> str:
    """Return the first program of the README."""
    (program, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    return str(program)


def run(*command: str) -> None:
    """Run a command outside the clone, because beside `src/` a program could find the sources."""
    subprocess.run(command, cwd=tempfile.gettempdir(), check=True)


if __name__ == "__main__":
    sys.exit(main())
