"""The kubelet's checkpoint file, both ways: what is in it, how Go writes it, and its checksum.

`decode` turns a file into `CheckpointData`, and `encode` turns it back. `restore` makes a `NodeState` of the data, and
`checkpoint_of` makes the data of a `NodeState`. A `CheckpointWriter` makes the file after each change of the state, at
the cost of what is new. `judge` says whether a file is sound. Of the rest of the domain, only `dra` uses it.
"""

from devicecore.domain.checkpoint.decoding import Decoded, decode
from devicecore.domain.checkpoint.encoding import checksum, dump, encode
from devicecore.domain.checkpoint.entries import CheckpointData, DevicesPerNuma, ExtraFields, PodDevicesEntry
from devicecore.domain.checkpoint.fnv import fnv1a_32
from devicecore.domain.checkpoint.state import allocation_of, checkpoint_of, entry_of, restore
from devicecore.domain.checkpoint.verdict import FileReport, FileVerdict, examine, judge
from devicecore.domain.checkpoint.writer import CheckpointWriter

__all__ = [
    "CheckpointData",
    "CheckpointWriter",
    "Decoded",
    "DevicesPerNuma",
    "ExtraFields",
    "FileReport",
    "FileVerdict",
    "PodDevicesEntry",
    "allocation_of",
    "checkpoint_of",
    "checksum",
    "decode",
    "dump",
    "encode",
    "entry_of",
    "examine",
    "fnv1a_32",
    "judge",
    "restore",
]
