"""The contracts of the ports: one suite of checks per port, to run on your own adapters.

Law: each check tests a promise that its port makes, and raises `AssertionError` with the expected and the actual value.
A check needs no test framework, and waits for events instead of sleeping:

    for check in CHECKPOINT_STORE:
        check(MemoryStore)

The argument of a check is a function that creates one new, empty adapter on every call. If a check also needs the other
side of the adapter, the function creates a harness instead: a small object that you write.
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
from devicecore.testing.contracts.policy import ALLOCATION_POLICY, MakePolicy
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
    "ALLOCATION_POLICY",
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
    "MakePolicy",
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
