# pyright: reportUnnecessaryTypeIgnoreComment=true
"""Mistakes that a type checker finds. `make types` fails if mypy or pyright does not find one of them.

mypy reports an ignore that hides nothing (`warn_unused_ignores`), and so does pyright because of the line above.
"""

from collections.abc import Collection, Sequence

from devicecore import (
    Container,
    ContainerAllocateResponse,
    Device,
    DeviceId,
    DeviceManager,
    DevicePlugin,
    DeviceSpec,
    Mount,
    Pod,
    PodUid,
    resource_name,
)
from devicecore.adapters.memory import MemorySink, MemoryStore, MemoryTransport
from devicecore.domain.policies import Choice, packed

GPU = resource_name("example.com/gpu")
TRANSPORT, STORE, SINK = MemoryTransport(), MemoryStore(), MemorySink()


class ReturnsADict(DevicePlugin):
    resource = GPU

    def devices(self) -> Sequence[str]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return ["gpu-0"]

    def allocate(self, devices: Sequence[DeviceId]) -> dict[str, str]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return {}


def answers() -> None:
    ContainerAllocateResponse(envs={"A": 1})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    ContainerAllocateResponse(mounts=["/a"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    DeviceSpec(1, 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Mount("/a", "/b", "ro")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Device(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def always_one(choice: Choice) -> int:
    return choice.size


def without_question() -> Collection[DeviceId]:
    return ()


def managers(pod: Pod) -> None:
    DeviceManager(STORE, TRANSPORT, SINK)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    DeviceManager(TRANSPORT, MemoryStore, SINK)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    DeviceManager(TRANSPORT, STORE, SINK, policy="packed")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    DeviceManager(TRANSPORT, STORE, SINK, policy=always_one)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    DeviceManager(TRANSPORT, STORE, SINK, policy=without_question)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    manager = DeviceManager(TRANSPORT, STORE, SINK, policy=packed)
    manager.admit({"uid": "p"})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    manager.admit(pod).devices("main")  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue]
    manager.evict([pod])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    manager.start_container(pod, "main").envs  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]  # noqa: B018 - the mistake
    Pod("p", containers=[Container("main")])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Pod(PodUid("p"), containers=["main"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
