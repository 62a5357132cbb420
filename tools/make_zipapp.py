"""Put devicecore into one file that needs only Python: `python tools/make_zipapp.py [FILE]`, or `make zipapp`.

The file contains the `PACKAGES` as they are installed here, without compiled parts, which all have a fallback.
Identical sources, dependencies and interpreters produce an identical file. Each module comes with its bytecode, because
compiling takes a second; an interpreter of a different version ignores the bytecode.
"""

import importlib.util
import marshal
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from devicecore import __version__

ROOT = Path(__file__).parent.parent
PACKAGES = ("attrs", "cattrs", "click", "protobuf", "pyyaml", "rich", "typing_extensions")
"""The packages that `doctor`, `why`, `fits` and `checkpoint` import."""

_WHEN = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can store
_UNCHECKED = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little")  # PEP 552: an unchecked hash
_NOT_CODE = {".pyi", ".typed", ".proto"}
_MAIN = """\
import sys

if sys.version_info < (3, 11):
    sys.exit("devicecore: expected Python 3.11 or newer, got %d.%d" % sys.version_info[:2])

from devicecore_tools.command.main import main

sys.exit(main())
"""


def main() -> None:
    """Write the archive."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "devicecore.pyz")
    files = dict(contents())
    new = target.with_name(f".{target.name}.new")
    with new.open("wb") as out:
        out.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name in sorted(files):
                archive.writestr(_entry(name), files[name])
    new.chmod(0o755)
    new.replace(target)
    print(f"{target}: {target.stat().st_size / 1_000_000:.1f} MB, {len(files)} files")


def contents() -> Iterator[tuple[str, bytes]]:
    """Yield each file of the archive."""
    yield from _module("__main__.py", _MAIN.encode())
    yield from _module("google/__init__.py", b"")  # no namespace packages in zip files before Python 3.13
    for source in (ROOT / "src", *(ROOT / "packages" / name / "src" for name in ("numa", "tools"))):
        for path in sorted(source.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix not in _NOT_CODE:
                yield from _module(path.relative_to(source).as_posix(), path.read_bytes())
    about = f"Metadata-Version: 2.1\nName: devicecore\nVersion: {__version__}\n"
    # --version reads the version from this metadata
    yield f"devicecore-{__version__}.dist-info/METADATA", about.encode()
    yield "licenses/devicecore/LICENSE", (ROOT / "LICENSE").read_bytes()
    for package in PACKAGES:
        yield from _installed(package)


def _installed(package: str) -> Iterator[tuple[str, bytes]]:
    """Yield the Python files and the license files of an installed package."""
    for file in metadata.files(package) or ():
        if file.suffix == ".py" and ".." not in file.parts:
            yield from _module(file.as_posix(), file.read_binary())
        elif file.name.upper().startswith(("LICENSE", "COPYING", "NOTICE", "AUTHORS")):
            yield f"licenses/{package}/{file.name}", file.read_binary()


def _module(name: str, blob: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield a file, and its bytecode if it is Python."""
    yield name, blob
    if name.endswith(".py"):
        code = compile(blob, name, "exec", dont_inherit=True, optimize=0)
        yield f"{name}c", _UNCHECKED + importlib.util.source_hash(blob) + marshal.dumps(code)


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _WHEN)
    entry.external_attr = 0o644 << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


if __name__ == "__main__":
    main()
