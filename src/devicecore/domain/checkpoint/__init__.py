"""The kubelet's checkpoint file, both ways: what is in it, how Go writes it, and its checksum.

`decode` and `encode` are all that most need. `encode_written` is for whoever saves after every change, `judge` for who
only wants to know whether a file is sound.
"""

from devicecore.domain.checkpoint.decoding import Decoded, decode
from devicecore.domain.checkpoint.encoding import checksum, dump, encode
from devicecore.domain.checkpoint.entries import NO_TOPOLOGY, CheckpointData, DevicesPerNuma, PodDevicesEntry
from devicecore.domain.checkpoint.fnv import fnv1a_32
from devicecore.domain.checkpoint.verdict import FileVerdict, Finding, judge
from devicecore.domain.checkpoint.written import WrittenDevices, WrittenEntries, WrittenResources, encode_written

__all__ = [
    "NO_TOPOLOGY",
    "CheckpointData",
    "Decoded",
    "DevicesPerNuma",
    "FileVerdict",
    "Finding",
    "PodDevicesEntry",
    "WrittenDevices",
    "WrittenEntries",
    "WrittenResources",
    "checksum",
    "decode",
    "dump",
    "encode",
    "encode_written",
    "fnv1a_32",
    "judge",
]
