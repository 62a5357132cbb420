"""Checks of the kubelet itself: whether it runs, answers and can start.

Law: a kubelet is reported as stopped only if no process listens at its sockets, never because a source was not read.
"""

from collections.abc import Iterator

from devicecore.domain.dra.state_file import FILE_NAME as CLAIMS_FILE
from devicecore.domain.text import counted, foreign_text
from devicecore_tools.doctor.account.entries import TO_ADMIT, age
from devicecore_tools.doctor.account.plugins import wanted_resources
from devicecore_tools.doctor.account.precedence import (
    KUBELET_SOCKETS,
    POD_RESOURCES_SOCKET,
    Holders,
    KubeletNow,
    Lists,
    Pods,
)
from devicecore_tools.doctor.account.schedulable import closures
from devicecore_tools.doctor.findings.finding import Evidence, Found
from devicecore_tools.doctor.look.formats import version_in
from devicecore_tools.doctor.look.names import by_number, name, names
from devicecore_tools.doctor.look.values import CONFIGURATION, NO_NODE, OF_PODS, Look, Source

_SINCE_PODS = (1, 33)  # the first kubelet that keeps allocated and actuated resources in two files
_SINCE_FORM = (1, 32)  # the first kubelet whose claims file has a supported format


def kubelet_gone(look: Look, kubelet: KubeletNow, pods: Pods) -> Iterator[Found]:
    """Find out whether no kubelet is running, or one is running but does not answer."""
    running = [one for one in pods.here if one.phase == "Running"]
    run_on = f" {counted(len(running), 'pod')} on this node {by_number(running, 'continues', 'continue')} to run."
    pods_run = run_on if running else ""
    if kubelet is KubeletNow.STOPPED:
        served = look.sockets.value.served if look.sockets.value else {}
        dead = [one for one in KUBELET_SOCKETS if served.get(one) is False]
        source, dead = (Source.SOCKETS, dead) if dead else (Source.POD_RESOURCES, [POD_RESOURCES_SOCKET])
        sentence = f"No kubelet is running on this node: no process listens at {' and '.join(dead)}.{pods_run}"
        yield Found(sentence, (Evidence(source, f"connection refused: {', '.join(dead)}"),))
    elif kubelet is KubeletNow.SILENT and look.is_unheard:
        sentence = f"This node's kubelet does not report to the API server.{pods_run}"
        yield Found(sentence, (Evidence(Source.NODE, "condition Ready: Unknown"),), next=_UNHEARD)
    elif kubelet is KubeletNow.SILENT:
        problem = foreign_text(look.pod_resources.problem, 300)
        sentence = f"The kubelet listens at its sockets but does not answer.{pods_run}"
        yield Found(sentence, (Evidence(Source.POD_RESOURCES, problem),))


def node_not_ready(look: Look, kubelet: KubeletNow) -> Iterator[Found]:
    """Find out whether the Node is not Ready although its kubelet is running."""
    node = look.node.value
    if node is None or node.ready not in {"False", "Unknown"} or kubelet in {KubeletNow.STOPPED, KubeletNow.SILENT}:
        return
    why = foreign_text(node.why_not_ready, 300)
    said = f": {why.rstrip('.')}" if why else ""
    if node.is_silent and kubelet is KubeletNow.ANSWERS:
        sentence = f"The kubelet answers on this node, but the API server does not hear from it{said}."
        next_ = _CUT_OFF
    else:
        sentence, next_ = f"The Node is not Ready{said}.", ""
    evidence = [Evidence(Source.NODE, f"condition Ready: {node.ready}{said}")]
    if kubelet is KubeletNow.ANSWERS:
        evidence.append(Evidence(Source.POD_RESOURCES, "the kubelet answers"))
    yield Found(sentence, tuple(evidence), next=next_)


def pods_not_taken(look: Look, kubelet: KubeletNow, pods: Pods) -> Iterator[Found]:
    """Find pods that are bound to this node but that the kubelet has not admitted although it answers."""
    node = look.node.value
    if kubelet is not KubeletNow.ANSWERS or node is None or look.taken is None:
        return
    if node.ready in {"False", "Unknown"}:
        return  # another finding reports this
    waiting = [
        one.identity
        for one in pods.by_name.values()
        if one.node == node.name and one.phase == "Pending" and not (one.is_acknowledged or one.is_deleting)
        if (age(one, look.taken) or 0.0) > TO_ADMIT
    ]
    if waiting:
        were = f"{counted(len(waiting), 'pod')} {by_number(waiting, 'was', 'were')}"
        none = "has not admitted it" if len(waiting) == 1 else "has admitted none of them"
        sentence = f"{were} sent to this node, but the kubelet {none} in more than {TO_ADMIT:g} s ({names(waiting)})."
        evidence = (Evidence(Source.PODS, f"bound, without a start time: {names(waiting)}"),)
        yield Found(sentence, evidence, pods=tuple(waiting))


