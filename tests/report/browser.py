"""A headless Chromium over its debugging pipe: no driver, no package, no network port."""

import base64
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--hide-scrollbars", "--disable-background-networking", "--disable-component-update",
    "--remote-debugging-pipe",
)  # fmt: skip


def find_browser() -> str | None:
    """Path of a Chromium, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One open page; commands go out on a pipe and answers come back on another."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._rest = write, read, b""
        self._next = 0
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and wait for its answer; events on the way are kept."""
        self._next += 1
        message = {"id": self._next, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._next:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def wait_for(self, method: str) -> None:
        """Wait for an event that has not come yet."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._receive())

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._read, 1 << 16)
            assert piece, "the browser ended"
            self._rest += piece
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression on the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, target: Path, *, whole: bool = False) -> None:
        """Write a PNG of the window, or of the whole page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        target.write_bytes(base64.b64decode(answer["data"]))

    def complaints(self) -> list[str]:
        """What the console and the log said: errors, warnings, exceptions, failed requests."""
        found = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            if event.get("method") == "Log.entryAdded":
                found.append(f"{params['entry']['level']}: {params['entry']['text']}")
            if event.get("method") == "Runtime.consoleAPICalled":
                found.append(str(params["args"]))
        return found

    def requests(self) -> list[str]:
        """Addresses the page asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]


@contextlib.contextmanager
def open_page(
    browser: str, url: str, *, size: tuple[int, int] = (1280, 720), dark: bool = False
) -> Iterator[Page]:
    """Open a page in a window of `size` CSS pixels and close the browser afterwards."""
    to_browser, from_browser = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [browser, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = _start(command, to_browser[0], from_browser[1])
        page = Page(to_browser[1], from_browser[0])
        try:
            _attach(page, url, size, dark)
            yield page
        finally:
            process.kill()
            process.wait()
            for end in (to_browser[1], from_browser[0]):
                os.close(end)


def _start(command: list[str], read: int, write: int) -> subprocess.Popen[bytes]:
    """The browser reads commands on descriptor 3 and answers on descriptor 4."""
    far = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (read, write)]  # clear of 3 and 4
    script = f'exec 3<&{far[0]} 4>&{far[1]} {far[0]}<&- {far[1]}>&-; exec "$@"'
    process = subprocess.Popen(
        ["bash", "-c", script, "chromium", *command],
        pass_fds=far,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for end in (read, write, *far):
        os.close(end)
    return process


def _attach(page: Page, url: str, size: tuple[int, int], dark: bool) -> None:
    target = page.call("Target.createTarget", url="about:blank")["targetId"]
    page.session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
        page.call(f"{domain}.enable")
    width, height = size
    page.call(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=height, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    page.call("Emulation.setEmulatedMedia", features=[scheme])
    page.call("Page.navigate", url=url)
    page.wait_for("Page.loadEventFired")
