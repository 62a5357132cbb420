"""Old formats of the checkpoint, and which kubelets read them.

Law: a file counts as sound only if some version of the kubelet could have written it, and it is unlikely to be anything
else.
"""

import re
from collections.abc import Mapping

from devicecore.domain.checkpoint import CheckpointData, FileReport, FileVerdict
from devicecore.domain.checkpoint import examine as examine_any
from devicecore_tools.doctor.look.values import Look

# the last version of the kubelet that reads each format
_LAST_READERS: Mapping[int | None, str] = {0: "1.9", 1: "1.29"}

FORMAT_2 = (1, 20)
"""The first kubelet that writes format 2."""

_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})")
_EMPTY_LIST = "expected an object, got a list without entries: kubelets after 1.9 cannot read a list"


def examine(blob: bytes | None) -> tuple[FileReport, CheckpointData | None]:
    """Examine the content of a checkpoint, as `devicecore.domain.checkpoint.examine` does.

    A list without entries is refused, because nothing shows that a kubelet wrote it.
    """
    report, data = examine_any(blob)
    if report.format == 0 and data is not None and not data.entries:
        return FileReport(FileVerdict.MALFORMED, problem=_EMPTY_LIST), None
    return report, data


def kubelet_version(look: Look) -> tuple[int, int] | None:
    """Return the kubelet's version, or the oldest version that it can have, or None if no source names one."""
    node, api = look.node.value, look.pod_resources.value
    if node is not None and (version := version_in(node.kubelet_version)):
        return version
    return FORMAT_2 if api is not None and api.version == "v1" else None


def version_in(text: str) -> tuple[int, int] | None:
    """Return the first two numbers of a kubelet's version, or None if the text has none."""
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2])) if found else None


def why_old(report: FileReport) -> str:
    """Return what later kubelets do with a file of an old format, or "" if the file is current or damaged."""
    return why_old_format(report.format) if report.verdict is FileVerdict.OK else ""


def why_old_format(number: int | None) -> str:
    """Return what later kubelets do with a sound file of this format, or "" if they read it."""
    last = _LAST_READERS.get(number)
    if not last:
        return ""
    return f"kubelets after {last} cannot read format {number}, and start without any allocation"
