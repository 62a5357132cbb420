"""The space that a driver's answers take up in the claims file, and the limit.

Laws: `size_in_file` is at least the number of bytes that the devices take up in the file. A refused answer changes
nothing, and the error names the driver, so a driver cannot fill the file at the expense of others. Answers that a file
already contains may exceed the limits. A driver may replace such an answer with one that is no larger; any other answer
over a limit is refused.
"""

from devicecore.domain.dra.errors import DriverAnswerTooLargeError
from devicecore.domain.dra.model import DriverName, PreparedDevice
from devicecore.domain.go_text import json_text
from devicecore.domain.json_size import MAX_OF_OWNER, share_of_file

MAX_SIZE = 256 * 1024
"""The number of bytes that one driver's answer for one claim may take up in the file.

This limit is enough for 600 devices; a claim has at most 32 allocated devices. `MAX_OF_OWNER` is the limit for all
answers of the driver, enough for 10,000 devices.
"""


def devices_json(devices: tuple[PreparedDevice, ...] | None) -> list[dict[str, object]] | None:
    """Return the devices in the form that they have in the file, for JSON."""
    if devices is None:
        return None
    return [
        {
            "PoolName": device.pool,
            "DeviceName": device.name,
            "ShareID": device.share_id,
            "RequestNames": device.requests,
            "CDIDeviceIDs": device.cdi_ids,
        }
        for device in devices
    ]


def size_in_file(devices: tuple[PreparedDevice, ...] | None) -> int:
    """Return how many bytes of the file an answer takes up (see `share_of_file`). Raises UnencodableCheckpointError."""
    if not devices:
        return 0
    text = json_text(devices_json(devices))
    # In the file, the answer's JSON is inside a string, where quotes and backslashes are escaped once more.
    return share_of_file(text, text.count(b'"') + text.count(b"\\"))


def check_size(driver: DriverName, claim: str, size: int, last: int, total: int) -> DriverAnswerTooLargeError | None:
    """Return why an answer of `size` bytes for `claim` is refused, or None if the answer is accepted.

    `last` is the size of the driver's last answer for this claim, or 0, and `total` is the size of all the driver's
    answers.
    """
    if size > max(MAX_SIZE, last):
        return DriverAnswerTooLargeError(driver, claim, size, MAX_SIZE, is_sum=False)
    if (after := total - last + size) > max(MAX_OF_OWNER, total):
        return DriverAnswerTooLargeError(driver, claim, after, MAX_OF_OWNER, is_sum=True)
    return None
