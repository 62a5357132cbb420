"""Checks of plugins: their sockets, their answers and the size of their lists.

Law: a missing resource or plugin is reported only if every source that could name it was read.
"""

from collections.abc import Iterator, Mapping
from itertools import filterfalse

from devicecore.domain.checkpoint import FileVerdict
from devicecore.domain.model import Health
from devicecore.domain.text import counted, foreign_text
from devicecore_tools.doctor.account.plugins import (
    Absence,
    PluginSockets,
    WhyAbsent,
    is_driver,
    silent_plugins,
    wanted_resources,
)
from devicecore_tools.doctor.account.precedence import Holders, KubeletNow, Lists, Pods, believed_file
from devicecore_tools.doctor.findings.finding import Evidence, Found
from devicecore_tools.doctor.look.names import by_number, devices_of, name, names
from devicecore_tools.doctor.look.values import LIST_HAS, NOBODY_LISTENS, PLUGINS_PREFIX, Look, PluginSeen, Source

MAX_LIST_BYTES = 4 * 1024 * 1024
"""The maximum size of a message that a kubelet accepts (kubelet.md 2.2)."""

NEARLY_FULL = 0.8
"""The fraction of `MAX_LIST_BYTES` above which a list counts as close to the limit."""

LATE = 2.0
"""How many seconds a plugin may take for its options and its first list together.

A slower plugin is reported. A kubelet gives up connecting after 10 s.
"""

_BYTES_PER_DEVICE = 13  # for each id in a list: two tags, two lengths, and the health


def plugin_gone(
    look: Look, pods: Pods, holders: Holders, lists: Lists, absent: Mapping[str, Absence]
) -> Iterator[Found]:
    """Find resources without devices whose plugin may be gone, if pods hold or request them or the Node has them."""
    node = look.node.value
    wanted = wanted_resources(pods, holders)
    for resource, one in absent.items():
        if one.why not in {WhyAbsent.GONE, WhyAbsent.UNKNOWN}:
            continue  # the plugin has yet to register again, or is running, which is a different finding
        was_here = node is not None and node.allocatable.get(resource) == 0 and node.capacity.get(resource)
        sources = {source for source, _ in one.proof}
        if (resource not in wanted and not was_here) or not sources & {Source.POD_RESOURCES, Source.NODE}:
            continue
        holding = wanted.get(resource, ())
        hold = by_number(holding, "holds or requests", "hold or request")
        while_ = f", while {counted(len(holding), 'pod')} {hold} it ({names(holding)})" if holding else ""
        is_told = Source.POD_RESOURCES in sources
        nothing = "The kubelet has no healthy device of" if is_told else "The Node has no allocatable device of"
        sentence = f"{nothing} {name(resource)}, so no pod gets any{while_}: {one.because}."
        evidence = tuple(Evidence(source, text) for source, text in one.proof)
        shown = foreign_text(resource, 100)
        brief = f"the plugin for {shown} is gone" if one.why is WhyAbsent.GONE else f"there is no device of {shown}"
        yield Found(sentence, evidence, resource, tuple(lists.devices.get(resource, ())), pods=holding, brief=brief)


def socket_without_resource(look: Look, kubelet: KubeletNow, holders: Holders, lists: Lists) -> Iterator[Found]:
    """Find plugins that serve devices but are not registered with the kubelet."""
    file, api = look.checkpoint.value, look.pod_resources.value
    is_known = file is not None and file.verdict.verdict in {FileVerdict.OK, FileVerdict.ABSENT}
    if not is_known and (api is None or api.allocatable is None):
        return  # the registered resources are unknown
    if kubelet not in {KubeletNow.ANSWERS, KubeletNow.UNKNOWN}:
        return  # no kubelet is running, or it has just started
    if look.plugins.value is not None:
        registered = _registered(lists)
        for plugin, resources in lists.served_by:
            if _should_be_registered(plugin, certain=believed_file(look) is not None):
                known = any(one in lists.registered or one in (lists.allocatable or {}) for one in resources)
                held = any(resource in holders.in_use for resource in resources)
                if not known and not held:
                    yield _not_registered(plugin, registered)
        return
    sockets = look.sockets.value
    if sockets is None or not sockets.kubelet or any(lists.registered.values()) or lists.resources:
        return
    if look.node.value is not None and any(look.node.value.allocatable.values()):
        return  # a plugin has registered since the other sources were read
    left = tuple(one for one in sockets.plugins if sockets.served.get(PLUGINS_PREFIX + one) is not False)
    if left:
        there_are = f"There {by_number(left, 'is', 'are')} {counted(len(left), 'plugin socket')}"
        sentence = f"{there_are} in the kubelet's directory, but no resource is registered."
        yield Found(sentence, (Evidence(Source.SOCKETS, names(left)), _registered(lists)))


def _should_be_registered(plugin: PluginSeen, *, certain: bool) -> bool:
    """Return whether the kubelet's answer, which omits devices on no NUMA node, would name this plugin's devices."""
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


