"""Runs the good driver, or the faulty one that the argument names: `run_driver.py [GROUP:CLASS]`."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

# No driver of the tests needs TLS or gRPC's asyncio API, which take an eighth of its start. There are 180 starts.
sys.modules["ssl"] = None  # type: ignore[assignment]  # as in a Python without it
sys.modules["grpc.aio"] = ModuleType("grpc.aio")
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.conformance.good_driver import GoodDriver  # noqa: E402 - it imports gRPC

if len(sys.argv) > 1:
    group, _, name = sys.argv[1].partition(":")
    driver: type[GoodDriver] = getattr(import_module(f"tests.conformance.faults.{group}"), name)
else:
    driver = GoodDriver
driver().run()
