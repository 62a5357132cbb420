"""Reads a fleet's file.

Law: a file is read in bounded time and memory, or refused with one sentence that names the line and the field, if they
are known. An unknown field is refused, because a misspelled field would otherwise be silently ignored.
"""

import fnmatch
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from attrs import evolve
from devicecore_tools.node.settings import TAINT_EFFECTS, ManagerSettings, all_taints, taint
from devicecore_tools.numa import FIELDS, NumaError, node_sizes, read_policies

from devicecore.domain.documents import Document, Value, described
from devicecore.domain.dra.errors import InvalidPoolError
from devicecore.domain.dra.model import DriverName
from devicecore.domain.dra.slices import AttributeValue, PublishedDevice, Version
from devicecore.domain.errors import DocumentError, InvalidResourceNameError
from devicecore.domain.model import resource_name
from devicecore.domain.names import is_dns_label, is_dns_subdomain, is_label_value, is_qualified_name
from devicecore.domain.text import foreign_text, listed
from devicecore.domain.topology import MAX_ALLOWABLE_NUMA_NODES, Policy, PolicyOptions, Scope, Topology
from devicecore.system.documents import MAX_DOCUMENT_SIZE, read_documents, text_of
from devicecore.system.files import read_file
from devicecore_fleet.cluster.lives import BehaviorError, parse
from devicecore_fleet.cluster.records import seconds_of
from devicecore_fleet.fleet.commands import check_command
from devicecore_fleet.fleet.description import (
    MAX_NODES,
    BehaviorDescription,
    DevicePattern,
    DriverDescription,
    FleetDescription,
    GroupDescription,
    PlannedCommand,
    PluginDescription,
    filled,
    filled_in,
)

T = TypeVar("T")

MAX_DEVICES = 2_000
"""The maximum number of devices on a node."""

MAX_ALL_DEVICES = 500_000
"""The maximum number of devices in a fleet."""

_MAX_FAULTS = 1_000
_MAX_SECONDS = 1e7
_MAX_NUMA = 64
_MAX_TEXT = 4096  # the maximum length of an annotation or a providerID
_MAX_COUNTER_SETS = 64
_DEVICE_EFFECTS = ("NoSchedule", "NoExecute", "None")
_GROUP_FIELDS = (
    *("shape", "name", "count", "first", "cpu", "memory", "pods", "capacity", "labels", "taints"),
    *("annotations", "providerID", "containers"),
    *("numaNodes", "topologyManager", "plugins", "drivers", "directory", "topologyObjects", "machine", "kubelet"),
)
# Without this size of its disk, a node would get no pods that request ephemeral storage.
_DEFAULTS = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110"}


class FleetFileError(DocumentError):
    """A fleet's file cannot be used."""


def read_fleet(path: Path) -> FleetDescription:
    """Return the content of a fleet's file.

    Raises FleetFileError if the file is invalid, and OSError if it cannot be read.
    """
    data = read_file(path, MAX_DOCUMENT_SIZE, follow_links=True)
    return parse_fleet(text_of(data, str(path), error=FleetFileError), str(path))


def parse_fleet(text: str, file: str) -> FleetDescription:
    """Parse the text of a fleet's file. `file` is the name of the file in errors.

    Raises FleetFileError if the text cannot be used.
    """
    documents = read_documents(text, file, error=FleetFileError, unique_keys=True)
    whole = documents[0] if documents else Value(None, Document(file, error=FleetFileError))
    if isinstance(whole.data, dict) and "kind" in whole.data and "nodes" not in whole.data:
        whole["kind"].refuse(
            "expected a fleet's file, with `nodes`, got a Kubernetes object; `devicecore fleet shapes` lists examples"
        )
    if len(documents) > 1:
        documents[1].refuse("expected one document, got more")
    _check_fields(whole, ("nodes", "faults"))
    groups = tuple(_group(_with_shape(one)) for one in _some(whole["nodes"], MAX_NODES))
    _check_nodes(whole, groups)
    fleet = FleetDescription(groups)
    faults = whole["faults"].sequence()
    if len(faults) > _MAX_FAULTS:
        whole["faults"].refuse(f"expected at most {_MAX_FAULTS}, got {len(faults)}")
    return evolve(fleet, commands=tuple(_fault(one, fleet) for one in faults))


