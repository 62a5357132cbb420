"""What a check finds, and the texts that explain it.

Law: two findings are equal if and only if they say the same about the same things. `measured` is not compared, because
times differ between two looks.
"""

from collections.abc import Callable, Collection, Iterator
from enum import Enum

from attrs import field, frozen

from devicecore_tools.doctor.account.precedence import Owner
from devicecore_tools.doctor.look.names import name, names
from devicecore_tools.doctor.look.values import PodSeen, Source


@frozen
class Evidence:
    """What one source says."""

    source: Source
    text: str


@frozen
class Found:
    """What a check found. If `next` or `do` is not empty, it replaces that of the check, and `brief` its title.

    `pods` names the pods that cannot start, run well or end because of it. `says` is a kubelet's message that `why`
    explains.
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
    """The pods that a finding prevents from running."""

    NO_OTHERS = "none but those that it names"
    ALL = "all pods of the node"
    OF_RESOURCE = "those that ask for its resource"


@frozen
class NodeCheck:
    """One kind of finding.

    Attributes:
        code: its name in JSON and metrics.
        title: a short description.
        find: yields what is wrong in one look; its arguments name the values of `Facts` that it needs.
        next: what the kubelet will do next.
        do: what to do, with the command.
        confirm: how to see by hand that the finding is true.
        issue: the public issue or page that describes it.
        patience: seconds that the finding must stay the same if its sources are live. A kubelet writes the
            Node's status every 10 s, and a plugin needs some seconds to register again.
        keeps: which pods it keeps from running, besides those that it names.
        is_one: whether two findings of the kind are the same one, whatever their evidence.
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
    """Something that is wrong on a node. `number` counts the findings of a report from 1; 0 is not numbered yet.

    `brief` says it in a few words. `says` is a kubelet's message that `why` explains.
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
    """Return what a pod's status says about a container's devices, if no source closer to the kubelet was read."""
    sentence = f"The status of pod {name(pod.identity)} says that container {name(container)} holds {what}."
    evidence = (Evidence(Source.PODS, f"allocatedResourcesStatus, {names(devices)}: Unhealthy"),)
    return Found(sentence, evidence, resource, tuple(devices), pods=(pod.identity,))


def described(owner: Owner) -> str:
    """Return a container that holds devices, in words."""
    return f"container {name(owner.container)} of pod {name(owner.identity)}"
