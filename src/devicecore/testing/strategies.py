"""Hypothesis strategies for the values of the domain.

Law: every drawn value can occur on a real node, and shrinks to the simplest value of its type. Ledgers and node states
are built with public methods only, so the library itself can reach each drawn ledger or state.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from string import ascii_letters, ascii_lowercase, digits

from devicecore.domain.checks import received
from devicecore.domain.container_options import ContainerAllocateResponse, DeviceSpec, Mount
from devicecore.domain.device_set import DeviceSet
from devicecore.domain.errors import AdmissionError
from devicecore.domain.events import DevicesReported, Event, PluginLost, PluginRegistered
from devicecore.domain.ledger import Allocation, Ledger
from devicecore.domain.model import (
    Container,
    ContainerKey,
    Device,
    DeviceId,
    Health,
    NumaNode,
    PluginId,
    PluginOptions,
    Pod,
    PodUid,
    Receipt,
    ResourceName,
    is_extended_resource,
)
from devicecore.domain.node_state import NodeState
from devicecore.domain.policies import Choice
from devicecore.domain.selection import AskPlugin, ResourceRequest
from devicecore.domain.topology import NumaMask, Policy, Scope, Topology, TopologyHint
from devicecore.system.extras import needs_extra

__all__ = [
    "admit",
    "choices",
    "device_ids",
    "devices",
    "ledgers",
    "node_states",
    "numa_nodes",
    "plugin_events",
    "pods",
    "topologies",
]

with needs_extra("testing"):
    from hypothesis import strategies as st

RESOURCES = (ResourceName("example.com/gpu"), ResourceName("example.com/rdma"))
"""The resources that strategies use by default."""

PODS = tuple(PodUid(uid) for uid in ("pod-a", "pod-b", "pod-c"))
"""The pods that strategies use by default."""

_PLAIN = tuple(f"gpu-{number}" for number in range(12))
_TRAPS = (
    *("gpu-02", "gpu-002", "gpu-2a", "gpu", "GPU-2"),  # ids whose alphabetical order differs from their natural order
    *("2", "10", "02", "-1", "1.5", "0" * 40),
    # ids with unusual digits, and ids that need escaping
    *("٣", "gpu-٣", "²", "ä", "a\u0308", "😀", "\N{LINE SEPARATOR}", "<&>", "", " ", "a,b"),
)
_HELD = tuple(DeviceId(f"gpu-{number}") for number in range(6))
_MAX_STEPS = 6  # the maximum number of reservations and evictions that a ledger goes through
_TEXT = st.text(st.characters(codec="utf-8"), max_size=8)  # all characters that a protobuf string can contain
_WORDS = st.sampled_from(("a", "b", "c"))

# --- names and devices -----------------------------------------------------------------------------------------------


def device_ids(*, awkward: bool = True) -> st.SearchStrategy[DeviceId]:
    """Generate device ids. The simplest is `gpu-0`. With `awkward`, some ids are difficult to sort, escape or show."""
    if not awkward:
        return st.sampled_from(_PLAIN).map(DeviceId)
    return (st.sampled_from(_PLAIN + _TRAPS) | _TEXT).map(DeviceId)


def resource_names() -> st.SearchStrategy[ResourceName]:
    """Generate names that `resource_name` accepts."""
    inside = ascii_lowercase + digits + "-"
    labels = st.builds(_inside_out, st.sampled_from(ascii_lowercase), st.text(inside, max_size=20))
    prefixes = st.lists(labels, min_size=1, max_size=4).map(".".join)
    alphabet = ascii_lowercase + ascii_letters + digits
    names = st.builds(_inside_out, st.sampled_from(alphabet), st.text(alphabet + "-_.", max_size=61))
    extended = st.builds(lambda prefix, name: f"{prefix}/{name}", prefixes, names)
    return (st.sampled_from(RESOURCES) | extended.filter(is_extended_resource)).map(ResourceName)


def invalid_resource_names() -> st.SearchStrategy[str]:
    """Generate names that `resource_name` refuses: almost valid names, and arbitrary text."""
    misses = st.sampled_from(
        (
            *("", "/", "gpu", "example.com", "example.com/", "/gpu", "a/b/c", "example.com/gpu\n", " example.com/gpu"),
            *("Example.com/gpu", "example..com/gpu", "-example.com/gpu", "example.com/-gpu", "example.com/gpu_"),
            *("kubernetes.io/gpu", "sub.kubernetes.io/gpu", "requests.example.com/gpu"),
            *("example.com/" + "x" * 64, "x" * 245 + "/gpu", "exämple.com/gpu", "example.com/٣"),
        )
    )
    return misses | st.text(max_size=20).filter(lambda text: not is_extended_resource(text))


def _inside_out(end: str, inside: str) -> str:
    """Return `inside` between two characters `end`, or only one such character if `inside` is empty."""
    return f"{end}{inside}{end}" if inside else end


def numa_nodes() -> st.SearchStrategy[NumaNode]:
    """Generate NUMA nodes of a machine with four NUMA nodes."""
    return st.integers(0, 3).map(NumaNode)


def devices(
    *, ids: st.SearchStrategy[DeviceId] | None = None, nodes: st.SearchStrategy[NumaNode] | None = None
) -> st.SearchStrategy[Device]:
    """Generate devices without a topology, and devices on none, one or several of `nodes`."""
    attached = st.lists(numa_nodes() if nodes is None else nodes, max_size=3, unique=True).map(tuple)
    known = device_ids() if ids is None else ids
    # An id may be empty, because a plugin in another language may report such an id.
    return st.builds(partial(received, Device), known, st.sampled_from(Health), st.none() | attached)


def device_lists(
    *,
    ids: st.SearchStrategy[DeviceId] | None = None,
    nodes: st.SearchStrategy[NumaNode] | None = None,
    min_size: int = 0,
    max_size: int = 8,
    unique: bool = True,
) -> st.SearchStrategy[tuple[Device, ...]]:
    """Generate a plugin's lists of devices. With `unique=False`, a device may be listed twice."""
    listed = devices(ids=ids, nodes=nodes)
    by = (lambda device: device.id) if unique else None
    return st.lists(listed, min_size=min_size, max_size=max_size, unique_by=by).map(tuple)