# --- shapes -----------------------------------------------------------------------------------------------------------


def shapes() -> Mapping[str, str]:
    """Return the example fleet files, by name."""
    found = {one.name: one for one in files("devicecore_fleet.fleet").joinpath("shapes").iterdir()}
    return {
        name.removesuffix(".yaml"): found[name].read_text("utf-8") for name in sorted(found) if name.endswith(".yaml")
    }


def _with_shape(group: Value) -> Value:
    """Return a group with the fields that its shape adds."""
    _check_fields(group, _GROUP_FIELDS)
    if group["shape"].data is None:
        return group
    known, wanted = shapes(), group["shape"].text()
    if wanted not in known:
        group["shape"].refuse(f"expected one of {', '.join(known)}, got {wanted!r}")
    shape = read_documents(known[wanted], f"the shape {wanted}", error=FleetFileError)[0]["nodes"].sequence()[0]
    assert isinstance(shape.data, dict)  # noqa: S101 - a test reads all shapes
    assert isinstance(group.data, dict)  # noqa: S101 - for mypy: its fields were checked
    return _Overlay(group, {**shape.data, **group.data})


class _Overlay(Value):
    """A group with fields from a shape. Errors name the location in the user's file."""

    __slots__ = ("own",)

    def __init__(self, own: Value, data: Mapping[str, object]) -> None:
        super().__init__(dict(data), own.place, own.step)
        self.own = own

    @property
    def line(self) -> int | None:
        return self.own.line


# --- groups -----------------------------------------------------------------------------------------------------------


def _group(group: Value) -> GroupDescription:
    count, first = _number(group["count"], 1, MAX_NODES, 1), _number(group["first"], 0, 10**6, 0)
    pattern = group["name"].text()
    names = {filled(pattern, first), filled(pattern, first + count - 1)}
    if bad := [name for name in sorted(names) if not is_dns_subdomain(name, 63)]:  # names are also label values
        group["name"].refuse(f"expected the name of a node, at most 63 of a-z, 0-9, '-' and '.', got {bad[0]!r:.300}")
    if count > 1 and len(names) == 1:
        group["name"].refuse("expected {number} in the name of more than one node, such as node-{number}")
    managers, pinned, capacity, allocatable = _managers(group)
    numa_nodes = tuple(range(_number(group["numaNodes"], 1, _MAX_NUMA, 1)))
    if pinned is not None:
        if group["numaNodes"].data is not None and numa_nodes != pinned.numa_nodes:
            group["numaNodes"].refuse(f"expected the machine's number of NUMA nodes: {len(pinned.numa_nodes)}")
        numa_nodes = pinned.numa_nodes
    plugins = tuple(_plugin(one, numa_nodes) for one in group["plugins"].sequence())
    drivers = tuple(_driver(one, numa_nodes) for one in group["drivers"].sequence())
    _check_unique(group["plugins"], [str(one.resource) for one in plugins], "resource")
    _check_unique(group["drivers"], [str(one.name) for one in drivers], "driver")
    taints = tuple(_taint(one) for one in group["taints"].sequence())
    if len(all_taints(taints, is_tainted=False)) < len(taints):
        group["taints"].refuse("expected each key once for each effect")
    directory = group["directory"].text("")
    if directory and count > 1 and "{node}" not in directory:
        group["directory"].refuse("expected {node} in the directory of more than one node")
    found = GroupDescription(
        pattern,
        count,
        first,
        _capacity(group, capacity),
        _topology(group["topologyManager"], numa_nodes) if pinned is None else pinned,
        _labels(group["labels"]),
        taints,
        plugins,
        drivers,
        Path(directory) if directory else None,
        group["topologyObjects"].boolean(),
        _annotations(group["annotations"]),
        _of_each_node(group["providerID"]),
        tuple(_behavior(one) for one in group["containers"].sequence()),
        managers,
        allocatable,
    )
    if (devices := sum(one.count for one in found.patterns)) > MAX_DEVICES:
        group.refuse(f"expected at most {MAX_DEVICES} devices on a node, got {devices}")
    return found


