"""What every adapter of a port keeps: one suite per port, to be run over your own adapters too.

Law: each function in here checks one sentence of its port's docstring, and raises `AssertionError` with what was
expected and what came. It needs no test framework, makes all it needs itself, and waits for events, never for time to
pass:

    for check in CHECKPOINT_STORE:
        check(MemoryStore)

What a suite is called with makes one adapter, with nothing in it yet, on every call. Where a check has to see or do
what only the other side of the adapter can, it makes a harness: a small object that you write.
"""

from devicecore.testing.contracts.connected import Connection, MakeTransport, TransportHarness
from devicecore.testing.contracts.metrics import METRICS, MakeMetrics, MetricsHarness
from devicecore.testing.contracts.plugin import (
    CHANGING_DEVICE_PLUGIN,
    DEVICE_PLUGIN,
    ChangingPlugin,
    MakeChangingPlugin,
    MakePlugin,
)
from devicecore.testing.contracts.pods import POD_SOURCE, MakePods, PodsHarness
from devicecore.testing.contracts.sink import NODE_STATUS_SINK, MakeSink, SinkHarness
from devicecore.testing.contracts.store import (
    CHECKPOINT_STORE,
    DURABLE_CHECKPOINT_STORE,
    MakePlace,
    MakeStore,
    StorePlace,
)
from devicecore.testing.contracts.transport import (
    PLUGIN_TRANSPORT,
    REMOTE_PLUGIN_TRANSPORT,
    MakeRemoteTransport,
    RemoteTransportHarness,
)

__all__ = [
    "CHANGING_DEVICE_PLUGIN",
    "CHECKPOINT_STORE",
    "DEVICE_PLUGIN",
    "DURABLE_CHECKPOINT_STORE",
    "METRICS",
    "NODE_STATUS_SINK",
    "PLUGIN_TRANSPORT",
    "POD_SOURCE",
    "REMOTE_PLUGIN_TRANSPORT",
    "ChangingPlugin",
    "Connection",
    "MakeChangingPlugin",
    "MakeMetrics",
    "MakePlace",
    "MakePlugin",
    "MakePods",
    "MakeRemoteTransport",
    "MakeSink",
    "MakeStore",
    "MakeTransport",
    "MetricsHarness",
    "PodsHarness",
    "RemoteTransportHarness",
    "SinkHarness",
    "StorePlace",
    "TransportHarness",
]
