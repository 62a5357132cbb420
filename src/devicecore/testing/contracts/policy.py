"""The contract of an allocation policy.

Law: a check puts the questions in `CASES`, which are about a few small nodes, to the policies that `make` creates.

`devicecore.testing.strategies.choices` generates other questions. `devicecore.domain.policies.answer` puts a question
to a policy and checks the answer, as a manager does.
"""

from collections.abc import Callable, Iterator, Sequence

from attrs import evolve

from devicecore.domain.checks import repeated
from devicecore.domain.device_set import DeviceSet
from devicecore.domain.model import ContainerKey, DeviceId, NumaNode, PodUid
from devicecore.domain.policies import Choice
from devicecore.domain.text import counted
from devicecore.ports.policy import AllocationPolicy
from devicecore.testing.contracts.expect import GPU, RDMA, Suite, expect

MakePolicy = Callable[[], AllocationPolicy]
"""Creates a policy. To check a function, pass `lambda: function`."""

ALLOCATION_POLICY: Suite[MakePolicy] = Suite()
"""All checks of the contract."""

_OWN, _OTHER = PodUid("own"), PodUid("other")


def _cases() -> Iterator[Choice]:
    """Yield questions about eight cards with two replicas each: on no NUMA node, on one, or on two.

    The first two cards and one replica of the fourth are in use.
    """
    ids = [DeviceId(f"card-{number // 2}::{number % 2}") for number in range(16)]
    listed = DeviceSet.of(ids)
    in_use = listed.index.select([*ids[:4], ids[6]])
    for count in (0, 1, 2):
        nodes = {device: (NumaNode(place * count // 16),) if count else () for place, device in enumerate(ids)}
        for size in (1, 2, 3, 5, 11):
            choice = Choice(GPU, ContainerKey(_OWN, "main"), listed - in_use, DeviceSet(), size, (), nodes, in_use)
            yield choice
            yield evolve(choice, preferred=tuple(reversed(ids)), of_pod={RDMA: {DeviceId("nic"): (NumaNode(1),)}})
            if size > 1:  # the container reuses an init container's device, and must get one from a chosen NUMA node
                must = listed.index.select([ids[0], ids[15]])
                yield evolve(
                    choice,
                    available=choice.available | must,
                    must_include=must,
                    affinity=(NumaNode(1),),
                    of_pod={GPU: {ids[0]: nodes[ids[0]]}},
                )


CASES: tuple[Choice, ...] = tuple(_cases())
"""The questions of the checks."""


def _check_each(make: MakePolicy, what: str, wrong: Callable[[Choice, tuple[DeviceId, ...]], object]) -> None:
    """Put each question to a newly created policy.

    `wrong` returns the problem with the policy's answer, or a false value if there is none.
    """
    for choice in CASES:
        answer = tuple(make()(choice))
        if found := wrong(choice, answer):
            message = f"{what}: got {found} in the answer {answer} to {choice}"
            raise AssertionError(message)


@ALLOCATION_POLICY.check
def answers_as_many_as_are_asked_for(make: MakePolicy) -> None:
    """A policy answers with `size` devices."""

    def wrong(choice: Choice, answer: Sequence[DeviceId]) -> object:
        return len(answer) != choice.size and counted(len(answer), "device")

    _check_each(make, "expected `size` devices", wrong)


@ALLOCATION_POLICY.check
def answers_different_devices(make: MakePolicy) -> None:
    """A policy names each device at most once."""
    _check_each(make, "expected each device once", lambda _, answer: repeated(answer))


@ALLOCATION_POLICY.check
def answers_what_is_available(make: MakePolicy) -> None:
    """A policy names only devices from `available`."""

    def wrong(choice: Choice, answer: Sequence[DeviceId]) -> object:
        return [device for device in answer if device not in choice.available]

    _check_each(make, "expected devices from `available`", wrong)


@ALLOCATION_POLICY.check
def includes_what_must_be_included(make: MakePolicy) -> None:
    """A policy names all devices of `must_include`."""

    def wrong(choice: Choice, answer: Sequence[DeviceId]) -> object:
        left_out = choice.must_include - set(answer)
        return left_out and f"none of {left_out}"

    _check_each(make, "expected all devices of `must_include`", wrong)


@ALLOCATION_POLICY.check
def answers_the_same_question_the_same(make: MakePolicy) -> None:
    """A policy gives the same answer to the same question, even after other questions or as a new object."""
    policy = make()
    first = [set(policy(choice)) for choice in CASES]
    for choice, devices in zip(CASES, first, strict=True):
        expect(f"the answer to the same question again, {choice}", set(policy(choice)), devices)
        expect(f"the answer to {choice} from another policy of the same kind", set(make()(choice)), devices)
