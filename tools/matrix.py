"""Run tests with each Python on this machine, and with the lowest and the newest version of each dependency.

`make matrix` runs this program. Environments are kept in `.matrix/`, so a second run only installs what has changed.
Pythons are found on PATH as `python3.N` and below pyenv's `versions` directory; the environment variable `PYTHONS` adds
others, separated by spaces.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PROJECTS = (ROOT, *(ROOT / "packages" / name for name in ("numa", "tools", "fleet")))
MINORS = range(11, 20)
EXTRAS = "kubernetes,manifests,prometheus,testing"
TOOLS = ("pytest", "sybil")  # the development tools that these tests import; a type checker is not among them
TESTS = ("tests/unit", "tests/property", "tests/contract", "tests/adapters", "packages/numa/tests")
DEPENDENCIES = ("lowest", "newest")


def pythons() -> dict[str, str]:
    """Return the interpreters that can be run and are new enough, by version."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = [shutil.which(name) or name for name in os.environ.get("PYTHONS", "").split()]
    on_path = [path for minor in MINORS if (path := shutil.which(f"python3.{minor}"))]
    below_pyenv = [str(path) for path in sorted(pyenv.glob("3.*/bin/python"))]
    found: dict[str, str] = {}
    for path in [*named, *on_path, *below_pyenv, sys.executable]:
        version = version_of(path)
        if version and int(version.split(".")[1]) in MINORS:
            found.setdefault(version, path)
    return dict(sorted(found.items(), key=lambda item: [int(part) for part in re.findall(r"\d+", item[0])]))


def version_of(python: str) -> str | None:
    """Return the version of an interpreter that can create environments, or None if the interpreter cannot be run."""
    script = "import platform, venv; print(platform.python_version())"
    try:
        run = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return run.stdout.strip() if run.returncode == 0 and run.stdout.startswith("3.") else None


def lowest() -> Iterator[str]:
    """Yield each dependency of the projects and their extras, pinned to its lower bound."""
    projects = [
        tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"] for folder in PROJECTS
    ]
    for text in [
        text
        for project in projects
        for part in (project["dependencies"], *project.get("optional-dependencies", {}).values())
        for text in part
    ]:
        requirement = Requirement(text)
        for specifier in requirement.specifier:
            if specifier.operator == ">=":
                marker = f"; {requirement.marker}" if requirement.marker else ""
                yield f"{requirement.name}=={specifier.version}{marker}"


def check(python: str, version: str, dependencies: str) -> bool:
    """Return whether the tests pass in a separate environment. Show the tests' output."""
    home = ROOT / ".matrix" / f"{version}-{dependencies}"
    executable = str(home / "bin" / "python")
    constraints = home.with_suffix(".txt")
    constraints.parent.mkdir(exist_ok=True)
    constraints.write_text("\n".join(lowest()) if dependencies == "lowest" else "", encoding="utf-8")
    if not Path(executable).exists():
        subprocess.run([python, "-m", "venv", str(home)], check=True)
    install = [executable, "-m", "pip", "-qq", "--disable-pip-version-check", "install", "--upgrade"]
    steps = (
        [
            *install,
            "--constraint",
            str(constraints),
            "--editable",
            f"{ROOT}[{EXTRAS}]",
            "--editable",
            str(ROOT / "packages" / "numa"),
            "--editable",
            f"{ROOT / 'packages' / 'tools'}[kubernetes,prometheus]",
            "--editable",
            f"{ROOT / 'packages' / 'fleet'}[prometheus]",
            *TOOLS,
        ],
        [executable, "-m", "pytest", "-qq", "--numprocesses=2", "-p", "no:cacheprovider", *TESTS],
    )
    return all(subprocess.run(step, cwd=ROOT, check=False).returncode == 0 for step in steps)


def main() -> int:
    """Run the tests in every combination. Return 1 if the tests fail in a combination."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    results = {}
    for version, python in pythons().items():
        for dependencies in DEPENDENCIES:
            print(f"== Python {version}, {dependencies} dependencies", flush=True)
            results[version, dependencies] = check(python, version, dependencies)
    print()
    for (version, dependencies), passed in results.items():
        print(f"{version:10} {dependencies:8} {'passed' if passed else 'FAILED'}")
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