def device_sets() -> st.SearchStrategy[DeviceSet]:
    """Generate device sets. Each set has its own index, which may contain more devices than the set."""
    listed = st.lists(device_ids(), max_size=8)

    def chosen(known: list[DeviceId]) -> st.SearchStrategy[DeviceSet]:
        whole = DeviceSet.of(known)
        return st.sets(st.sampled_from(known)).map(whole.index.select) if known else st.just(whole)

    return listed.map(DeviceSet.of) | listed.flatmap(chosen)


def allocate_responses() -> st.SearchStrategy[ContainerAllocateResponse]:
    """Generate answers to Allocate. There are only a few names, so that answers conflict."""
    texts = _WORDS | _TEXT
    letters = st.sampled_from(("r", "rw", "mrw"))
    paths = _WORDS.map(lambda word: f"/dev/{word}")
    return st.builds(
        ContainerAllocateResponse,
        envs=st.dictionaries(_WORDS, texts, max_size=3),
        mounts=st.lists(st.builds(Mount, paths, paths, st.booleans()), max_size=3).map(tuple),
        devices=st.lists(st.builds(DeviceSpec, paths, paths, letters), max_size=3).map(tuple),
        annotations=st.dictionaries(_WORDS, texts, max_size=3),
        cdi_devices=st.lists(_WORDS.map(lambda word: f"example.com/gpu={word}"), max_size=3).map(tuple),
    )


@st.composite
def choices(draw: st.DrawFn) -> Choice:
    """Generate questions to an allocation policy, about machines with up to three NUMA nodes."""
    ids = [DeviceId(f"card-{number // 2}::{number % 2}") for number in range(draw(st.integers(1, 12)))]
    listed = DeviceSet.of(ids)
    attached = draw(st.sampled_from(((), (0,), (0, 1), (0, 1, 2))))
    nodes = {device: draw(_attachment(attached)) for device in ids}
    in_use = listed.index.select(draw(st.sets(st.sampled_from(ids))))
    must_include = listed.index.select(draw(st.sets(st.sampled_from(ids), max_size=2)))
    available = (listed - in_use) | must_include
    size = draw(st.integers(len(must_include), len(available)))
    held = {device: nodes[device] for device in in_use & draw(st.sets(st.sampled_from(ids)))}
    preferred = draw(st.lists(st.sampled_from([*ids, DeviceId("unknown")]), max_size=4))
    affinity = draw(st.none() | st.just(tuple(map(NumaNode, attached[:1])))) if attached else None
    key = ContainerKey(PODS[0], "app-0")
    of_pod = {RESOURCES[0]: held} if held else {}
    return Choice(RESOURCES[0], key, available, must_include, size, preferred, nodes, in_use, of_pod, affinity)


def _attachment(numa_nodes: Sequence[int]) -> st.SearchStrategy[tuple[NumaNode, ...]]:
    return st.sampled_from([(), *((NumaNode(node),) for node in numa_nodes), tuple(map(NumaNode, numa_nodes))])