def _managers(group: Value) -> tuple[ManagerSettings | None, Topology | None, Mapping[str, str], Mapping[str, str]]:
    """Return the settings of the managers, the topology, and the Node's capacity and allocatable."""
    machine, kubelet = group["machine"], group["kubelet"]
    if machine.data is None:
        if kubelet.data is not None:
            kubelet.refuse("expected `machine` as well: the CPUs and memory that the kubelet pins")
        return None, None, {}, {}
    for name in ("cpu", "memory"):
        if group[name].data is not None:
            group[name].refuse("expected no value, because `machine` determines it")
    _check_fields(kubelet, tuple(name for name in FIELDS if not name.startswith("topologyManager")))
    manager = group["topologyManager"]
    _check_fields(manager, ("policy", "scope", "options"))
    _one_of(manager["policy"], [one.value for one in Policy], Policy.NONE.value)
    _one_of(manager["scope"], [one.value for one in Scope], Scope.CONTAINER.value)
    configuration = {name: one.data for name, one in kubelet.mapping().items()}
    configuration["topologyManagerPolicy"] = manager["policy"].text(Policy.NONE.value)
    configuration["topologyManagerScope"] = manager["scope"].text(Scope.CONTAINER.value)
    configuration["topologyManagerPolicyOptions"] = {
        name: _text(one) for name, one in manager["options"].mapping().items()
    }
    try:
        policies = read_policies(configuration, machine.data)
    except NumaError as error:
        is_of_machine = str(error).startswith("the machine:") or kubelet.data is None
        (machine if is_of_machine else kubelet).refuse(str(error), error)
    settings = ManagerSettings(configuration=configuration, machine=machine.data)
    return settings, policies.topology, *node_sizes(policies)


def _capacity(group: Value, of_machine: Mapping[str, str]) -> Mapping[str, str]:
    found = {name: group[name] for name in _DEFAULTS} | group["capacity"].mapping()
    capacity = {**_DEFAULTS, **of_machine}
    for name, value in found.items():
        if not is_qualified_name(name):
            value.refuse(f"expected the name of a resource, got {name!r:.100}")
        if value.data is not None:
            value.quantity(whole=name != "cpu")
            capacity[name] = str(value.data)
    return capacity


def _topology(value: Value, numa_nodes: tuple[int, ...]) -> Topology:
    _check_fields(value, ("policy", "scope", "options", "distances"))
    policy = _one_of(value["policy"], [one.value for one in Policy], Policy.NONE.value)
    scope = _one_of(value["scope"], [one.value for one in Scope], Scope.CONTAINER.value)
    try:
        options = PolicyOptions.of({name: _text(one) for name, one in value["options"].mapping().items()})
    except ValueError as error:
        value["options"].refuse(str(error), error)
    rows = [[one.integer() for one in row.sequence()] for row in value["distances"].sequence()]
    if options.prefer_closest_numa_nodes and not rows:
        value.refuse("expected distances, because prefer-closest-numa-nodes needs them")
    most = options.max_allowable_numa_nodes or MAX_ALLOWABLE_NUMA_NODES
    try:
        found = Topology(numa_nodes, policy, scope, distances=rows, max_numa_nodes=most)
    except ValueError as error:
        value.refuse(str(error), error)
    return found if options.prefer_closest_numa_nodes else evolve(found, distances=())


def _text(value: Value) -> str:
    """Return the value of an option as a kubelet spells it.

    YAML may read an unquoted value as a boolean or a number.
    """
    return str(value.data).lower() if isinstance(value.data, bool | int) else value.text()


def _labels(value: Value) -> Mapping[str, str]:
    labels = {}
    for name, one in value.mapping().items():
        if not is_qualified_name(name):
            one.refuse(f"expected the name of a label, got {name!r}")
        labels[name] = _label_value(one)
    return labels


