"""A headless Chromium, controlled through its DevTools protocol over a pipe. No library or driver is needed."""

import fcntl
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-component-extensions-with-background-pages",
    "--disable-default-apps",
    "--disable-dev-shm-usage",  # containers may have little shared memory
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
# A browser that is controlled through a pipe reads from descriptor 3 and writes to 4.
_TRAMPOLINE = "import os, sys; a = sys.argv; os.dup2(int(a[1]), 3); os.dup2(int(a[2]), 4); os.execv(a[3], a[3:])"
_PATIENCE = 60  # seconds that a response may take on a busy machine
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39}
_KEYS["ArrowDown"] = 40


class BrowserError(Exception):
    """The browser has exited or hangs."""


@contextmanager
def a_browser() -> "Iterator[Browser]":
    """Run Chromium, or skip the test if it cannot be started here."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("there is no Chromium here (Debian: apt-get install chromium)")
    browser = Browser(path)
    try:
        browser.start()
    except BrowserError as error:  # for example a stub that asks the user to install a snap
        pytest.skip(f"there is no Chromium here that starts: {error}")
    try:
        yield browser
    finally:
        browser.stop()


@define
class Browser:
    """One Chromium with one page.

    `complaints` are the page's console errors and warnings; `requests` is what the page loaded.
    """

    path: str
    complaints: list[str] = field(factory=list, init=False)
    requests: list[str] = field(factory=list, init=False)
    _directory: "tempfile.TemporaryDirectory[str]" = field(init=False)
    _process: "subprocess.Popen[bytes]" = field(init=False)
    _write: int = field(init=False)
    _read: int = field(init=False)
    _received: bytes = field(default=b"", init=False)
    _last: int = field(default=0, init=False)
    _session: str = field(default="", init=False)
    _loaded: set[str] = field(factory=set, init=False)

    def start(self) -> None:
        """Start the browser, with an empty profile.

        Raises:
            BrowserError: the browser does not start.
        """
        self._directory = tempfile.TemporaryDirectory(prefix="dc-browser-", ignore_cleanup_errors=True)
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        command = [self.path, *_FLAGS, f"--user-data-dir={self._directory.name}", "about:blank"]
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_browser, from_browser)]  # avoid 3 and 4
        with Path(self._directory.name, "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _TRAMPOLINE, *map(str, ends), *command],
                pass_fds=ends,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        for end in (to_browser, from_browser, *ends):
            os.close(end)
        try:
            self._attach()
        except BaseException:
            self.stop()
            raise

    def _attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)  # the page stays focused after Tab has left it

    def stop(self) -> None:
        """Stop the browser and delete its profile."""
        os.close(self._write)  # this ends the browser
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        self._directory.cleanup()

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._last += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._last, "method": method, "params": parameters, **session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, url: str, *, scheme: str = "light", size: tuple[int, int] = (1400, 1000)) -> None:
        """Load a page and wait for it. Complaints and requests from earlier pages are discarded."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1}
        self.call("Emulation.setDeviceMetricsOverride", **metrics, mobile=False)
        self._loaded.clear()
        self.complaints.clear()
        self.requests.clear()
        loader = self.call("Page.navigate", url=url)["loaderId"]
        while loader not in self._loaded:
            self._receive()

    def run(self, expression: str) -> Any:  # noqa: ANN401 - whatever the page's script makes
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def accessible_names(self) -> list[tuple[str, str]]:
        """Return the role and name of each element that a screen reader sees."""
        self.call("Accessibility.enable")
        tree = self.call("Accessibility.getFullAXTree")["nodes"]
        return [(one["role"]["value"], one.get("name", {}).get("value", "")) for one in tree if not one["ignored"]]

    def press(self, key: str, times: int = 1) -> None:
        """Press a key."""
        text = {"text": "\r"} if key == "Enter" else {}
        named = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        for _ in range(times):
            self.call("Input.dispatchKeyEvent", type="keyDown", **named, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def point_at(self, selector: str) -> None:
        """Move the mouse to the middle of an element."""
        box = self.run(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.scrollIntoView();"
            "const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2] })()"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._read], [], [], _PATIENCE)
            part = os.read(self._read, 1 << 16) if ready else b""
            if not part:
                what = "has ended" if ready else f"has said nothing for {_PATIENCE} seconds"
                log = Path(self._directory.name, "log").read_text(errors="replace")[-2_000:]
                sentence = f"{self.path} {what}: {log}"
                raise BrowserError(sentence)
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        if "method" in answer:
            self._note(answer["method"], answer.get("params", {}))
        return answer

    def _note(self, method: str, event: Mapping[str, Any]) -> None:
        if method == "Page.lifecycleEvent" and event["name"] == "load":
            self._loaded.add(event["loaderId"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(event["exceptionDetails"]["text"])
        elif method == "Log.entryAdded":
            self.complaints.append(event["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(str(event["args"]))


def luminance(color: str) -> float:
    """Return the relative luminance of `rgb(r, g, b)`, `#rrggbb` or `#rgb`, as WCAG 2 defines it."""
    if color.startswith("#"):
        digits = color[1:] if len(color) == 7 else "".join(2 * digit for digit in color[1:])
        parts = [*bytes.fromhex(digits)]
    else:
        parts = [int(part) for part in re.findall(r"\d+", color)[:3]]
    shares = [part / 255 for part in parts]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in shares)
    return float(0.2126 * red + 0.7152 * green + 0.0722 * blue)


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colors, from 1 to 21, as WCAG 2 defines it."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
