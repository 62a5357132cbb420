"""Checks of plugins: their sockets, their answers, and the size of their lists.

Law: a missing resource or plugin is reported only if every source that could name it was read.
"""

from collections.abc import Iterator

from devicecore.domain.model import Health
from devicecore.domain.text import counted
from devicecore_tools.doctor.facts import Facts
from devicecore_tools.doctor.findings import Evidence, Found, name, names
from devicecore_tools.doctor.look import PluginSeen, Source

MAX_LIST_BYTES = 4 * 1024 * 1024
"""What a kubelet accepts as one message (kubelet.md 2.2)."""

NEARLY_FULL = 0.8
"""The part of `MAX_LIST_BYTES` from which on a list is near the limit."""

LATE = 2.0
"""Seconds for options and first list together, from which on a plugin answers late. A kubelet dials for 10 s."""

_BYTES_PER_DEVICE = 13  # around an id in a list: two tags, two lengths, and the health


def socket_without_resource(facts: Facts) -> Iterator[Found]:
    """A plugin serves devices that the kubelet has not registered."""
    file, api = facts.look.checkpoint.value, facts.api
    if (file is None or (facts.file and facts.data is None)) and (api is None or api.allocatable is None):
        return  # what is registered is not known
    if facts.look.plugins.value is not None:
        registered = _registered(facts)
        for plugin, resources in facts.served_by:
            if _should_be_registered(plugin, certain=facts.data is not None):
                known = any(resource in facts.registered or resource in facts.allocatable for resource in resources)
                held = any(resource in facts.in_use for resource in resources)
                if not known and not held:
                    yield _not_registered(plugin, registered)
        return
    sockets = facts.look.sockets.value
    if sockets and sockets.kubelet and sockets.plugins and not any(facts.registered.values()) and not facts.resources:
        sentence = f"{_sockets(sockets.plugins)} in the kubelet's directory, but no resource is registered."
        yield Found(sentence, (Evidence(Source.SOCKETS, names(sockets.plugins)), _registered(facts)))


def _should_be_registered(plugin: PluginSeen, *, certain: bool) -> bool:
    """Whether the kubelet would name a device of this plugin: its answer leaves out those on no NUMA node."""
    states = plugin.devices.states if plugin.devices else ()
    return any(health is Health.HEALTHY and (certain or topology != ()) for health, topology in states)


def _not_registered(plugin: PluginSeen, registered: Evidence) -> Found:
    ids = [*(plugin.devices.ids if plugin.devices else ())]
    sentence = (
        f"The plugin at {name(plugin.socket)} lists {counted(len(ids), 'device')} ({names(ids)}), but the kubelet has "
        "registered none of them."
    )
    listed = Evidence(Source.PLUGINS, f"{name(plugin.socket)}: {names(ids)}")
    return Found(sentence, (listed, registered), devices=tuple(ids))


def resource_without_socket(facts: Facts) -> Iterator[Found]:
    """A resource is registered, but no socket in the kubelet's directories can be its plugin's."""
    sockets = facts.look.sockets.value
    if sockets is None or not sockets.kubelet:
        return  # no kubelet has this directory now: it is a copy, or the kubelet has stopped
    present = (*sockets.plugins, *sockets.registry)
    plugins = facts.look.plugins.value
    if plugins is None and present:
        return  # one of these may be the plugin's
    if plugins is not None and any(not plugin.devices and not plugin.resource for plugin in plugins):
        return  # what such a plugin serves is not known
    served = {resource for _, resources in facts.served_by for resource in resources}
    there = Evidence(Source.SOCKETS, names(present) if present else "no sockets of plugins")
    for resource in sorted({*facts.registered, *facts.allocatable} - served):
        ids = {*facts.registered.get(resource, ()), *facts.allocatable.get(resource, ())}
        in_use = facts.in_use.get(resource, ())
        if ids or in_use:
            sentence = f"No socket in the kubelet's directories is that of a plugin for {name(resource)}."
            yield Found(sentence, (there, _registered(facts, resource)), resource, tuple(sorted(ids | {*in_use})))


def plugin_does_not_answer(facts: Facts) -> Iterator[Found]:
    """A plugin does not answer at its socket."""
    for plugin in facts.look.plugins.value or ():
        if plugin.problem:
            sentence = f"The plugin at {name(plugin.socket)} does not answer."
            yield Found(sentence, (Evidence(Source.PLUGINS, f"{name(plugin.socket)}: {plugin.problem}"),))


def plugin_answers_late(facts: Facts) -> Iterator[Found]:
    """A plugin takes long to answer."""
    for plugin in facts.look.plugins.value or ():
        if not plugin.problem and plugin.seconds > LATE:
            sentence = f"The plugin at {name(plugin.socket)} takes more than {LATE:g} s to answer two calls."
            evidence = Evidence(Source.PLUGINS, f"{name(plugin.socket)}: GetDevicePluginOptions, ListAndWatch")
            yield Found(sentence, (evidence,), measured=f"{plugin.seconds:.1f} s")


def plugin_lists_nothing(facts: Facts) -> Iterator[Found]:
    """A plugin lists no devices."""
    for plugin in facts.look.plugins.value or ():
        if not plugin.problem and plugin.devices is not None and not plugin.devices:
            sentence = f"The plugin at {name(plugin.socket)} lists no devices."
            yield Found(sentence, (Evidence(Source.PLUGINS, f"{name(plugin.socket)}: an empty list"),), plugin.resource)


def list_near_limit(facts: Facts) -> Iterator[Found]:
    """A plugin's list is nearly as large as the largest message that a kubelet accepts, or larger."""
    sizes = {}
    for plugin, resources in facts.served_by:
        what = resources[0] if len(resources) == 1 else ""
        sizes[plugin.socket] = (
            plugin.list_bytes,
            what,
            Evidence(Source.PLUGINS, f"{name(plugin.socket)}: {plugin.list_bytes:,} bytes"),
        )
    measured = {resource for _, resource, _ in sizes.values()}
    for resource, ids in facts.registered.items():
        if resource not in measured:
            at_least = sum(len(device.encode(errors="replace")) + _BYTES_PER_DEVICE for device in ids)
            text = f"{counted(len(ids), 'healthy device')}, whose list has at least {at_least:,} bytes"
            sizes[resource] = at_least, resource, Evidence(Source.CHECKPOINT, text)
    for label, (size, resource, evidence) in sizes.items():
        if size > NEARLY_FULL * MAX_LIST_BYTES:
            how = "more than" if size > MAX_LIST_BYTES else f"{size / MAX_LIST_BYTES:.0%} of"
            sentence = (
                f"The device list of {name(label)} has {how} the {MAX_LIST_BYTES:,} bytes that a kubelet accepts."
            )
            yield Found(sentence, (evidence,), resource)


def _sockets(sockets: tuple[str, ...]) -> str:
    return f"There {'is' if len(sockets) == 1 else 'are'} {counted(len(sockets), 'socket')} of plugins"


def _registered(facts: Facts, resource: str | None = None) -> Evidence:
    """What the kubelet has registered: all resources, or the devices of one."""
    source = Source.CHECKPOINT if facts.file else Source.POD_RESOURCES
    if resource is None:
        named = names(sorted({*facts.registered, *facts.allocatable}))
        return Evidence(source, f"registered: {named or 'nothing'}")
    ids = sorted({*facts.registered.get(resource, ()), *facts.allocatable.get(resource, ())})
    return Evidence(
        source, f"{name(resource)}: {counted(len(ids), 'healthy device')} {f'({names(ids)})' if ids else ''}".rstrip()
    )