def resource_without_socket(
    look: Look, kubelet: KubeletNow, holders: Holders, lists: Lists, sockets: PluginSockets
) -> Iterator[Found]:
    """Find registered resources for which no plugin has a socket in the kubelet's directories."""
    seen, plugins = look.sockets.value, look.plugins.value
    if seen is None or not sockets.is_known or kubelet not in {KubeletNow.ANSWERS, KubeletNow.UNKNOWN}:
        return
    present = tuple(one for one in (*seen.plugins, *filterfalse(is_driver, seen.registry)) if one not in sockets.dead)
    if plugins is None and present:
        return  # one of these sockets may be the plugin's
    if plugins is not None and any(
        not plugin.devices and not plugin.resource and plugin.socket not in sockets.dead for plugin in plugins
    ):
        return  # such a plugin may serve any resource
    served = {resource for _, resources in lists.served_by for resource in resources}
    there = Evidence(Source.SOCKETS, names(present) if present else "no plugin sockets")
    for resource in sorted(lists.known_to_kubelet.keys() - served):
        ids = {*lists.healthy.get(resource, ())}
        if ids:
            sentence = f"No socket in the kubelet's directories belongs to a plugin for {name(resource)}."
            in_use = holders.in_use.get(resource, ())
            devices = tuple(sorted(ids | {*in_use}))
            yield Found(sentence, (there, _registered(lists, resource)), resource, devices)


def plugin_does_not_answer(
    look: Look, pods: Pods, holders: Holders, lists: Lists, absent: Mapping[str, Absence]
) -> Iterator[Found]:
    """Find plugins that do not answer at their socket, or that have ended and left the socket behind."""
    told = {found.resource for found in plugin_gone(look, pods, holders, lists, absent)}
    for plugin, source, candidates in silent_plugins(look, lists):
        of = f" for {name(candidates[0])}" if len(candidates) == 1 else ""
        perhaps = (
            f" It may be the plugin for {' or '.join(map(name, candidates))}." if 1 < len(candidates) <= _FEW else ""
        )
        gone = plugin.problem == NOBODY_LISTENS
        if (gone and told.issuperset(candidates) and candidates) or plugin.problem.startswith(LIST_HAS):
            continue  # the socket belongs to the plugin that is gone, or to a plugin whose list is too long
        what = "has exited: no process listens there" if gone else "does not answer"
        sentence = f"The plugin{of} at {name(plugin.socket)} {what}.{perhaps}"
        resource = candidates[0] if len(candidates) == 1 else ""
        yield Found(sentence, (Evidence(source, f"{name(plugin.socket)}: {plugin.problem}"),), resource)


_FEW = 3


def list_too_long(look: Look, lists: Lists) -> Iterator[Found]:
    """Find plugins whose list is too long to be read completely."""
    for plugin, source, candidates in silent_plugins(look, lists):
        if plugin.problem.startswith(LIST_HAS):
            of = f" for {name(candidates[0])}" if len(candidates) == 1 else ""
            sentence = f"The plugin{of} at {name(plugin.socket)} sends a list that is too large: {plugin.problem}."
            evidence = (Evidence(source, f"{name(plugin.socket)}: {plugin.problem}"),)
            yield Found(sentence, evidence, candidates[0] if len(candidates) == 1 else "")


def plugin_restarts(look: Look) -> Iterator[Found]:
    """Find plugins that recreate their socket within seconds although the kubelet has not restarted."""
    sockets = look.sockets.value
    if not sockets:
        return
    for path in sorted(sockets.remade):
        socket = path.partition("/")[2]
        if path.startswith(PLUGINS_PREFIX) or not is_driver(socket):
            evidence = (Evidence(Source.SOCKETS, f"{name(socket)} was recreated between two readings"),)
            yield Found(f"The plugin at {name(socket)} keeps restarting.", evidence)


def plugins_differ(lists: Lists) -> Iterator[Found]:
    """Find resources that several plugins serve with different devices."""
    for resource, plugins in lists.differing.items():
        known = lists.known_to_kubelet.get(resource, ())
        used = [one.socket for one in plugins if one.devices and not set(known).isdisjoint(one.devices.ids)]
        listed = [f"{name(one.socket)}: {names([*one.devices.ids])}" for one in plugins if one.devices]
        which = f" The kubelet has the devices of {name(used[0])}." if len(used) == 1 else ""
        sentence = f"{len(plugins)} plugins serve {name(resource)} and list different devices.{which}"
        evidence = (Evidence(Source.PLUGINS, "; ".join(listed)), _registered(lists, resource))
        yield Found(sentence, evidence, resource)


def plugin_answers_late(look: Look) -> Iterator[Found]:
    """Find plugins that take too long to answer."""
    for plugin in look.plugins.value or ():
        if not plugin.problem and plugin.seconds > LATE:
            sentence = f"The plugin at {name(plugin.socket)} takes more than {LATE:g} s to answer two calls."
            evidence = Evidence(Source.PLUGINS, f"{name(plugin.socket)}: GetDevicePluginOptions, ListAndWatch")
            yield Found(sentence, (evidence,), measured=f"{plugin.seconds:.1f} s")