def _annotations(value: Value) -> Mapping[str, str]:
    for name, one in value.mapping().items():
        if not is_qualified_name(name):
            one.refuse(f"expected the name of an annotation, got {name!r:.100}")
    return {name: _of_each_node(one) for name, one in value.mapping().items()}


def _of_each_node(value: Value) -> str:
    """Return a string that may contain `{node}`."""
    text = value.text("")
    if len(text) > _MAX_TEXT or "{number" in text:
        value.refuse(
            f"expected at most {_MAX_TEXT} characters, with {{node}} in place of {{number}}, got {text!r:.100}"
        )
    return text


def _behavior(value: Value) -> BehaviorDescription:
    _check_fields(value, ("pods", "labels", "do"))
    try:
        parse(value["do"].text())
    except BehaviorError as error:
        value["do"].refuse(str(error), error)
    return BehaviorDescription(value["pods"].text("*"), _labels(value["labels"]), value["do"].text())


def _label_value(value: Value) -> str:
    text = value.text("")
    if not is_label_value(text):
        value.refuse(f"expected at most 63 letters, digits, '-', '_' and '.', got {text!r:.100}")
    return text


def _taint(value: Value) -> Mapping[str, str]:
    _check_fields(value, ("key", "value", "effect"))
    return taint(_taint_key(value["key"]), _label_value(value["value"]), _one_of(value["effect"], TAINT_EFFECTS))


def _taint_key(value: Value) -> str:
    key = value.text()
    if not is_qualified_name(key):
        value.refuse(f"expected the key of a taint, got {key!r:.100}")
    return key


# --- devices ----------------------------------------------------------------------------------------------------------


def _plugin(value: Value, numa_nodes: tuple[int, ...]) -> PluginDescription:
    _check_fields(value, ("resource", "devices"))
    try:
        resource = resource_name(value["resource"].text())
    except InvalidResourceNameError as error:
        value["resource"].refuse(str(error), error)
    short = resource.rpartition("/")[2]
    devices = value["devices"]
    if isinstance(devices.data, int):
        patterns = [DevicePattern(f"{short}-{{number}}", _number(devices, 0, MAX_DEVICES), 0, numa_nodes)]
    elif isinstance(devices.data, list):
        patterns = [_pattern(one, numa_nodes, numa_nodes) for one in devices.sequence()]
    else:
        devices.refuse(f"expected a whole number, or a list of devices, got {described(devices.data)}")
    plugin = PluginDescription(resource, tuple(patterns))
    _check_unique(devices, [str(device.id) for device in plugin.devices], "device")
    return plugin


_DEVICE_FIELDS = (  # the fields of a device in a ResourceSlice, resource.k8s.io/v1
    *("attributes", "capacity", "consumesCounters", "taints", "allowMultipleAllocations"),
    *("bindsToNode", "bindingConditions", "bindingFailureConditions"),
)


def _driver(value: Value, numa_nodes: tuple[int, ...]) -> DriverDescription:
    _check_fields(value, ("name", "devices", "sharedCounters"))
    name = value["name"].text()
    if not is_dns_subdomain(name, 63):
        value["name"].refuse(f"expected a DNS name of at most 63 characters, got {name!r}")
    # The NUMA node attribute is written only on request, because most drivers do not publish it yet.
    patterns = tuple(_pattern(one, numa_nodes, (), _DEVICE_FIELDS) for one in value["devices"].sequence())
    counters = tuple(_counter_set(one) for one in value["sharedCounters"].sequence())
    if len(counters) > _MAX_COUNTER_SETS:
        value["sharedCounters"].refuse(f"expected at most {_MAX_COUNTER_SETS}, got {len(counters)}")
    driver = DriverDescription(DriverName(name), patterns, counters)
    _check_unique(value["devices"], driver.names, "device")
    if bad := [device for device in driver.names if not is_dns_label(device)]:
        value["devices"].refuse(f"expected names of 1 to 63 characters a-z, 0-9 and '-', got {bad[0]!r}")
    sets = {str(one["name"]) for one in counters}
    for pattern in value["devices"].sequence():
        for used in pattern["consumesCounters"].sequence():
            first = pattern["first"].integer(0)
            numbers = range(first, first + pattern["count"].integer(1))
            names = {filled(used["counterSet"].text(), number) for number in numbers}
            if missing := sorted(names - sets):
                used["counterSet"].refuse(f"expected the name of one of `sharedCounters`, got {missing[0]!r}")
    return driver


