"""Write an archive with all distributions and their dependencies: `make wheelhouse`.

With the archive in `dist/`, devicecore can be installed on a machine without a network that has the same Python and
processor. Before this program exits, it unpacks the archive and installs the packages into an empty environment,
without an index and, if the kernel allows a network namespace, without a network.
"""

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
PACKAGES = (
    ".[cel,kubernetes,manifests,prometheus]",
    "./packages/numa",
    "./packages/tools[kubernetes,prometheus]",
    "./packages/fleet[prometheus]",
)
_NAMES = ("devicecore-numa", "devicecore-tools[kubernetes,prometheus]", "devicecore-fleet[prometheus]")
_WITHOUT_NETWORK = ("unshare", "--net", "--map-root-user")


def main() -> int:
    """Write the archive. Return 1 if devicecore cannot be installed from the archive."""
    version = metadata.version("devicecore")
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    name = f"devicecore-{version}-wheelhouse-{python}-{sysconfig.get_platform().replace('-', '_')}"
    with tempfile.TemporaryDirectory(prefix="dc-wheelhouse-") as place:
        wheels = Path(place, name)
        pip = (sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check")
        subprocess.run([*pip, "wheel", "--wheel-dir", str(wheels), *PACKAGES], cwd=ROOT, check=True)
        DIST.mkdir(exist_ok=True)
        archive = DIST / f"{name}.tar.gz"
        with tarfile.open(archive, "w:gz") as written:
            for wheel in sorted(wheels.iterdir()):
                written.add(wheel, f"{name}/{wheel.name}", filter=_of_nobody)
        shutil.rmtree(wheels)
        print(f"== {archive.relative_to(ROOT)}: {archive.stat().st_size / 1e6:.0f} MB; installing it without an index")
        return _try(archive, Path(place), name)


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def _try(archive: Path, place: Path, name: str) -> int:
    with tarfile.open(archive) as written:
        written.extractall(place, filter="data")
    venv.create(place / "empty", with_pip=True)
    alone = _WITHOUT_NETWORK if subprocess.run([*_WITHOUT_NETWORK, "true"], check=False).returncode == 0 else ()
    bin_directory = place / "empty" / "bin"
    install = (
        "-m",
        "pip",
        "-qq",
        "--disable-pip-version-check",
        "install",
        "--no-index",
        "--find-links",
        str(place / name),
    )
    for step in (
        (*alone, str(bin_directory / "python"), *install, *_NAMES),
        (*alone, str(bin_directory / "devicecore"), "--version"),
        (*alone, str(bin_directory / "python"), "-c", "import devicecore_numa.managers"),
        (*alone, str(bin_directory / "devicecore"), "fleet", "shapes"),
    ):
        if subprocess.run(step, cwd=place, check=False, stdout=subprocess.DEVNULL).returncode:
            print(f"== failed: {' '.join(step)}")
            return 1
    print(f"== the archive can be installed{' without a network' if alone else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
