"""Chromium without a window, asked through a pipe by its DevTools protocol: no driver and no further package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-extensions",
)
_PATIENCE = 60.0  # seconds for an answer


class Page:
    """One page: give it an address, look at it, ask it.

    Attributes:
        errors: what its scripts raised or wrote to the console as an error, and requests that failed.
        requests: the addresses that it asked for, its own left out.
    """

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, back
        self._number, self._session, self._rest = 0, "", b""
        self.errors: list[str] = []
        self.requests: list[str] = []

    def open(self, path: Path, width: int, scheme: str, height: int = 900) -> None:
        """Show a file at that width in CSS pixels, `scheme` being "dark" or "light"; returns once it is loaded."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        self.scheme(scheme)
        self.errors.clear()
        self.requests.clear()
        self.ask("Page.navigate", url=path.resolve().as_uri())
        self._until("Page.loadEventFired")

    def scheme(self, scheme: str) -> None:
        """What the person prefers from now on."""
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def value(self, expression: str) -> Any:
        """What JavaScript in the page makes of an expression; a promise is waited for."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip={**size, "scale": 1})
        path.write_bytes(base64.b64decode(shot["data"]))

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """One request of the protocol, and its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session and not method.startswith(("Target", "Browser")):
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _until(self, event: str) -> None:
        while self._next().get("method") != event:
            pass

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._back, 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(json.dumps(params["args"])[:500])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(
            ("file:", "data:", "blob:")
        ):
            self.requests.append(params["request"]["url"])


@contextmanager
def chromium() -> Iterator[Page]:
    """A browser with one page; it has ended, and its files are gone, when the block is left."""
    assert CHROMIUM is not None
    to_read, to_write = os.pipe()
    back_read, back_write = os.pipe()
    folder = tempfile.mkdtemp(prefix="hogwild-browser-")
    # The protocol reads descriptor 3 and writes 4, whatever their numbers are here.
    pipes = f'exec "$0" "$@" 3<&{to_read} 4>&{back_write}'
    arguments = [*_FLAGS, f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"]
    process = subprocess.Popen(
        ["bash", "-c", pipes, CHROMIUM, *arguments],
        pass_fds=(to_read, back_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(to_read)
    os.close(back_write)
    page = Page(to_write, back_read)
    try:
        yield page
        page.ask("Browser.close")
    finally:
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()
        os.close(to_write)
        os.close(back_read)
        _remove(Path(folder))


def _remove(folder: Path) -> None:
    """Its last helpers may still write there for a moment."""
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)