# --- pods ------------------------------------------------------------------------------------------------------------


@st.composite
def pods(
    draw: st.DrawFn,
    *,
    uids: Sequence[PodUid] = PODS,
    resources: Sequence[str] = (*RESOURCES, "cpu"),
    max_init_containers: int = 3,
) -> Pod:
    """Generate pods with app containers, init containers and sidecars, whose limits for `resources` are at most 3."""
    app_limits, init_limits = _limits(tuple(resources), max_init_containers)
    apps, inits = draw(app_limits), draw(init_limits)
    return Pod(
        uid := draw(st.sampled_from(uids)),
        name=str(uid),
        containers=tuple(Container(f"app-{number}", asked) for number, asked in enumerate(apps)),
        init_containers=tuple(
            Container(f"init-{number}", asked, restartable) for number, (asked, restartable) in enumerate(inits)
        ),
    )


@lru_cache(maxsize=64)  # creating and checking a strategy takes longer than drawing from it
def _limits(
    resources: tuple[str, ...], max_init_containers: int
) -> tuple[st.SearchStrategy[list[dict[str, int]]], st.SearchStrategy[list[tuple[dict[str, int], bool]]]]:
    """Return the limits of app containers, and the limits of init containers, each with a flag that marks a sidecar."""
    count = st.sampled_from((None, 1, 2, 3, 0))
    limits = st.fixed_dictionaries(dict.fromkeys(resources, count)).map(
        lambda asked: {name: size for name, size in asked.items() if size is not None}
    )
    apps = st.lists(limits, min_size=1, max_size=2)
    return apps, st.lists(st.tuples(limits, st.booleans()), max_size=max_init_containers)


# --- machines --------------------------------------------------------------------------------------------------------


def topologies(*, max_nodes: int = 6) -> st.SearchStrategy[Topology]:
    """Generate machines with up to `max_nodes` NUMA nodes, with any policy and scope, with and without distances."""

    def machine(count: int) -> st.SearchStrategy[Topology]:
        row = st.lists(st.sampled_from((10, 11, 21)), min_size=count, max_size=count)
        distances: st.SearchStrategy[list[list[int]]] = st.just([]) | st.lists(row, min_size=count, max_size=count)
        nodes = tuple(map(NumaNode, range(count)))
        return st.builds(Topology, st.just(nodes), st.sampled_from(Policy), st.sampled_from(Scope), distances=distances)

    return st.integers(1, max_nodes).flatmap(machine)


def topology_hints(*, nodes: int = 4) -> st.SearchStrategy[TopologyHint]:
    """Generate hints for a machine with `nodes` NUMA nodes. A hint has no mask, or a mask that is not empty."""
    masks = st.integers(1, (1 << nodes) - 1).map(NumaMask)
    return st.builds(TopologyHint, st.none() | masks, st.booleans())


def provider_hints(*, nodes: int = 4) -> st.SearchStrategy[dict[str, tuple[TopologyHint, ...] | None]]:
    """Generate one provider's hints: for each resource, a possibly empty list of hints, or None (no preference)."""
    listed = st.lists(topology_hints(nodes=nodes), max_size=3).map(tuple)
    return st.dictionaries(_WORDS, st.none() | listed, max_size=2)


# --- ledgers and node states -----------------------------------------------------------------------------------------


_CONTAINERS = st.builds(ContainerKey, st.sampled_from(PODS), _WORDS)
_RESOURCES = st.sampled_from(RESOURCES)
_FATES = st.sampled_from(("confirm", "keep", "release", "evict"))  # what may happen to a reservation
_NODES = st.lists(numa_nodes(), max_size=2, unique=True).map(lambda listed: tuple(sorted(listed)))
# Allocations as in a checkpoint, independent of each other: two of them may hold the same device.
_ALLOCATIONS = st.lists(
    st.builds(
        Allocation,
        _CONTAINERS,
        _RESOURCES,
        st.dictionaries(st.sampled_from(_HELD), _NODES, min_size=1, max_size=3),
        st.binary(max_size=4).map(Receipt),
    ),
    max_size=3,
)
_SIMPLE_LISTS = device_lists(ids=device_ids(awkward=False))


