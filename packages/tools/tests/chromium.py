"""A browser without a window, for tests of the pages that we write: what is seen, said and loaded.

It speaks the DevTools protocol over two pipes, so no port is open and no library is needed.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from attrs import field, frozen

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    "--headless",
    "--disable-gpu",
    "--no-sandbox",  # it cannot make one as root in a container; the pages are our own
    "--no-first-run",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)


@frozen
class Chromium:
    """A running browser with one page."""

    commands: IO[bytes]
    answers: IO[bytes]
    requests: list[str] = field(factory=list)
    """The address of everything that pages loaded, themselves included."""
    complaints: list[str] = field(factory=list)
    """What the console shows, such as errors, and what a content security policy has stopped."""
    _session: list[str] = field(factory=list)

    def open(self, page: Path, *, scheme: str = "light", width: int = 1000) -> None:
        """Show a page as a user sees it who prefers light or dark, in a window of so many pixels."""
        if not self._session:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
            self._session.append(attached["sessionId"])
            for domain in ("Page", "Network", "Log", "Runtime"):
                self.call(f"{domain}.enable")
        self.requests.clear()
        self.complaints.clear()
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=page.absolute().as_uri())
        while self._read().get("method") != "Page.loadEventFired":
            pass

    def value(self, expression: str) -> Any:  # noqa: ANN401 - JavaScript has no types
        """Return the value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def accessible_names(self, role: str) -> list[str]:
        """Return what a screen reader says of the elements with a role."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [node["name"]["value"] for node in nodes if node.get("role", {}).get("value") == role]

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call a method of the DevTools protocol and return its result."""
        message: dict[str, object] = {"id": 1, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session[0]
        self.commands.write(json.dumps(message).encode() + b"\0")
        self.commands.flush()
        while True:
            answer = self._read()
            if "id" in answer:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        text = b""
        while (letter := self.answers.read(1)) != b"\0":
            assert letter, "the browser has ended"
            text += letter
        message: dict[str, Any] = json.loads(text)
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            case "Log.entryAdded":
                self.complaints.append(message["params"]["entry"]["text"])
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                self.complaints.append(str(message["params"]))
            case _:
                pass
        return message


@contextmanager
def chromium() -> Iterator[Chromium]:
    """Run a browser, or skip the test where none is installed."""
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None:
        pytest.skip(f"none of {', '.join(_PROGRAMS)} is installed")
    to_browser, from_us = os.pipe()
    to_us, from_browser = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The browser reads from descriptor 3 and writes to 4.
        shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        command = ["bash", "-c", shell, "bash", program, *_OPTIONS, f"--user-data-dir={profile}"]
        with (
            open(from_us, "wb") as commands,  # noqa: PTH123 - it has no path
            open(to_us, "rb") as answers,  # noqa: PTH123 - it has no path
            subprocess.Popen(
                command,
                pass_fds=(to_browser, from_browser),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "TMPDIR": profile},
                start_new_session=True,
            ) as process,
        ):
            os.close(to_browser)
            os.close(from_browser)
            browser = Chromium(commands, answers)
            try:
                yield browser
                browser.call("Browser.close")
                process.wait(timeout=60)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