def _pattern(
    value: Value, numa_nodes: tuple[int, ...], default: tuple[int, ...], fields: tuple[str, ...] = ()
) -> DevicePattern:
    """Return the devices that a field describes.

    By default, the devices are attached to the NUMA nodes in `default`.
    """
    _check_fields(value, ("name", "count", "first", "numa", *fields))
    count, name = _number(value["count"], 0, MAX_DEVICES, 1), value["name"].text()
    if count > 1 and "{number" not in name:
        value["name"].refuse("expected {number} in the name of more than one device, such as gpu-{number}")
    numa = default
    if value["numa"].data is not None:
        numa = tuple(_number(one, 0, numa_nodes[-1]) for one in value["numa"].sequence())
    known = {one: _FIELD_READERS[one](value[one]) for one in fields if value[one].data is not None}
    return DevicePattern(name, count, _number(value["first"], 0, 10**6, 0), numa, known)


def _device_taints(value: Value) -> object:
    for one in value.sequence():
        _check_fields(one, ("key", "value", "effect", "timeAdded"))
        _taint_key(one["key"])
        _label_value(one["value"])
        _one_of(one["effect"], _DEVICE_EFFECTS)
    return value.data


_ATTRIBUTES: Mapping[str, Callable[[Value], AttributeValue]] = {
    "bool": Value.boolean,
    "int": Value.integer,
    "string": Value.text,
    "version": lambda value: Version(value.text()),
    "bools": lambda value: tuple(one.boolean() for one in value.sequence()),
    "ints": lambda value: tuple(one.integer() for one in value.sequence()),
    "strings": lambda value: tuple(one.text() for one in value.sequence()),
    "versions": lambda value: tuple(Version(one.text()) for one in value.sequence()),
}


def _typed(name: str, value: Value) -> object:
    """Return an attribute in the API's form: a plain value is put into an object that names its type."""
    match value.data:
        case bool():
            typed: dict[str, object] = {"bool": value.data}
        case int():
            typed = {"int": value.data}
        case str():
            typed = {"string": value.data}
        case dict() if len(value.data) == 1 and value.data.keys() <= _ATTRIBUTES.keys():
            typed = value.data
        case _:
            value.refuse("expected a string, an integer, true, false or an object such as {version: 1.2.3}")
    try:
        sample = filled_in(typed, 0, "node")
    except ValueError as error:
        value.refuse("expected an integer or {number}", error)
    kind = next(iter(typed))
    try:
        PublishedDevice("device", {name: _ATTRIBUTES[kind](Value(sample, value.place, value.step)[kind])})
    except InvalidPoolError as error:
        value.refuse(error.problem, error)
    return typed


def _capacities(value: Value) -> object:
    for name, one in value.mapping().items():
        try:
            PublishedDevice("device", capacity={name: "1"})
        except InvalidPoolError as error:
            one.refuse(error.problem, error)
    return _amounts(value)


def _counters(value: Value) -> object:
    for name, one in value.mapping().items():
        if not is_dns_label(name):
            one.refuse(f"expected the name of a counter, made of a-z, 0-9 and '-', got {name!r:.100}")
    return _amounts(value)


def _amounts(value: Value) -> dict[str, object]:
    """Return quantities by name in the API's form: a plain value is put into an object with the field `value`."""
    amounts: dict[str, object] = {}
    for name, one in value.mapping().items():
        if isinstance(one.data, dict):
            one["value"].quantity()
            amounts[name] = one.data
        else:
            one.quantity()
            amounts[name] = {"value": str(one.data)}
    return amounts


def _consumed(value: Value) -> object:
    return [
        {"counterSet": one["counterSet"].text(), "counters": _counters(one["counters"])} for one in value.sequence()
    ]


