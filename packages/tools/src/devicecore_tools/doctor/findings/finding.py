"""Findings and their explanations.

Law: two findings are equal only if they report the same problem with the same objects and the same evidence.
`measured` is not compared because times differ between two `Look`s.
"""

from collections.abc import Callable, Collection, Iterator
from enum import Enum

from attrs import field, frozen

from devicecore_tools.doctor.account.precedence import Owner
from devicecore_tools.doctor.look.names import name, names
from devicecore_tools.doctor.look.values import PodSeen, Source


@frozen
class Evidence:
    """What one source says, as evidence for a finding."""

    source: Source
    text: str


@frozen
class Found:
    """A problem that a check found. Nonempty `next`, `do` and `brief` replace the check's `next`, `do` and title.

    `pods` names the pods that cannot start, run properly or terminate because of the problem. `says` is a kubelet's
    message that `why` explains.
    """

    sentence: str
    evidence: tuple[Evidence, ...]
    resource: str = ""
    devices: tuple[str, ...] = ()
    pods: tuple[str, ...] = field(default=(), kw_only=True)
    measured: str = field(default="", eq=False)
    next: str = ""
    brief: str = ""
    do: str = ""
    says: str = ""


class Keeps(Enum):
    """Which pods a problem prevents from running."""

    NO_OTHERS = "only the pods that the finding names"
    ALL = "all pods on the node"
    OF_RESOURCE = "pods that request the finding's resource"


@frozen
class NodeCheck:
    """One kind of finding.

    Attributes:
        code: the kind's name in JSON and metrics.
        title: a short description.
        find: yields the problems that one `Look` shows. The function's parameters are named after attributes
            of `Facts`.
        next: what the kubelet will do next.
        do: the remedy, with the command.
        confirm: how to confirm the finding by hand.
        issue: the public issue or page that describes the problem.
        patience: how many seconds the finding must persist unchanged if its sources are live. A kubelet takes about
            10 s to write a change to the Node's status, and a plugin needs a few seconds to register again.
        keeps: which other pods, in addition to the named ones, the problem keeps from running.
        is_one: whether all findings of this kind count as the same finding regardless of their evidence.
    """

    code: str
    title: str
    find: Callable[..., Iterator[Found]]
    next: str
    do: str
    confirm: str
    issue: str
    patience: float = 1.0
    keeps: Keeps = Keeps.NO_OTHERS
    is_one: bool = False


@frozen
class NodeFinding:
    """A problem on a node. `number` is its place in the report, from 1, or 0 before the findings are numbered.

    `brief` is a short description. `says` is a kubelet's message that `why` explains.
    """

    code: str
    title: str
    sentence: str
    evidence: tuple[Evidence, ...]
    next: str
    confirm: str
    issue: str
    resource: str = ""
    devices: tuple[str, ...] = ()
    measured: str = field(default="", eq=False)
    number: int = field(default=0, eq=False)
    pods: tuple[str, ...] = ()
    do: str = ""
    brief: str = ""
    says: str = field(default="", eq=False)


def as_told(pod: PodSeen, container: str, what: str, resource: str, devices: Collection[str]) -> Found:
    """Return what a pod's status says about a container's devices.

    The status is the only evidence if no source on the node was read.
    """
    sentence = f"The status of pod {name(pod.identity)} says that container {name(container)} holds {what}."
    evidence = (Evidence(Source.PODS, f"allocatedResourcesStatus, {names(devices)}: Unhealthy"),)
    return Found(sentence, evidence, resource, tuple(devices), pods=(pod.identity,))


def described(owner: Owner) -> str:
    """Return a description of a container that holds devices."""
    return f"container {name(owner.container)} of pod {name(owner.identity)}"
