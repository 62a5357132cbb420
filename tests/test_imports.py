"""Which modules may import what. The imports are read from the source code.

import-linter (pyproject.toml) checks the layers as a graph. This file contains the allowlists, so each new dependency
is a decision that has to be recorded here.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import frozen

ROOT = Path(__file__).parent.parent
MODULES = {
    ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): path
    for source in (ROOT / "src", *(ROOT / "packages" / name / "src" for name in ("numa", "tools", "fleet")))
    for path in sorted(source.rglob("*.py"))
}


def names(text: str) -> frozenset[str]:
    """Return the module names that `text` lists.

    A leading dot, slash or plus sign stands for `devicecore.`, `devicecore_tools.` or `devicecore_fleet.`.
    """
    places = {".": "devicecore.", "/": "devicecore_tools.", "+": "devicecore_fleet."}
    return frozenset(places[word[0]] + word[1:] if word[0] in places else word for word in text.split())


# Modules of the standard library without side effects.
PURE = names(
    "abc base64 binascii bisect collections contextlib decimal enum functools heapq itertools json math operator re "
    "string struct types typing"
)
ANY = frozenset(sys.stdlib_module_names)


@frozen
class Layer:
    """What a module may import eagerly, and what it may import only lazily: in a function, or for type checking."""

    at_once: frozenset[str]
    lazily: frozenset[str] = frozenset()


ADAPTER = ANY | names("attrs .domain .ports .runtime .system .wire")
TESTING = ANY | names("attrs .domain .ports .runtime .manager .plugins .system .wire .adapters.memory .adapters.file")
DRA_TESTING = TESTING | names(".adapters.memory_dra .dra_manager")

# The longest matching prefix of a module's name applies. In addition, a module may always import from its own layer, or
# if it is part of an adapter, from that adapter.
LAYERS = {
    "devicecore": Layer(PURE | names("importlib logging .domain .ports .manager .runtime.saver_thread")),
    "devicecore.domain": Layer(PURE | names("attrs")),
    "devicecore.domain.checks": Layer(PURE | names("attrs inspect .domain")),  # for functions' signatures
    # The ids of shares are derived from names (uuid5), so they are not random.
    "devicecore.domain.allocation.result": Layer(PURE | names("attrs uuid .domain")),
    "devicecore.domain.checkpoint": Layer(PURE | names("attrs fnv_hash_fast orjson")),
    "devicecore.domain.dra": Layer(PURE | names("attrs datetime zlib .domain")),  # for the dates and the CRC in a file
    "devicecore.domain.go_text": Layer(PURE | names("orjson")),
    "devicecore.ports": Layer(PURE | names("attrs .domain")),
    "devicecore.runtime": Layer(PURE | names("attrs logging os queue sys threading time weakref .domain .ports")),
    "devicecore.runtime.background": Layer(PURE | names("asyncio logging threading time .runtime")),
    "devicecore.runtime.in_time": Layer(PURE | names("_thread queue threading .runtime")),
    "devicecore.manager": Layer(PURE | names("attrs logging threading time warnings weakref .domain .ports .runtime")),
    "devicecore.dra_manager": Layer(PURE | names("attrs concurrent logging os threading time .domain .ports .runtime")),
    "devicecore.dra": Layer(names(".domain .dra_manager")),
    "devicecore.plugins": Layer(ANY | names("attrs .domain .ports .runtime.background .system.arguments")),
    # A driver keeps files that must survive a power cut, and shares them with its next instance.
    "devicecore.plugins.cdi_driver": Layer(ANY | names("attrs .domain .ports .system")),
    "devicecore.wire": Layer(PURE | names("attrs google pkgutil .domain .ports")),
    "devicecore.system": Layer(ANY | names("attrs cattrs .domain")),
    "devicecore.system.documents": Layer(ANY | names("attrs yaml .domain")),
    "devicecore.adapters": Layer(ADAPTER),
    "devicecore.adapters.cel": Layer(ADAPTER | names("cel_expr_python google")),
    "devicecore.adapters.grpc_unix": Layer(ADAPTER | names("google grpc")),
    "devicecore.adapters.kube_api": Layer(ADAPTER | names("httpcore2 httpx2 orjson")),
    "devicecore.adapters.manifests": Layer(ADAPTER | names("yaml")),
    "devicecore.adapters.pod_resources": Layer(ADAPTER | names("google grpc")),
    "devicecore.adapters.prometheus": Layer(ADAPTER | names("prometheus_client")),
    "devicecore.testing": Layer(TESTING | names("hypothesis"), names("grpc .adapters")),
    "devicecore_tools": Layer(frozenset()),
    "devicecore_tools.__main__": Layer(names("sys /command")),
    "devicecore_tools.budget": Layer(ANY | names("attrs .domain")),
    "devicecore_tools.expressions": Layer(PURE | names(".domain"), names(".adapters.cel")),
    "devicecore_tools.numa": Layer(PURE | names("attrs .adapters .domain .manager .ports"), names("devicecore_numa")),
    "devicecore_tools.checkpoint": Layer(PURE | names("attrs .domain")),
    "devicecore_tools.doctor": Layer(
        PURE | names("attrs difflib hashlib html importlib inspect tomllib .domain /budget /expressions /numa")
    ),
    "devicecore_tools.doctor.pod.trial": Layer(
        PURE | names("attrs .domain .manager .plugins .adapters.memory /budget /numa")
    ),
    "devicecore_tools.doctor.reading": Layer(ADAPTER | names("google grpc orjson /budget .adapters /numa")),
    # A `Look` is written in full and according to its types, but `system.json_values` cannot write mappings whose keys
    # are not strings.
    "devicecore_tools.doctor.reading.look_file": Layer(ADAPTER | names("cattrs")),
    "devicecore_tools.node": Layer(
        ANY | names("attrs .adapters .domain .manager .ports .system .wire /numa"), names(".dra_manager")
    ),
    "devicecore_tools.node.dra": Layer(ANY | names("attrs .adapters .domain .dra_manager .ports")),
    "devicecore_numa": Layer(frozenset()),
    "devicecore_numa.domain": Layer(PURE | names("attrs .domain")),
    "devicecore_numa.ports": Layer(PURE | names("devicecore_numa.domain")),
    "devicecore_numa.adapters": Layer(ANY | names("attrs .domain .system devicecore_numa.domain")),
    "devicecore_numa.managers": Layer(ANY | names("attrs .domain .manager .ports devicecore_numa.domain")),
    "devicecore_fleet": Layer(frozenset()),
    "devicecore_fleet.cluster": Layer(ANY | names("attrs .adapters .domain .ports .runtime .system /node /numa")),
    "devicecore_fleet.fleet": Layer(
        ANY
        | names("attrs .adapters .domain .dra_manager .manager .plugins .ports .runtime .system /node /numa +cluster")
    ),
    "devicecore_fleet.fleet.metrics": Layer(ANY | names("prometheus_client")),
    "devicecore_tools.testing": Layer(TESTING | names(".testing"), names("grpc .adapters")),
    "devicecore_tools.testing.allocation_cases": Layer(TESTING | names("hypothesis .system"), names("grpc .adapters")),
    "devicecore_tools.testing.dra_kubelet": Layer(DRA_TESTING | names(".testing"), names(".adapters")),
    "devicecore_tools.testing.api_server": Layer(TESTING, names("yaml")),
    "devicecore_tools.testing.wire": Layer(PURE | names("google .wire")),
    "devicecore_tools.testing.pytest_plugin": Layer(TESTING | names("pytest"), names("grpc .adapters")),
    "devicecore_tools.conformance": Layer(
        TESTING | names("cattrs google grpc .adapters /expressions /testing"),
    ),
    "devicecore_tools.command.demo.cluster": Layer(
        ANY | names(".adapters .domain .dra_manager .manager .plugins .system /testing.temporary")
    ),
    "devicecore_fleet.command": Layer(ANY | names("attrs click rich .domain .system /command +fleet")),
    "devicecore_fleet.command.control": Layer(ANY | names("attrs .domain .ports .runtime .system")),
    "devicecore_tools.command": Layer(
        ANY
        | names("attrs click rich yaml .domain .ports .manager .plugins .system .wire .adapters")
        | names("/budget /conformance /checkpoint /doctor /expressions /node /numa /testing"),
        names(".dra_manager"),
    ),
}


def prefixes(module: str) -> Iterator[str]:
    """Yield the name of a module and of each package around it: `a.b.c`, `a.b`, `a`."""
    while module:
        yield module
        module = module.rpartition(".")[0]


def home(module: str) -> str:
    """Return the layer or the adapter that `module` belongs to."""
    parts = module.split(".")
    return ".".join(parts[: 3 if parts[1:2] == ["adapters"] else 2])


def is_allowed(importer: str, imported: str, *, lazy: bool) -> bool:
    """Return whether the table allows `importer` to import `imported`."""
    layer = next(LAYERS[name] for name in prefixes(importer) if name in LAYERS)
    allowed = layer.at_once | (layer.lazily if lazy else frozenset())
    if importer != "devicecore":  # the home of the package `devicecore` would match every module in it
        allowed |= {home(importer)}
    return not allowed.isdisjoint(prefixes(imported))


def imports_of(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield each import's line, module and laziness. `from a import b` imports `a.b` if that is one of our modules."""

    def walk(node: ast.AST, *, lazy: bool) -> Iterator[tuple[int, str, bool]]:
        match node:
            case ast.Import(names=aliases):
                yield from ((node.lineno, alias.name, lazy) for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                package = "." * level + (module or "")  # no table entry matches a relative import
                for alias in aliases:
                    submodule = f"{package}.{alias.name}"
                    yield node.lineno, submodule if submodule in MODULES else package, lazy
            case _:
                types_only = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
                deferred = types_only or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                for child in ast.iter_child_nodes(node):
                    if not isinstance(child, ast.expr):  # an expression contains no import
                        yield from walk(child, lazy=lazy or deferred)

    yield from walk(ast.parse(source), lazy=False)


def refused(module: str, source: str) -> list[str]:
    """Return the imports in `source` that the table does not allow in `module`."""
    return [
        f"line {line}: {imported}"
        for line, imported, lazy in imports_of(source)
        if not is_allowed(module, imported, lazy=lazy)
    ]


def test_a_module_imports_only_what_its_layer_may() -> None:
    offenders = {module: refused(module, path.read_text(encoding="utf-8")) for module, path in MODULES.items()}
    assert {module: imports for module, imports in offenders.items() if imports} == {}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("devicecore", "from devicecore.adapters.memory import MemoryStore"),
        ("devicecore", "import grpc"),
        ("devicecore.domain.ledger", "import time"),
        ("devicecore.domain.ledger", "def now():\n    import time"),
        ("devicecore.domain.ledger", "import cattrs"),
        ("devicecore.domain.ledger", "from devicecore.ports.store import CheckpointStore"),
        ("devicecore.domain.ledger", "from devicecore import DeviceManager"),
        ("devicecore.domain.ledger", "from .model import Device"),
        ("devicecore.domain.checkpoint.text", "from os import path"),
        ("devicecore.ports.store", "from pathlib import Path"),
        ("devicecore.manager", "from devicecore.adapters.memory import MemoryStore"),
        ("devicecore.manager", "from devicecore import wire"),
        ("devicecore.manager", "from devicecore.dra_manager import DraManager"),
        ("devicecore.dra_manager", "from devicecore.manager import DeviceManager"),
        ("devicecore.dra_manager.release", "from devicecore.adapters.memory_dra import MemoryClaims"),
        ("devicecore.domain.dra.claims", "import time"),
        ("devicecore.domain.node_state", "from devicecore.dra_manager import DraManager"),
        ("devicecore.adapters.file", "from devicecore.adapters import memory"),
        ("devicecore.adapters.file", "from devicecore.manager import DeviceManager"),
        ("devicecore.adapters.memory", "import grpc.aio"),
        ("devicecore.adapters.grpc_unix.server", "import yaml"),
        ("devicecore.adapters.kube_api.sink", "import prometheus_client"),
        ("devicecore.adapters.prometheus", "import httpx2"),
        ("devicecore.plugins.simulated", "from devicecore.adapters.memory import MemoryTransport"),
        ("devicecore.wire.messages", "import grpc"),
        ("devicecore.system.sockets", "import grpc"),
        ("devicecore.plugins.directory", "from devicecore.system.rate import TokenBucket"),
        ("devicecore_tools.testing.kubelet", "from devicecore.adapters.grpc_unix import server"),
        ("devicecore_tools.command.main", "import grpc"),
        ("devicecore_tools.command.kubelet.command", "def run():\n    from devicecore_fleet.cluster import assembly"),
        ("devicecore_numa.domain.cpus", "import threading"),
        ("devicecore_numa.managers", "import devicecore_tools"),
        ("devicecore_tools.node.engine", "import devicecore_numa"),
        ("devicecore_tools.numa", "import devicecore_numa"),
        ("devicecore_tools.doctor.pod.managers", "def read():\n    import devicecore_numa"),
        ("devicecore_fleet.cluster.pods", "from devicecore_fleet.fleet.fleet import Fleet"),
    ],
)
def test_the_table_refuses(module: str, source: str) -> None:
    assert len(refused(module, source)) == 1


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a new interpreter has loaded after it ran `statement`."""
    script = f"import sys\n{statement}\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    return set(run.stdout.split())


def test_importing_devicecore_loads_nothing_heavy() -> None:
    heavy = names("click google.protobuf grpc httpx2 hypothesis prometheus_client rich yaml")
    heavy |= names(".adapters .system .testing .wire")
    assert not heavy & loaded_by("import devicecore")


def test_a_program_with_device_plugins_loads_no_module_of_dra() -> None:
    dra = names(".adapters.memory_dra .domain.dra .dra_manager .ports.claims .ports.drivers .ports.slices")
    uses = "from devicecore import DeviceManager; import devicecore.adapters.memory, devicecore.adapters.grpc_unix"
    uses += ", devicecore.adapters.prometheus, devicecore_tools.testing.kubelet"
    assert not dra & loaded_by(uses)


def test_the_dra_manager_loads_no_adapter_and_nothing_heavy() -> None:
    heavy = names("google.protobuf grpc httpx2 .adapters .manager .system .testing .wire")
    assert not heavy & loaded_by("import devicecore.dra_manager")


def test_the_kubelets_for_tests_need_no_extra() -> None:
    extras = names("click hypothesis httpx2 prometheus_client rich yaml")
    assert not extras & loaded_by("import devicecore_tools.testing.kubelet, devicecore_tools.testing.dra_kubelet")


def test_importing_the_testing_kit_does_not_load_grpc() -> None:
    assert "grpc" not in loaded_by("import devicecore.testing")
