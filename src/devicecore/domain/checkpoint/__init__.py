"""The kubelet's checkpoint file, both ways: what is in it, how Go writes it, and its checksum.

`decode` and `encode` turn a file into `CheckpointData` and back; `restore` and `checkpoint_of` turn these into a
`NodeState` and back. A `CheckpointWriter` makes the file after every change of the state, at the cost of what is new.
`judge` says whether a file is sound. Nothing else in the domain knows that there is a file.
"""

from devicecore.domain.checkpoint.decoding import Decoded, decode
from devicecore.domain.checkpoint.encoding import checksum, dump, encode
from devicecore.domain.checkpoint.entries import CheckpointData, DevicesPerNuma, ExtraFields, PodDevicesEntry
from devicecore.domain.checkpoint.fnv import fnv1a_32
from devicecore.domain.checkpoint.state import allocation_of, checkpoint_of, entry_of, restore
from devicecore.domain.checkpoint.verdict import FileVerdict, Finding, judge
from devicecore.domain.checkpoint.writer import CheckpointWriter

__all__ = [
    "CheckpointData",
    "CheckpointWriter",
    "Decoded",
    "DevicesPerNuma",
    "ExtraFields",
    "FileVerdict",
    "Finding",
    "PodDevicesEntry",
    "allocation_of",
    "checkpoint_of",
    "checksum",
    "decode",
    "dump",
    "encode",
    "entry_of",
    "fnv1a_32",
    "judge",
    "restore",
]
