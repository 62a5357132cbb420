"""Reading and writing the kubelet's checkpoint file: its content, Go's way of writing it, and its checksum.

`decode` turns a file into `CheckpointData`, and `encode` turns `CheckpointData` into a file. `restore` turns the data
into a `NodeState`, and `checkpoint_of` does the reverse. A `CheckpointWriter` renders the file after each change of the
state, at a cost proportional to what is new. `judge` says whether a file is sound. Within the domain, only `dra` uses
this package.
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
