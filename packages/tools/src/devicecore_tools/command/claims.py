"""ResourceClaims for `why` and `fits`: which devices they get on the nodes of a cluster, and why not.

Law: what is printed of a claim comes from a trial (`devicecore_tools.doctor.claim_trial`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from devicecore.domain.allocation import DeviceAllocation, NoAllocation, UnallocatedClaim, claim_of
from devicecore.domain.documents import Value
from devicecore.domain.errors import DocumentError
from devicecore.domain.model import Pod
from devicecore_tools.command.output import print_json, print_pairs

if TYPE_CHECKING:
    from devicecore_tools.doctor.claim_trial import AllocatedClaim, ClaimAnswer, ClaimTrial

_MAX_DEVICES = 200  # rows for devices
_MAX_NODES = 20  # rows for nodes without the best one
_NO_CLASSES_THERE = (
    "{}: the API server has no DeviceClass, and every request of a claim names one. Most drivers install theirs; or "
    "make one: kubectl create -f FILE, with apiVersion: resource.k8s.io/v1, kind: DeviceClass, its metadata.name, and "
    "in spec.selectors a CEL expression such as device.driver == 'gpu.example.com'"
)
_NO_CLASSES = (
    "no DeviceClass is known; add --kubeconfig FILE, or give --slices a file with it: "
    "kubectl get resourceslices,deviceclasses,nodes -o json"
)


def _claim_trial(places: Sequence[str | None], kubeconfig: str | None, read: Sequence[Value] = ()) -> "ClaimTrial":
    """Return a trial with the objects of files, of an API server, and those that were read already.

    Raises ValueError if one cannot be read.
    """
    from devicecore_tools.doctor.claim_trial import ClaimTrial, objects_of
    from devicecore_tools.doctor.sources.large_documents import read_all_documents

    documents = [document for place in places if place is not None for document in read_all_documents(place)]
    documents += read
    if kubeconfig is not None:
        try:
            from devicecore_tools.doctor.sources.api_server import OF_CLAIMS, read_objects
        except ModuleNotFoundError as error:
            raise ValueError(f"--kubeconfig: {error}: install the extra `kubernetes`") from None
        for kind, items in read_objects("", kubeconfig, OF_CLAIMS).items():
            if isinstance(items, str):
                raise ValueError(f"{kubeconfig}: {kind}: {items}")  # noqa: TRY004 - a sentence in place of the answer
            documents.append(Value({"items": [{**one, "kind": kind} for one in items]}, f"{kubeconfig}: {kind}"))
    return ClaimTrial(objects_of(documents))


def claim_in(data: bytes, place: str) -> tuple[Value, Sequence[Value]] | None:
    """Return the ResourceClaim in what was read of a place, and all documents there. Return None if there is none.

    Raises ValueError if there are several claims.
    """
    from devicecore_tools.doctor.sources.large_documents import parse_documents

    if b"ResourceClaim" not in data:
        return None
    try:
        documents = parse_documents(data, place)
    except DocumentError:
        return None  # as a message, it may be understood, or is refused with a sentence
    claims = [one for one in documents if one["kind"].data == "ResourceClaim"]
    if len(claims) > 1:
        lines = ", ".join(f"{one['metadata']['name'].text('?')} at line {one.line}" for one in claims[:10])
        message = f"{place}: expected one ResourceClaim, got {len(claims)}: {lines}. Give one in a file of its own"
        raise ValueError(message)
    return (claims[0], documents) if claims else None


def explain_claim(document: Value, others: Sequence[Value], sources: Mapping[str, object], *, as_json: bool) -> None:
    """Print what the ResourceClaim in a document has, or what the nodes say of it if it has nothing.

    `others` are the documents that were read with it. `sources` has the options `slices`, `claims`, `kubeconfig` and
    `node_name`. Raises ValueError if one cannot be read.
    """
    from devicecore_tools.doctor.claim_trial import allocated_claim

    slices, claims, kubeconfig, node = (
        _text(sources[name]) for name in ("slices", "claims", "kubeconfig", "node_name")
    )
    claim = claim_of(document)
    if (allocated := allocated_claim(document, ())) is not None:
        _print_devices(allocated, as_json=as_json)
        return
    trial = _claim_trial((slices, claims), kubeconfig, others)
    if (allocated := trial.allocated(document)) is not None:
        _print_devices(allocated, as_json=as_json)
    else:
        _print_answers(claim.name, _answers(trial, [claim], node, kubeconfig), as_json=as_json)


def _answers(
    trial: "ClaimTrial", claims: Sequence[UnallocatedClaim], node: str | None, kubeconfig: str | None = None
) -> "Sequence[ClaimAnswer]":
    if claims and not trial.has_classes:
        raise ValueError(_NO_CLASSES if kubeconfig is None else _NO_CLASSES_THERE.format(kubeconfig))
    return trial.answers(claims, node)


def _text(option: object) -> str | None:
    return option if isinstance(option, str) else None


def claims_of_pod(pod: Pod, node: str, slices: str | None, claims: str | None) -> "ClaimAnswer | None":
    """Return whether a node has the devices for the claims of a pod. Return None if it has none, or no file says.

    Raises ValueError if something cannot be read, or the node is not known.
    """
    if not pod.claims or not (slices or claims):
        return None
    from devicecore_tools.doctor.claim_trial import ClaimAnswer
    from devicecore_tools.doctor.trial import claims_of

    trial = _claim_trial((slices, claims), None)
    wanted = trial.claims_of(pod)
    target = trial.node(node)
    if target is None:
        raise ValueError(f"no slice and no Node is of {node}; give a description of the node that has its name")
    if problem := trial.unusable(claims_of(pod), target, pod.name):
        return ClaimAnswer(target, NoAllocation(problem))
    return _answers(trial, wanted, target.name)[0]


def _print_devices(claim: "AllocatedClaim", *, as_json: bool) -> None:
    """Print the devices of a claim, where they can be used, and for which pods they are reserved."""
    if as_json:
        document = {
            "devices": [{"request": request, "device": device} for request, device in claim.devices],
            "nodes": None if claim.nodes is None else list(claim.nodes),
            "reservedFor": list(claim.pods),
        }
        print_json({"claims": claim.name, "allocated": document})
        return
    rows = [(f"request {request}", device) for request, device in claim.devices]
    if claim.nodes is None:
        rows.append(("usable on", "all nodes"))
    elif claim.nodes:
        rows.append(("usable on", ", ".join(claim.nodes)))
    rows.append(("reserved for", ", ".join(f"pod {name}" for name in claim.pods) or "no pod"))
    print_pairs(f"claim {claim.name} is allocated", rows)


def _print_answers(claim: str, answers: "Sequence[ClaimAnswer]", *, as_json: bool) -> None:
    """Print what nodes say: one JSON document, or the best node with its devices and the others in a line each."""
    if as_json:
        print_json({"claims": claim, "nodes": [document_of(one) for one in answers]})
        return
    if not answers:
        click.echo(f"claim {claim}: there is no node")
        return
    best, *others = answers
    outcome = "gets its devices" if best.fits else "gets no devices"
    print_pairs(f"claim {claim} on {best.node.name}: {outcome}", pairs_of(best))
    if others:
        print_pairs("The other nodes", _other_pairs(others))


def pairs_of(answer: "ClaimAnswer") -> Iterator[tuple[str, str]]:
    """Rows for a node: the devices that claims get, or each device with what is in the way."""
    if isinstance(answer.answer, DeviceAllocation):
        for taken in answer.answer.taken:
            yield f"request {taken.request.result_name}", str(taken.key)
        for release, faults in answer.faults.items():
            yield (
                "but",
                f"a scheduler of Kubernetes {release} does not find them ({', '.join(faults)}: see docs/claims.md)",
            )
        return
    yield "reason", str(answer.answer)
    verdicts = answer.answer.verdicts
    several = len({(one.claim, one.request) for one in verdicts}) > 1
    fits = "fits, but not beside what else is wanted" if several else "fits, but too few devices do"
    for one in verdicts[:_MAX_DEVICES]:
        name = f"{one.request}: {one.device}" if several else str(one.device)
        yield name, str(one.reason or fits)
    if len(verdicts) > _MAX_DEVICES:
        yield "...", f"{len(verdicts) - _MAX_DEVICES:,} more"
    for change in answer.changes:
        yield "gets them if", change


def _other_pairs(others: "Sequence[ClaimAnswer]") -> Iterator[tuple[str, str]]:
    for one in others[:_MAX_NODES]:
        yield one.node.name, "gets its devices" if one.fits else str(one.answer)
    if len(others) > _MAX_NODES:
        fits = sum(one.fits for one in others[_MAX_NODES:])
        yield "...", f"{len(others) - _MAX_NODES:,} more nodes, {fits:,} of which have the devices"


def document_of(answer: "ClaimAnswer") -> dict[str, object]:
    """Return the answer of a node as JSON."""
    if isinstance(answer.answer, DeviceAllocation):
        faults = {"faultsOfKubernetes": dict(answer.faults)} if answer.faults else {}
        return {"node": answer.node.name, "fits": True, "allocations": answer.answer.results(), **faults}
    return {
        "node": answer.node.name,
        "fits": False,
        "reason": str(answer.answer),
        "devices": [
            {
                "claim": one.claim,
                "request": one.request,
                "device": str(one.device),
                "reason": one.reason and str(one.reason),
            }
            for one in answer.answer.verdicts
        ],
        "changes": list(answer.changes),
    }
