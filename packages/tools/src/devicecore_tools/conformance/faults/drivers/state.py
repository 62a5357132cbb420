"""Drivers with one fault in how they store their state.

Law: each driver fails the checks that it names, and no others except those in `breaks_too`.
"""

import os
import sys
import time
from contextlib import suppress

import grpc

from devicecore_tools.conformance.faults.good_driver import ClaimError, GoodDriver, Json, Message, fails


@fails("survives-a-corrupt-checkpoint")
class CorruptCheckpoint(GoodDriver):
    settings = {"returning": 10.0}

    def recover(self, error: Exception) -> None:
        print(f"cannot read the checkpoint: {error}", flush=True)
        sys.exit(1)


@fails("survives-a-corrupt-checkpoint", "survives-a-half-written-file")
class WritesItsCheckpointInPlace(CorruptCheckpoint):
    def save(self) -> None:
        super().save()
        data = self.state_file.read_bytes()
        self.state_file.write_bytes(data)


@fails("survives-a-corrupt-checkpoint")
class FailsWithItsCheckpoint(GoodDriver):
    """The driver registers despite a damaged file, and then every call fails until the file is fixed."""

    must_not_fail = ("survives-a-kill-at-any-moment", "prepares-a-claim", "unprepares-an-unknown-claim")
    damage = ""

    def recover(self, error: Exception) -> None:
        self.damage = str(error)

    def prepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        if self.damage:
            context.abort(grpc.StatusCode.UNKNOWN, f"checkpoint is corrupted: {self.damage}")
        return super().prepare(request, context)

    def unprepare(self, request: Message, context: grpc.ServicerContext) -> Message:
        if self.damage:
            context.abort(grpc.StatusCode.UNKNOWN, f"checkpoint is corrupted: {self.damage}")
        return super().unprepare(request, context)


@fails("records-what-it-prepares")
class IgnoresFailedWrites(GoodDriver):
    """If the driver cannot write its state file, it goes on with the state in its memory."""

    def save(self) -> None:
        with suppress(OSError):
            super().save()


@fails("records-what-it-prepares")
class RemembersWhatItCouldNotWrite(GoodDriver):
    """The driver reports that it cannot write its state file, but then takes the claim for prepared."""

    def remember(self, uid: str, record: Json | None) -> None:
        self.claims = {key: value for key, value in self.claims.items() if key != uid}
        self.claims |= {uid: record} if record else {}
        self.save()


@fails("gives-no-device-twice-after-a-corruption")
class StartsWithoutState(GoodDriver):
    must_not_fail = ("survives-a-corrupt-checkpoint",)

    def recover(self, error: Exception) -> None:
        self.claims = {}


@fails("survives-a-kill-at-any-moment", "survives-a-corrupt-checkpoint")
class EmptiesItsStateFileFirst(CorruptCheckpoint):
    """The driver writes its state file in place, and does not start if the file is truncated."""

    must_not_fail = ("serves-before-it-registers",)

    def save(self) -> None:
        self.state_file.write_bytes(b"")
        time.sleep(0.2)
        super().save()


@fails("survives-a-kill-at-any-moment")
class StuckAfterAKill(GoodDriver):
    """A claim that was being prepared when the driver was killed can no longer be prepared."""

    settings = {"kills": 4}

    def prepare_claim(self, claim: Message, context: grpc.ServicerContext) -> list[Message]:
        marker = self.directory / f"{claim.uid}.{os.getpid()}.started"
        others = [path for path in self.directory.glob(f"{claim.uid}.*.started") if path != marker]
        if others and claim.uid not in self.claims:
            raise ClaimError("the claim is in the state PrepareStarted")
        marker.touch()  # done first, because on a busy machine the kill may come at any later point
        try:
            time.sleep(0.2)
            return super().prepare_claim(claim, context)
        finally:
            if context.is_active():
                marker.unlink(missing_ok=True)
