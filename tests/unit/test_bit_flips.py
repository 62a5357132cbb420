"""Every single bit of a checkpoint is flipped in turn: the file is then refused, or has the same content as before.

A checksum of 32 bits cannot detect every change, but it detects every single flipped bit of this file. The only flips
that are accepted are those that a kubelet accepts, too, because Go ignores the case of field names and of hexadecimal
digits in escapes, and the bits that base64 does not need.
"""

import re
from collections.abc import Iterator
from functools import cache

from devicecore import DeviceManager
from devicecore.adapters.memory import MemorySink, MemoryStore, MemoryTransport
from devicecore.domain import checkpoint
from devicecore.domain.container_options import ContainerAllocateResponse
from devicecore.domain.errors import CheckpointError
from devicecore.wire.conversion import write_receipt

RECEIPT = write_receipt(ContainerAllocateResponse(envs={"VISIBLE": "gpu-0,gpu-1"}, annotations={"a": "<b>"}))
SHORTER = write_receipt(ContainerAllocateResponse(envs={"VISIBLE": "nic-0,1"}))
ENTRIES = (
    checkpoint.PodDevicesEntry(
        "pod-1", "train", "acme.io/gpu", {0: ("gpu-0",), 10: ("gpu-1", "gpu-2"), 2: ("gpu-1",)}, RECEIPT
    ),
    checkpoint.PodDevicesEntry("pod-1", "side car", "acme.io/nic", {-1: ("nic<0>", "nic-ä")}, SHORTER),
    checkpoint.PodDevicesEntry("pod-2", "main", "acme.io/fpga", {}, b""),
)
DATA = checkpoint.CheckpointData(ENTRIES, {"acme.io/gpu": ("gpu-0", "gpu-3"), "acme.io/nic": ()})
BLOB = checkpoint.encode(DATA)
FIELDS = (b"Data", b"PodDeviceEntries", b"RegisteredDevices", b"Checksum")
CASE = 5  # the bit that distinguishes `a` from `A`
ENTRY_FIELDS = (b"PodUID", b"ContainerName", b"ResourceName", b"DeviceIDs", b"AllocResp")


def flipped() -> Iterator[tuple[int, int, bytes]]:
    """Yield the position of each byte and bit, and the file with this bit flipped."""
    for place, byte in enumerate(BLOB):
        for bit in range(8):
            yield place, bit, BLOB[:place] + bytes([byte ^ 1 << bit]) + BLOB[place + 1 :]


def names() -> Iterator[int]:
    """Yield the positions of the letters in all field names."""
    for name in (*FIELDS, *ENTRY_FIELDS):
        place = BLOB.find(b'"%b":' % name)
        while place >= 0:
            yield from range(place + 1, place + 1 + len(name))
            place = BLOB.find(b'"%b":' % name, place + 1)


def digits() -> Iterator[int]:
    """Return the positions of the letters in the escapes of `<` and `>`."""
    return (match.end() - 1 for match in re.finditer(rb"\\u003[ce]", BLOB))


def idle_bits() -> Iterator[tuple[int, int]]:
    """Yield the bits of each last character before base64 padding, some of which have no meaning."""
    for place in range(len(BLOB) - 1):
        if BLOB[place : place + 1].isalnum() and BLOB[place + 1 : place + 2] == b"=":
            yield from ((place, bit) for bit in range(8))


@cache
def read(blob: bytes) -> checkpoint.CheckpointData | None:
    """Return the content of a file, or None if the file is refused.

    The result is cached, because all tests use the same files.
    """
    try:
        return checkpoint.decode(blob).verified()
    except CheckpointError:
        return None


def test_a_flipped_bit_is_detected_or_harmless() -> None:
    """Every file that is accepted has the original data, and is written with the original text again."""
    for place, bit, blob in flipped():
        data = read(blob)
        if data is not None:
            assert data == DATA, (place, bit)
            assert checkpoint.dump(data) == checkpoint.dump(DATA), (place, bit)


def test_a_file_is_accepted_if_a_kubelet_accepts_it() -> None:
    """Only changes of case, in names and escapes, and changes of unneeded bits of base64 are accepted."""
    accepted = {(place, bit) for place, bit, blob in flipped() if read(blob) is not None}
    letters = {(place, CASE) for place in (*names(), *digits())}
    assert letters <= accepted
    assert accepted - letters
    assert accepted - letters <= set(idle_bits())


def test_every_flip_gets_a_verdict() -> None:
    """For every file, `judge` agrees with `decode` on whether it is acceptable.

    Of the refused files, only one in four is judged.
    """
    for place, bit, blob in flipped():
        if read(blob) is None and bit % 4 != place % 4:
            continue
        assert (checkpoint.judge(blob).verdict is checkpoint.FileVerdict.OK) == (read(blob) is not None)


def test_a_manager_restores_a_flipped_file_whole_or_sets_it_aside() -> None:
    """The manager always starts, and keeps files that it cannot use. Only one in eight refused files is tried."""
    allocations = [checkpoint.allocation_of(entry) for entry in ENTRIES]
    for place, bit, blob in flipped():
        data = read(blob)
        if data is None and bit != place % 8:
            continue
        store = MemoryStore(blob)
        with DeviceManager(MemoryTransport(), store, MemorySink()) as manager:
            ledger, problem = list(manager.state.ledger), manager.restored.problem
        if data is None:
            assert (store.blob, store.aside, ledger) == (None, [blob], []), (place, bit)
            assert problem is not None
        else:
            assert (store.blob, store.aside, ledger) == (blob, [], allocations), (place, bit)
