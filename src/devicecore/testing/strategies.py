"""Hypothesis strategies for the nouns of the domain.

Law: whatever is drawn here can be met on a real node, and shrinks to the plainest of its kind. Ledgers and nodes are
reached through public methods only, so none can be drawn that the library itself could not come to.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from string import ascii_letters, ascii_lowercase, digits

from attrs import evolve
from hypothesis import strategies as st

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
from devicecore.domain.selection import AskPlugin, ResourceRequest
from devicecore.domain.topology import NumaMask, Policy, Scope, Topology, TopologyHint

RESOURCES = (ResourceName("example.com/gpu"), ResourceName("example.com/rdma"))
"""The resources that are drawn where the caller names none."""

PODS = tuple(PodUid(uid) for uid in ("pod-a", "pod-b", "pod-c"))
"""The pods that are drawn where the caller names none."""

_PLAIN = tuple(f"gpu-{number}" for number in range(12))
_TRAPS = (
    *("gpu-02", "gpu-002", "gpu-2a", "gpu", "GPU-2"),  # their order as text is not the natural one, nor that of gpu-2
    *("2", "10", "02", "-1", "1.5", "0" * 40),
    *("٣", "gpu-٣", "²", "ä", "a\u0308", "😀", "\N{LINE SEPARATOR}", "<&>", "", " ", "a,b"),  # odd digits, escaping
)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=8)  # what fits into a protobuf string
_WORDS = st.sampled_from(("a", "b", "c"))


# --- names and devices -----------------------------------------------------------------------------------------------


def device_ids(*, awkward: bool = True) -> st.SearchStrategy[DeviceId]:
    """Device ids, `gpu-0` first; `awkward` ones too, that sort, escape or look strangely."""
    if not awkward:
        return st.sampled_from(_PLAIN).map(DeviceId)
    return (st.sampled_from(_PLAIN + _TRAPS) | _TEXT).map(DeviceId)


def resource_names() -> st.SearchStrategy[ResourceName]:
    """Names that `resource_name` accepts, up to the longest."""
    inside = ascii_lowercase + digits + "-"
    labels = st.builds(_inside_out, st.sampled_from(ascii_lowercase), st.text(inside, max_size=20))
    prefixes = st.lists(labels, min_size=1, max_size=4).map(".".join)
    alphabet = ascii_lowercase + ascii_letters + digits
    names = st.builds(_inside_out, st.sampled_from(alphabet), st.text(alphabet + "-_.", max_size=61))
    extended = st.builds(lambda prefix, name: f"{prefix}/{name}", prefixes, names)
    return (st.sampled_from(RESOURCES) | extended.filter(is_extended_resource)).map(ResourceName)


def invalid_resource_names() -> st.SearchStrategy[str]:
    """Names that `resource_name` refuses: near misses first, then anything."""
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
    """`inside` between two ends that may end a name."""
    return f"{end}{inside}{end}" if inside else end


def numa_nodes(*, count: int = 4) -> st.SearchStrategy[NumaNode]:
    """NUMA nodes of a machine that has `count`."""
    return st.integers(0, count - 1).map(NumaNode)


def devices(
    *, ids: st.SearchStrategy[DeviceId] | None = None, nodes: st.SearchStrategy[NumaNode] | None = None
) -> st.SearchStrategy[Device]:
    """Devices: healthy without topology first; without nodes, on one and on several of `nodes` too."""
    attached = st.lists(numa_nodes() if nodes is None else nodes, max_size=3, unique=True).map(tuple)
    return st.builds(Device, device_ids() if ids is None else ids, st.sampled_from(Health), st.none() | attached)


def device_lists(
    *,
    ids: st.SearchStrategy[DeviceId] | None = None,
    nodes: st.SearchStrategy[NumaNode] | None = None,
    min_size: int = 0,
    max_size: int = 8,
    unique: bool = True,
) -> st.SearchStrategy[tuple[Device, ...]]:
    """What a plugin may list; unless `unique`, it may list a device twice."""
    listed = devices(ids=ids, nodes=nodes)
    by = (lambda device: device.id) if unique else None
    return st.lists(listed, min_size=min_size, max_size=max_size, unique_by=by).map(tuple)


def device_sets(*, ids: st.SearchStrategy[DeviceId] | None = None, max_size: int = 8) -> st.SearchStrategy[DeviceSet]:
    """Device sets, each on an index of its own, which may know more than the set has."""
    listed = st.lists(device_ids() if ids is None else ids, max_size=max_size)

    def chosen(known: list[DeviceId]) -> st.SearchStrategy[DeviceSet]:
        whole = DeviceSet.of(known)
        return st.sets(st.sampled_from(known)).map(whole.index.select) if known else st.just(whole)

    return listed.map(DeviceSet.of) | listed.flatmap(chosen)


def allocate_responses() -> st.SearchStrategy[ContainerAllocateResponse]:
    """What a plugin may answer to Allocate: nothing first; names are few, so that answers disagree."""
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


# --- pods ------------------------------------------------------------------------------------------------------------


@st.composite
def pods(
    draw: st.DrawFn,
    *,
    uids: Sequence[PodUid] = PODS,
    resources: Sequence[str] = (*RESOURCES, "cpu"),
    most: int = 3,
    max_init_containers: int = 3,
    max_containers: int = 2,
) -> Pod:
    """Pods with app containers, init containers and sidecars, each asking for up to `most` of some `resources`."""
    count = st.sampled_from((None, *range(1, most + 1), 0))
    limits = st.fixed_dictionaries(dict.fromkeys(resources, count)).map(
        lambda asked: {name: size for name, size in asked.items() if size is not None}
    )
    apps = draw(st.lists(limits, min_size=1, max_size=max_containers))
    inits = draw(st.lists(st.tuples(limits, st.booleans()), max_size=max_init_containers))
    return Pod(
        uid := draw(st.sampled_from(uids)),
        name=str(uid),
        containers=tuple(Container(f"app-{number}", asked) for number, asked in enumerate(apps)),
        init_containers=tuple(
            Container(f"init-{number}", asked, restartable) for number, (asked, restartable) in enumerate(inits)
        ),
    )


# --- machines --------------------------------------------------------------------------------------------------------


def topologies(*, max_nodes: int = 6, policies: Collection[Policy] = tuple(Policy)) -> st.SearchStrategy[Topology]:
    """Machines of up to `max_nodes` NUMA nodes, under any of `policies` in both scopes."""
    machines = st.integers(1, max_nodes).map(lambda count: tuple(map(NumaNode, range(count))))
    return st.builds(Topology, machines, st.sampled_from(list(policies)), st.sampled_from(Scope))


def topology_hints(*, nodes: int = 4) -> st.SearchStrategy[TopologyHint]:
    """Hints for a machine of `nodes` NUMA nodes: from anywhere first, then with a mask that is not empty."""
    masks = st.integers(1, (1 << nodes) - 1).map(NumaMask)
    return st.builds(TopologyHint, st.none() | masks, st.booleans())


def provider_hints(
    *, nodes: int = 4, max_resources: int = 2, max_hints: int = 3
) -> st.SearchStrategy[dict[str, tuple[TopologyHint, ...] | None]]:
    """What one hint provider may say: nothing first; no preference; impossible; several hints."""
    listed = st.lists(topology_hints(nodes=nodes), max_size=max_hints).map(tuple)
    return st.dictionaries(_WORDS, st.none() | listed, max_size=max_resources)


# --- what is known of a node -----------------------------------------------------------------------------------------


@st.composite
def ledgers(  # noqa: D417  # Hypothesis passes `draw`
    draw: st.DrawFn,
    *,
    devices: Mapping[ResourceName, Collection[DeviceId]] | None = None,
    uids: Sequence[PodUid] = PODS,
    shared_by_error: bool = False,
    max_steps: int = 6,
) -> Ledger:
    """Ledgers whose containers hold some of `devices`, reserved or allocated.

    Args:
        devices: what there is to hold; some plain devices of `RESOURCES` if it is None.
        uids: who may hold them.
        shared_by_error: start with a file in which two pods may have one device.
        max_steps: how often something is reserved, confirmed, released or evicted.
    """
    pool = {name: tuple(DeviceId(f"gpu-{n}") for n in range(6)) for name in RESOURCES} if devices is None else devices
    offered = {name: sorted(set(ids)) for name, ids in pool.items() if ids}
    if not offered:
        return Ledger()
    keys = st.builds(ContainerKey, st.sampled_from(uids), _WORDS)
    names = st.sampled_from(sorted(offered))
    ledger = Ledger.of(draw(st.lists(_allocations(offered), max_size=3))) if shared_by_error else Ledger()
    for _ in range(draw(st.integers(0, max_steps))):
        key, resource, fate = draw(keys), draw(names), draw(st.sampled_from(("confirm", "keep", "release", "evict")))
        free = [device for device in offered[resource] if device not in ledger.in_use(resource)]
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


def _allocations(offered: Mapping[ResourceName, Sequence[DeviceId]]) -> st.SearchStrategy[Allocation]:
    """Allocations as a file has them: each for itself, so that two may have the same device."""
    keys = st.builds(ContainerKey, st.sampled_from(PODS), _WORDS)
    nodes = st.lists(numa_nodes(), max_size=2, unique=True).map(lambda listed: tuple(sorted(listed)))

    def of(resource: ResourceName) -> st.SearchStrategy[Allocation]:
        held = st.dictionaries(st.sampled_from(offered[resource]), nodes, min_size=1, max_size=3)
        return st.builds(Allocation, keys, st.just(resource), held, st.binary(max_size=4).map(Receipt))

    return st.sampled_from(sorted(offered)).flatmap(of)


@st.composite
def plugin_events(
    draw: st.DrawFn,
    *,
    resources: Sequence[ResourceName] = RESOURCES,
    lists: st.SearchStrategy[tuple[Device, ...]] | None = None,
    max_size: int = 8,
) -> tuple[Event, ...]:
    """What a transport may deliver: instances register, report and are lost, some late, some after their end."""
    reports = device_lists(ids=device_ids(awkward=False)) if lists is None else lists
    options = st.builds(PluginOptions, st.booleans(), st.booleans())
    seen: list[PluginId] = []
    events: list[Event] = []
    for _ in range(draw(st.integers(0, max_size))):
        if not seen or draw(st.integers(0, 2)) == 0:
            generation = len(seen) + 1
            seen.append(PluginId(draw(st.sampled_from(resources)), f"plugin-{generation}.sock", generation))
            events.append(PluginRegistered(seen[-1], draw(options)))
        elif draw(st.integers(0, 2)):
            events.append(DevicesReported(draw(st.sampled_from(seen)), draw(reports)))
        else:
            events.append(PluginLost(draw(st.sampled_from(seen))))
    return tuple(events)


@st.composite
def nodes(  # noqa: D417  # Hypothesis passes `draw`
    draw: st.DrawFn,
    *,
    resources: Sequence[ResourceName] = RESOURCES,
    lists: st.SearchStrategy[tuple[Device, ...]] | None = None,
    uids: Sequence[PodUid] = PODS,
    max_pods: int = 3,
    settled: bool = False,
) -> NodeState:
    """Nodes whose plugins have reported, and on which some pods were admitted; devices may have turned ill since.

    Args:
        resources: what plugins serve.
        lists: what plugins list.
        uids: which pods may have been admitted.
        max_pods: how many at most.
        settled: whether nothing is in flight, that is reserved and not yet allocated.
    """
    reports = device_lists(ids=device_ids(awkward=False)) if lists is None else lists
    options = st.builds(PluginOptions, get_preferred_allocation_available=st.booleans())
    node = NodeState()
    plugins = [PluginId(resource, "plugin.sock", number) for number, resource in enumerate(resources, start=1)]
    for plugin in plugins:
        node = node.apply(PluginRegistered(plugin, draw(options)), now=0.0)
        node = node.apply(DevicesReported(plugin, draw(reports)), now=0.0)
    for uid in uids[: draw(st.integers(0, max_pods))]:
        pod = draw(pods(uids=(uid,), resources=resources))
        node = admit(node, pod, confirmed=settled or draw(st.booleans()))
    for plugin in plugins:
        match draw(st.sampled_from(("stays", "changes", "is lost"))):
            case "changes":
                listed = node.inventory.current_report(plugin.resource)
                assert listed is not None, "it has reported"  # noqa: S101  # for mypy
                ill = {device.id: draw(st.sampled_from(Health)) for device in listed.devices.values()}
                changed = tuple(evolve(device, health=ill[device.id]) for device in listed.devices.values())
                node = node.apply(DevicesReported(plugin, changed), now=1.0)
            case "is lost":
                node = node.apply(PluginLost(plugin), now=1.0)
            case _:
                pass
    return node


def admit(
    node: NodeState, pod: Pod, containers: Sequence[Container] | None = None, *, confirmed: bool = True
) -> NodeState:
    """The node once `containers` of `pod`, or all, were given what they ask for, as far as there was enough.

    The plugins have no preference.
    """
    for container in pod.in_start_order if containers is None else containers:
        key = pod.key(container)
        for resource, size in node.requests(pod, container):
            demand = ResourceRequest(key, resource, size)
            try:
                decision = node.devices_to_allocate(pod, demand)
            except AdmissionError:
                continue
            settled = decision.answer(()) if isinstance(decision, AskPlugin) else decision
            if settled.devices:
                node = node.reserve(pod, demand, settled.devices)
                node = node.confirm(key, resource, Receipt(b"")) if confirmed else node
    return node