def node_missing(look: Look, kubelet: KubeletNow) -> Iterator[Found]:
    """Find out whether the API server has no Node with this name although the kubelet is running."""
    problem = look.node.problem
    if problem.startswith(NO_NODE) and kubelet in {KubeletNow.ANSWERS, KubeletNow.STARTING}:
        evidence = (Evidence(Source.NODE, foreign_text(problem, 300)), Evidence(Source.POD_RESOURCES, "it answers"))
        yield Found("The kubelet is running, but the API server has no Node with this name.", evidence)


def node_takes_no_pod(look: Look, pods: Pods) -> Iterator[Found]:
    """Find out whether the Node is cordoned, under pressure, tainted by a program, or at its pod limit."""
    if look.node.value is None:
        return
    for one in closures(look.node.value, pods):
        yield Found(f"{one.why}.", (Evidence(Source.NODE, one.evidence),), brief=_brief(one.why), do=one.do)


def _brief(why: str) -> str:
    text = why.partition(":")[0].partition(" (")[0]
    return text[0].lower() + text[1:]


_UNHEARD = (
    "The API server has heard nothing for 40 s or more: the kubelet has stopped, or is cut off from the API server. "
    "Containers may still be running. After 5 minutes the pods on the Node are marked for deletion."
)
_CUT_OFF = (
    "Pods on the node continue to run with their devices. No new pod reaches the kubelet and no status leaves it. "
    "After 5 minutes the pods on the Node are marked for deletion, and controllers create replacements on other nodes."
)


def kubelet_cannot_start(look: Look, kubelet: KubeletNow) -> Iterator[Found]:
    """Find state files that are damaged or do not match the machine, which makes a kubelet exit when it starts."""
    node = look.node.value
    version = version_in(node.kubelet_version) if node is not None else None
    problems = [
        (Source.STATE_FILES, one.name, one.problem)
        for one in look.state_files.value or ()
        if one.problem and (version is None or one.name not in OF_PODS or _reads(version, one.name))
    ]
    is_older = (version or _SINCE_FORM) < _SINCE_FORM
    if look.claims.value is not None and look.claims.value.problem and not is_older:
        problems.append((Source.CLAIMS, CLAIMS_FILE, look.claims.value.problem))
    for source, file, problem in problems:
        why = foreign_text(problem, 300)
        if kubelet is KubeletNow.STOPPED:
            sentence = f"The kubelet cannot start, because {file} cannot be used: {why}."
        else:
            sentence = f"A kubelet cannot start with this node's {file}: {why}."
        brief = f"a kubelet cannot start with its {file}"
        yield Found(sentence, (Evidence(source, f"{file}: {why}"),), brief=brief, do=_CORRECT * (file == CONFIGURATION))


_CORRECT = "Correct the configuration, and start the kubelet again: systemctl restart kubelet."


def _reads(version: tuple[int, int], file: str) -> bool:
    """Return whether a kubelet of this version reads this file with pods' resources."""
    return (file == OF_PODS[-1]) == (version < _SINCE_PODS)


def kubelet_starting(look: Look, kubelet: KubeletNow, pods: Pods, holders: Holders, lists: Lists) -> Iterator[Found]:
    """Find out whether the kubelet has just started and does not know its pods and plugins yet."""
    api = look.pod_resources.value
    if kubelet is not KubeletNow.STARTING or api is None:
        return
    begun = [one.identity for one in pods.here]
    wanted = wanted_resources(pods, holders)
    awaited = [one for one in sorted({*wanted, *lists.registered}) if not (lists.allocatable or {}).get(one)]
    waits = (
        f" The plugin for {', '.join(awaited)} has not registered again yet; until then, the kubelet gives none of the "
        "plugin's devices to any pod."
        if awaited and lists.allocatable is not None
        else ""
    )
    sentence = (
        f"The kubelet has just started: it does not list the {counted(len(begun), 'pod')} on this node "
        f"({names(begun)}).{waits}"
    )
    evidence = (
        Evidence(Source.POD_RESOURCES, counted(len(api.pods), "pod")),
        Evidence(Source.PODS, f"{name(begun[0])} is on this node"),
    )
    yield Found(sentence, evidence, awaited[0] if len(awaited) == 1 else "")
