"""The devices of ResourceClaims on a node, and what their drivers have published.

Law: a file that cannot be read whole is not a file without claims.
"""

from collections.abc import Iterator
from pathlib import Path

from devicecore.domain.checkpoint import FileVerdict
from devicecore.domain.documents import Value, described
from devicecore.domain.dra.state_file import ClaimEntry, entries_of
from devicecore.domain.dra.state_verdict import judge
from devicecore.domain.errors import MalformedCheckpointError
from devicecore.domain.json_size import MAX_BYTES
from devicecore.system.files import read_file
from devicecore_tools.doctor import ClaimsSeen, PreparedDeviceSeen, PublishedDeviceSeen, Reading
from devicecore_tools.doctor.sources.large_documents import read_document_file
from devicecore_tools.doctor.sources.objects import items_of, reading


def read_claims(path: str, *, may_be_absent: bool) -> Reading[ClaimsSeen]:
    """The kubelet's file of claims at `path`.

    A kubelet writes the file with its first claim. So if it is absent in a kubelet's directory (`may_be_absent`), no
    claim is prepared. Elsewhere an absent file says nothing.
    """
    try:
        blob = read_file(path, MAX_BYTES, follow_links=True)
    except FileNotFoundError:
        if not Path(path).parent.is_dir():
            return Reading(path, problem=f"there is no directory {Path(path).parent}")
        if not may_be_absent:
            return Reading(path, problem="there is no such file")
        return Reading.of(path, ClaimsSeen(), ("there is no such file, so no claim is prepared",))
    except OSError as error:
        return Reading(path, problem=error.strerror or str(error))
    verdict = judge(blob)
    try:
        entries = entries_of(blob) if verdict.entries is None else tuple(verdict.entries)
    except MalformedCheckpointError as error:
        return Reading(path, problem=error.problem)
    is_sound = verdict.verdict is FileVerdict.OK
    return Reading.of(path, _seen(entries, is_sound=is_sound), () if is_sound else (verdict.problem,))


def read_slices(path: str, node: str = "") -> Reading[tuple[PublishedDeviceSeen, ...]]:
    """The ResourceSlices in a file; if `node` is given, those of this node."""
    return reading(path, lambda: slices_in(read_document_file(path), node))


def slices_in(document: Value, node: str = "") -> tuple[PublishedDeviceSeen, ...]:
    """The devices of a list of ResourceSlices, with their attributes that are texts.

    Raises:
        DocumentError: it is not a complete list of ResourceSlices.
    """
    items = items_of(document, "ResourceSlices", "ResourceSliceList")
    return tuple(device for item in items for device in _published(item, node))


def _published(item: Value, node: str) -> Iterator[PublishedDeviceSeen]:
    if (kind := item["kind"].text("ResourceSlice")) != "ResourceSlice":
        item["kind"].refuse(f"expected a ResourceSlice, got {described(kind)}")
    spec = item["spec"]
    if node and spec["nodeName"].text(node) != node:
        return
    driver, pool = spec["driver"].text(), spec["pool"]["name"].text()
    for device in spec["devices"].sequence():
        # Until v1beta1, the fields of a device are one level lower.
        fields = device if device["basic"].data is None else device["basic"]
        attributes = {name: one["string"].text("") for name, one in fields["attributes"].mapping().items()}
        texts = {name: text for name, text in attributes.items() if text}
        yield PublishedDeviceSeen(driver, pool, device["name"].text(), texts)


def _seen(entries: tuple[ClaimEntry, ...], *, is_sound: bool) -> ClaimsSeen:
    devices = tuple(
        PreparedDeviceSeen(f"{entry.namespace}/{entry.name}", driver, one.pool, one.name, one.cdi_ids or ())
        for entry in entries
        for driver, listed in (entry.drivers or {}).items()
        for one in listed or ()
    )
    return ClaimsSeen(devices, frozenset(driver for entry in entries for driver in entry.drivers or ()), is_sound)