_FIELD_READERS: Mapping[str, Callable[[Value], object]] = {
    "attributes": lambda value: {name: _typed(name, one) for name, one in value.mapping().items()},
    "capacity": _capacities,
    "consumesCounters": _consumed,
    "taints": _device_taints,
    **dict.fromkeys(("allowMultipleAllocations", "bindsToNode"), Value.boolean),
    **dict.fromkeys(
        ("bindingConditions", "bindingFailureConditions"), lambda value: [one.text() for one in value.sequence()]
    ),
}


def _counter_set(value: Value) -> Mapping[str, object]:
    _check_fields(value, ("name", "counters"))
    return {"name": value["name"].text(), "counters": _counters(value["counters"])}


# --- commands ---------------------------------------------------------------------------------------------------------


def _fault(value: Value, fleet: FleetDescription) -> PlannedCommand:
    _check_fields(value, ("at", "nodes", "do", "for", "every"))
    pattern, command = value["nodes"].text(), tuple(value["do"].text().split())
    chosen = {id(group): group for name, group in fleet.nodes() if fnmatch.fnmatchcase(name, pattern)}
    if not chosen:
        names = listed([name for name, _ in fleet.nodes()])
        value["nodes"].refuse(f"there is no node {foreign_text(pattern, 100)}; nodes: {names}")
    for group in chosen.values():
        if problem := check_command(command, group):
            value["do"].refuse(problem)
    lasts, every = (_seconds(value[name]) if value[name].data is not None else None for name in ("for", "every"))
    if every is not None and every < 1:
        value["every"].refuse("expected at least 1s")
    return PlannedCommand(_seconds(value["at"]), pattern, command, lasts, every)


def _seconds(value: Value) -> float:
    """Return the number of seconds in a duration such as 90, 500ms, 30s, 5m or 1h30m."""
    seconds = seconds_of(str(value.data)) if not isinstance(value.data, bool) else None
    if seconds is None or seconds > _MAX_SECONDS:
        return value.refuse(f"expected a duration such as 500ms, 30s, 5m or 1h30m, got {value.data!r:.100}")
    return seconds


# --- common parts ------------------------------------------------------------------------------------------


def _check_nodes(whole: Value, groups: tuple[GroupDescription, ...]) -> None:
    nodes = sum(group.count for group in groups)
    if nodes > MAX_NODES:
        whole["nodes"].refuse(f"expected at most {MAX_NODES} nodes, got {nodes}")
    devices = sum(group.count * one.count for group in groups for one in group.patterns)
    if devices > MAX_ALL_DEVICES:
        whole["nodes"].refuse(f"expected at most {MAX_ALL_DEVICES} devices in all, got {devices}")
    names = [(name, group) for group in groups for name in group.node_names()]
    _check_unique(whole["nodes"], [name for name, _ in names], "node")
    own = [str(group.directory).replace("{node}", name) for name, group in names if group.directory is not None]
    _check_unique(whole["nodes"], own, "directory")


def _check_fields(value: Value, known: tuple[str, ...]) -> None:
    for name, one in value.mapping().items():
        if name not in known:
            one.refuse(f"there is no such field: expected one of {', '.join(known)}")


def _check_unique(value: Value, names: "list[str] | tuple[str, ...]", what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            value.refuse(f"expected each {what} once, got {name} twice")
        seen.add(name)


def _some(value: Value, limit: int) -> list[Value]:
    found = value.sequence()
    if not found:
        value.refuse("expected at least one group of nodes")
    if len(found) > limit:
        value.refuse(f"expected at most {limit}, got {len(found)}")
    return found


def _number(value: Value, least: int, most: int, default: int | None = None) -> int:
    number = value.integer(default)
    if not least <= number <= most:
        value.refuse(f"expected a number from {least} to {most}, got {number}")
    return number


def _one_of(value: Value, known: "list[str] | tuple[str, ...]", default: str | None = None) -> str:
    text = value.text(default)
    if text not in known:
        value.refuse(f"expected one of {', '.join(known)}, got {text[:100]!r}")
    return text
