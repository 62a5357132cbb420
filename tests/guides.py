"""Restricts the code blocks in README.md and docs/ to importing public names.

Law: a block that imports a name that is not in `tests/data/public_names.txt` fails. The library's and the tools' own
imports are not checked.

Run with a directory as its argument, this module writes the guides there as programs, for mypy.
"""

import builtins
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

_LIST = Path(__file__).parent / "data" / "public_names.txt"
_DOCS = Path(__file__).parents[1] / "docs"

GUIDES = (
    *("test-your-plugin", "dra-fixtures", "faults", "kube-api", "policies"),
    *("write-an-adapter", "write-a-driver", "write-a-plugin"),
)
"""The guides whose code blocks together form one program per guide."""

PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


@cache
def public() -> Mapping[str, frozenset[str]]:
    """Return the public names by module, from `public_names.txt`."""
    found: dict[str, frozenset[str]] = {}
    for part in re.split(r"\n(?=\S)", _LIST.read_text(encoding="utf-8")):
        module, _, names = part.partition(":")
        found[module] = frozenset(names.replace(",", " ").split())
    return found


def forbid_private_modules(namespace: dict[str, object]) -> None:
    """Restrict the code that runs in `namespace` to importing the library's public names."""
    namespace["__builtins__"] = {**vars(builtins), "__import__": _import}


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,  # noqa: A002 - the interpreter names them so
    locals: Mapping[str, object] | None = None,  # noqa: A002 - as above
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    if name.partition(".")[0] in {"devicecore", "devicecore_fleet", "devicecore_numa", "devicecore_tools"}:
        names = public().get(name, frozenset())
        private = [one for one in fromlist or () if one not in names and f"{name}.{one}" not in public()]
        if private or not (fromlist or name in public()):
            what = ", ".join(private) or "something private"
            message = f"a guide imports {what} from {name}; docs/reference/public.md says what is public"
            raise ImportError(message)
    return __import__(name, globals, locals, fromlist or (), level)


if __name__ == "__main__":
    for name in GUIDES:
        blocks = PYTHON.findall((_DOCS / f"{name}.md").read_text(encoding="utf-8"))
        Path(sys.argv[1], f"{name.replace('-', '_')}.py").write_text("\n".join(blocks), encoding="utf-8")
