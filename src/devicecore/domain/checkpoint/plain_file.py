"""Files as kubelets write them nearly always, read several times faster than by the rules.

Law: what is read here, the rules of `decoding` would read just so; whatever is in any way unusual is left to them.
"""

import json
import re
from binascii import a2b_base64

from devicecore.domain.checkpoint.entries import CheckpointData, PodDevicesEntry

_BEGIN, _END = '{"Data":{"PodDeviceEntries":[', '},"Checksum":'
_BETWEEN = '],"RegisteredDevices":'
_TEXT = r"[ !#-\[\]-~]*"  # in which nothing is escaped, and nothing ends a string
_STRINGS = rf'\["{_TEXT}"(?:,"{_TEXT}")*\]'
_NODE = rf'"(?:-1|0|[1-9][0-9]{{0,8}})":{_STRINGS}'
_ENTRY = re.compile(
    rf',\{{"PodUID":"({_TEXT})","ContainerName":"({_TEXT})","ResourceName":"({_TEXT})",'
    rf'"DeviceIDs":\{{({_NODE}(?:,{_NODE})*)\}},"AllocResp":"((?:[A-Za-z0-9+/]{{4}})*(?:[A-Za-z0-9+/=]{{4}})?)"\}}'
)
_BASE64 = re.compile("[A-Za-z0-9+/]*={0,2}")
_REGISTERED = re.compile(rf'\{{(?:"{_TEXT}":{_STRINGS}(?:,"{_TEXT}":{_STRINGS})*)?\}}')
_CHECKSUM = re.compile("(?:0|[1-9][0-9]{0,9})}\n?")


def read_plain(blob: bytes) -> tuple[CheckpointData, int] | None:
    """The data and the checksum of a file of format 2 without anything unusual; None of any other."""
    if not blob.isascii():
        return None
    text = blob.decode()
    entries_text, between, rest = text.removeprefix(_BEGIN).partition(_BETWEEN)
    registered_text, end, checksum_text = rest.rpartition(_END)
    if not (
        between
        and end
        and text.startswith(_BEGIN)
        and _CHECKSUM.fullmatch(checksum_text)
        and _REGISTERED.fullmatch(registered_text)
    ):
        return None
    entries = []
    place = 0
    entries_text = f",{entries_text}"  # so that every entry is behind a comma
    for found in _ENTRY.finditer(entries_text):
        pod, container, resource, ids, response = found.groups()
        if found.start() != place or not _BASE64.fullmatch(response):
            return None
        place = found.end()
        entries.append(PodDevicesEntry(pod, container, resource, _device_ids(ids), a2b_base64(response)))
    if place != len(entries_text):
        return None
    registered = {name: tuple(ids) for name, ids in json.loads(registered_text).items()}
    return CheckpointData(tuple(entries), registered), int(checksum_text.rstrip("}\n"))


def _device_ids(text: str) -> dict[int, tuple[str, ...] | None]:
    """`"0":["a","b"],"1":["c"]`, as a mapping."""
    nodes = (node.partition('":["') for node in text[1:-2].split('"],"'))
    return {int(node): tuple(ids.split('","')) for node, _, ids in nodes}
