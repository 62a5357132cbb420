"""Pods with claims appear and disappear while the kubelet and the driver are killed at any time.

Law: whenever everything has settled, exactly the pods' claims are prepared, according to the kubelet, its file,
and the CDI files of the driver.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.claims import DRIVER, claim, pod
from tests.e2e.claim_world import ClaimWorld
from tests.e2e.test_claims import NODE
from tests.e2e.world import Json

from devicecore.domain.dra.state_file import decode
from tests.reliability.scale import STORM

ROUNDS = 40
CLAIMS = {f"claim-{number}": f"dev-{number}" for number in range(3)}
PODS = {f"pod-{number}": f"claim-{number % 3}" for number in range(9)}


@pytest.fixture
def world(directory: Path) -> Iterator[ClaimWorld]:
    with ClaimWorld(directory, DRIVER, NODE) as world:
        yield world


@pytest.mark.skipif(not STORM, reason="a few minutes of restarts")
@pytest.mark.parametrize("seed", range(2))
def test_claims_survive_kills_at_any_moment(world: ClaimWorld, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a test's choices
    world.put("claims", *(claim(name, device=device) for name, device in CLAIMS.items()))
    pods: set[str] = set()
    world.start()
    world.start_driver()
    for _ in range(ROUNDS):
        for name in chance.sample(sorted(PODS), 3):
            if name in pods:
                world.remove(name)
            else:
                world.put(name, pod(name, PODS[name]))
            pods ^= {name}
        time.sleep(chance.uniform(0, 1.5))  # so that the kill comes at a random time
        victims = chance.choice([("kubelet",), ("driver",), ("kubelet", "driver"), ("driver", "kubelet")])
        for victim in victims:
            world.kill_kubelet() if victim == "kubelet" else world.kill_driver()
        for victim in chance.sample(victims, len(victims)):
            world.start() if victim == "kubelet" else world.start_driver()
        check(world, pods)
    for name in pods:
        world.remove(name)
    check(world, set())
    assert world.end_kubelet() == 0


def check(world: ClaimWorld, pods: set[str]) -> None:
    """Wait until these pods run, and check that all sources agree."""
    users: dict[str, set[str]] = {}
    for name in pods:
        users.setdefault(PODS[name], set()).add(f"u-{name}")

    def is_at_rest(state: Json) -> bool:
        return {one["name"]: one["phase"] for one in state["pods"]} == dict.fromkeys(pods, "Running") and {
            one["name"]: {user["uid"] for user in one["pods"]} for one in state["claims"]
        } == users

    state = world.kubelet.wait_for(is_at_rest)
    assert {one["phase"] for one in state["claims"]} <= {"prepared"}
    uids = {one["name"]: one["uid"] for one in state["claims"]}
    file = decode((world.root / "dra_manager_state").read_bytes())
    saved = {entry.name: set(entry.pods or ()) for entry in file.entries}
    assert saved == users
    files = world.cdi_files()
    assert len(files) == len(uids)
    assert all(any(uid in file for file in files) for uid in uids.values())
