"""The file that names the unhealthy devices of a simulated plugin or driver, such as a key in a mounted ConfigMap.

Law: the kubelet sees the latest content of the file. A missing file names no devices.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from devicecore.domain.text import foreign_text
from devicecore.system.files import read_file

_EVERY = 1.0  # seconds; a kubelet updates the files of a ConfigMap within about a minute
_MAX_BYTES = 1024 * 1024  # the maximum size of a ConfigMap

_log = logging.getLogger(__name__)


class UnhealthyFile:
    """A file with the names or numbers of devices, separated by whitespace. The rest of a line after # is a comment.

    Args:
        path: the file.
        apply: makes exactly the named devices unhealthy, and returns a sentence that says what was done.
    """

    def __init__(self, path: str, apply: Callable[[frozenset[str]], str]) -> None:
        self._path = Path(path)
        self._apply = apply
        self._seen: frozenset[str] | None = None
        self._problem: str | None = None

    def follow(self) -> None:
        """Apply the file now, and start a thread that applies the file again whenever it has changed."""
        self._look()
        threading.Thread(target=self._run, name="devicecore-unhealthy-file", daemon=True).start()

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(_EVERY):
            self._look()

    def _look(self) -> None:
        words = self._words()
        if words is not None and words != self._seen:
            self._seen = words
            # A ConfigMap may be created later.
            missing = "" if words or self._path.exists() else "there is no such file yet; "
            _log.info("%s: %s%s", foreign_text(str(self._path)), missing, self._apply(words))

    def _words(self) -> frozenset[str] | None:
        """Return the words in the file, or None if the file cannot be read now.

        In that case, the devices stay unchanged.
        """
        try:
            # A ConfigMap's key is a link, which the kubelet replaces when the ConfigMap changes.
            text = read_file(str(self._path), _MAX_BYTES, follow_links=True).decode(errors="replace")
        except FileNotFoundError:
            text = ""
        except OSError as error:
            if error.strerror != self._problem:  # this is logged once, not every second
                _log.warning("%s cannot be read: %s", foreign_text(str(self._path)), error.strerror)
            self._problem = error.strerror
            return None
        self._problem = None
        return frozenset(word for line in text.splitlines() for word in line.partition("#")[0].split())