@st.composite
def ledgers(draw: st.DrawFn, *, shared_by_error: bool = False) -> Ledger:
    """Generate ledgers in which devices of `RESOURCES` are reserved for containers of `PODS` or allocated to them.

    With `shared_by_error`, a ledger starts as a checkpoint in which two pods may hold the same device.
    """
    ledger = Ledger.of(draw(_ALLOCATIONS)) if shared_by_error else Ledger()
    for _ in range(draw(st.integers(0, _MAX_STEPS))):
        key, resource, fate = draw(_CONTAINERS), draw(_RESOURCES), draw(_FATES)
        free = [device for device in _HELD if device not in ledger.in_use(resource)]
        if fate == "evict":
            ledger = ledger.evict([key.pod])
        elif free and key.container not in ledger.held_by(key.pod, resource):
            taken = draw(st.sets(st.sampled_from(free), min_size=1, max_size=3))
            ledger = ledger.reserve(key, resource, DeviceSet.of(taken))
            if fate == "confirm":
                ledger = ledger.confirm(key, resource, Receipt(b""), _attached_to(draw(numa_nodes())))
            elif fate == "release":
                ledger = ledger.release(key, resource)
    return ledger


def _attached_to(node: NumaNode) -> Callable[[DeviceId], tuple[NumaNode, ...]]:
    return lambda _: (node,)


@st.composite
def plugin_events(
    draw: st.DrawFn, *, lists: st.SearchStrategy[tuple[Device, ...]] | None = None, max_size: int = 8
) -> tuple[Event, ...]:
    """Generate a transport's events: instances register, report and are lost.

    Some events are late, and some come after a loss.
    """
    reports = _SIMPLE_LISTS if lists is None else lists
    options = st.builds(PluginOptions, st.booleans(), st.booleans())
    seen: list[PluginId] = []
    events: list[Event] = []
    for _ in range(draw(st.integers(0, max_size))):
        if not seen or draw(st.integers(0, 2)) == 0:
            generation = len(seen) + 1
            seen.append(PluginId(draw(st.sampled_from(RESOURCES)), f"plugin-{generation}.sock", generation))
            events.append(PluginRegistered(seen[-1], draw(options)))
        elif draw(st.integers(0, 2)):
            events.append(DevicesReported(draw(st.sampled_from(seen)), draw(reports)))
        else:
            events.append(PluginLost(draw(st.sampled_from(seen))))
    return tuple(events)


@st.composite
def node_states(  # noqa: D417  # Hypothesis passes `draw`
    draw: st.DrawFn,
    *,
    resources: Sequence[ResourceName] = RESOURCES,
    lists: st.SearchStrategy[tuple[Device, ...]] | None = None,
    all_confirmed: bool = False,
) -> NodeState:
    """Generate node states with registered plugins and admitted pods, some of whose devices may have become unhealthy.

    Args:
        resources: the resources of the plugins.
        lists: the lists of devices.
        all_confirmed: whether every reservation was confirmed, which means that no admission is in progress.
    """
    reports = _SIMPLE_LISTS if lists is None else lists
    state = NodeState()
    plugins = [PluginId(resource, "plugin.sock", number) for number, resource in enumerate(resources, start=1)]
    for plugin in plugins:
        state = state.apply(
            PluginRegistered(plugin, PluginOptions(get_preferred_allocation_available=draw(st.booleans()))), now=0.0
        )
        state = state.apply(DevicesReported(plugin, draw(reports)), now=0.0)
    for uid in PODS[: draw(st.integers(0, 3))]:
        pod = draw(pods(uids=(uid,), resources=resources))
        state = admit(state, pod, confirmed=all_confirmed or draw(st.booleans()))
    for plugin in plugins:
        match draw(st.sampled_from(("stays", "changes", "is lost"))):
            case "changes":
                listed = state.inventory.current_report(plugin.resource)
                assert listed is not None, "it has reported"  # noqa: S101  # for mypy
                ill = {device.id: draw(st.sampled_from(Health)) for device in listed.devices.values()}
                changed = tuple(received(Device, id_, ill[id_], one.topology) for id_, one in listed.devices.items())
                state = state.apply(DevicesReported(plugin, changed), now=1.0)
            case "is lost":
                state = state.apply(PluginLost(plugin), now=1.0)
            case _:
                pass
    return state


def admit(
    state: NodeState, pod: Pod, containers: Sequence[Container] | None = None, *, confirmed: bool = True
) -> NodeState:
    """Return the node state after `containers` of `pod`, by default all of them, have got the devices they request.

    A request for more devices than exist is skipped. The plugins have no preference.
    """
    for container in pod.in_start_order if containers is None else containers:
        key = pod.key(container)
        for resource, size in state.requests(pod, container):
            request = ResourceRequest(key, resource, size)
            try:
                decision = state.devices_to_allocate(pod, request)
            except AdmissionError:
                continue
            chosen = decision.answer(()) if isinstance(decision, AskPlugin) else decision
            if chosen:
                state = state.reserve(pod, request, chosen)
                state = state.confirm(key, resource, Receipt(b"")) if confirmed else state
    return state
