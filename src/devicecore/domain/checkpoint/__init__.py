"""The kubelet's checkpoint file, both ways: what is in it, how Go writes it, and its checksum.

`decode` turns a file into `CheckpointData`, and `encode` turns it back. `restore` makes a `NodeState` of the data, and
`checkpoint_of` makes the data of a `NodeState`. A `CheckpointWriter` makes the file after each change of the state, at
the cost of what is new. `judge` says whether a file is sound, `salvage` reads what is readable of a file, `repaired`
removes what cannot be right, and `difference` compares data. Nothing else in the domain knows that there is a file.
"""

from devicecore.domain.checkpoint.decoding import Decoded, decode
from devicecore.domain.checkpoint.difference import (
    ChangedEntry,
    ChangedRegistration,
    Difference,
    Holding,
    Move,
    difference,
)
from devicecore.domain.checkpoint.encoding import checksum, dump, encode
from devicecore.domain.checkpoint.entries import CheckpointData, DevicesPerNuma, ExtraFields, PodDevicesEntry
from devicecore.domain.checkpoint.fnv import fnv1a_32
from devicecore.domain.checkpoint.repair import (
    Dropped,
    DropReason,
    Repaired,
    SharedDevice,
    devices_of,
    repaired,
    shared_devices,
)
from devicecore.domain.checkpoint.salvage import IgnoredField, Salvaged, Unreadable, ignored_fields, salvage
from devicecore.domain.checkpoint.state import allocation_of, checkpoint_of, entry_of, restore
from devicecore.domain.checkpoint.verdict import FileReport, FileVerdict, examine, judge
from devicecore.domain.checkpoint.writer import CheckpointWriter

__all__ = [
    "ChangedEntry",
    "ChangedRegistration",
    "CheckpointData",
    "CheckpointWriter",
    "Decoded",
    "DevicesPerNuma",
    "Difference",
    "DropReason",
    "Dropped",
    "ExtraFields",
    "FileReport",
    "FileVerdict",
    "Holding",
    "IgnoredField",
    "Move",
    "PodDevicesEntry",
    "Repaired",
    "Salvaged",
    "SharedDevice",
    "Unreadable",
    "allocation_of",
    "checkpoint_of",
    "checksum",
    "decode",
    "devices_of",
    "difference",
    "dump",
    "encode",
    "entry_of",
    "examine",
    "fnv1a_32",
    "ignored_fields",
    "judge",
    "repaired",
    "restore",
    "salvage",
    "shared_devices",
]