def plugin_lists_nothing(look: Look, pods: Pods, holders: Holders, absent: Mapping[str, Absence]) -> Iterator[Found]:
    """Find plugins that list no devices."""
    wanted = wanted_resources(pods, holders)
    for resource, one in absent.items():
        if one.why is WhyAbsent.EMPTY and resource in wanted and look.plugins.value is None:
            hold = f"{counted(len(wanted[resource]), 'pod')} {by_number(wanted[resource], 'asks', 'ask')} for some"
            sentence = f"The plugin for {name(resource)} lists no devices, but {hold} ({names(wanted[resource])})."
            evidence = tuple(Evidence(source, text) for source, text in one.proof)
            yield Found(sentence, evidence, resource, pods=wanted[resource])
    for plugin in look.plugins.value or ():
        if not plugin.problem and plugin.devices is not None and not plugin.devices:
            sentence = f"The plugin at {name(plugin.socket)} lists no devices."
            yield Found(sentence, (Evidence(Source.PLUGINS, f"{name(plugin.socket)}: an empty list"),), plugin.resource)


def list_near_limit(lists: Lists) -> Iterator[Found]:
    """Find plugins whose list is close to or above a kubelet's size limit."""
    sizes = {}
    for plugin, resources in lists.served_by:
        what = resources[0] if len(resources) == 1 else ""
        sizes[plugin.socket] = (
            plugin.list_bytes,
            what,
            Evidence(Source.PLUGINS, f"{name(plugin.socket)}: {plugin.list_bytes:,} bytes"),
        )
    measured = {resource for _, resource, _ in sizes.values()}
    for resource, ids in lists.registered.items():
        if resource not in measured:
            at_least = len("".join(ids).encode(errors="replace")) + _BYTES_PER_DEVICE * len(ids)
            text = f"{counted(len(ids), 'healthy device')}, whose list has at least {at_least:,} bytes"
            sizes[resource] = at_least, resource, Evidence(Source.CHECKPOINT, text)
    for label, (size, resource, evidence) in sizes.items():
        if size > NEARLY_FULL * MAX_LIST_BYTES:
            how = "more than" if size > MAX_LIST_BYTES else f"{size / MAX_LIST_BYTES:.0%} of"
            sentence = (
                f"The device list of {name(label)} takes {how} the {MAX_LIST_BYTES:,} bytes that a kubelet accepts."
            )
            brief = "a device list is larger than a kubelet accepts" if size > MAX_LIST_BYTES else ""
            yield Found(sentence, (evidence,), resource, brief=brief)


def list_differs(kubelet: KubeletNow, holders: Holders, lists: Lists) -> Iterator[Found]:
    """Find plugins whose current device list differs from the kubelet's."""
    if kubelet is not KubeletNow.ANSWERS or lists.allocatable is None:
        return
    for plugin, resources in lists.served_by:
        resource = resources[0] if len(resources) == 1 else ""
        if not plugin.devices or resource not in lists.allocatable or resource in lists.differing:
            continue
        states = zip(plugin.devices.ids, plugin.devices.states, strict=True)
        healthy = {str(id_): places for id_, (health, places) in states if health is Health.HEALTHY}
        known, held = lists.allocatable[resource], holders.in_use.get(resource, ())
        # the kubelet's answer omits devices that are on no NUMA node
        unknown = [id_ for id_, places in healthy.items() if id_ not in known and places != ()]
        gone = [id_ for id_ in known if id_ not in healthy and id_ not in held]  # other checks report held devices
        if not (unknown or gone):
            continue
        lacks = f"The kubelet does not have {names(unknown)}" if unknown else ""
        keeps = f"{'the' if unknown else 'The'} kubelet counts {names(gone)} as healthy" if gone else ""
        sentence = (
            f"The plugin for {name(resource)} sends a list that differs from the kubelet's. "
            f"{', and '.join(filter(None, (lacks, keeps)))}."
        )
        told = Evidence(Source.PLUGINS, f"{name(plugin.socket)}: {devices_of([*healthy], resource)} healthy")
        yield Found(sentence, (told, _registered(lists, resource)), resource, (*unknown, *gone))


def _registered(lists: Lists, resource: str | None = None) -> Evidence:
    """Return the kubelet's registrations as evidence: all resources, or the devices of one resource."""
    if resource is None:
        return Evidence(lists.source, f"registered: {names(sorted(lists.known_to_kubelet)) or 'nothing'}")
    ids = sorted(lists.known_to_kubelet.get(resource, ()))
    listed = f" ({names(ids)})" if ids else ""
    return Evidence(lists.source, f"{name(resource)}: {counted(len(ids), 'healthy device')}{listed}")
