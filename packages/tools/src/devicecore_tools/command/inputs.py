"""Files and pipes that a user names on the command line.

Law: input is bounded in size, and a pipe to which nothing is written does not block the command forever.
"""

import errno
import os
import select
import stat

from devicecore.system.files import open_into

PIPE_PATIENCE = 30.0
"""The maximum number of seconds to wait for the next bytes from a pipe that a user names."""

_PART = 1024 * 1024  # bytes per read


def read_input(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Read the input that a user names on the command line: a file, or a pipe like a shell's `<(...)`.

    The input may have at most `max_bytes` bytes. Symbolic links are followed. Raises OSError with a sentence as its
    `strerror` if the input cannot be read, is too long, or is a pipe to which nothing is written.
    """
    opened: list[int] = []
    try:
        descriptor = open_into(opened, path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            problem = "it is a directory; expected a file"
            raise IsADirectoryError(errno.EISDIR, problem, str(path))
        size = found.st_size if stat.S_ISREG(found.st_mode) else 0
        ready = select.poll()
        ready.register(descriptor, select.POLLIN)
        parts: list[bytes] = []
        while size <= max_bytes:
            if not ready.poll(PIPE_PATIENCE * 1000):
                problem = f"it is a pipe, and nothing was written to it for {PIPE_PATIENCE:g} s"
                raise TimeoutError(errno.ETIMEDOUT, problem, str(path))
            part = os.read(descriptor, _PART)
            if not part:
                return b"".join(parts)
            parts.append(part)
            size = max(size, sum(map(len, parts)))
        problem = f"it has {size} bytes or more; expected at most {max_bytes}"
        raise OSError(errno.EFBIG, problem, str(path))
    finally:
        for descriptor in opened:
            os.close(descriptor)
