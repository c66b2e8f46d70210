"""Headless Chromium over the DevTools protocol, through its pipe: a real browser in tests with the standard library.

``Browser`` starts one process with its own profile; ``open`` loads a page and records all that happens on it.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from time import monotonic
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE = 60.0


def find_chromium() -> str | None:
    """The browser's path, None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@dataclass
class Page:
    """One page and the events it caused."""

    browser: Browser
    session: str
    events: list[dict[str, Any]] = field(default_factory=list)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, parameters, self)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives on the page. Runs by the debugger's right, whatever the page allows."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def of(self, *methods: str) -> list[dict[str, Any]]:
        """The recorded events of these kinds."""
        return [event["params"] for event in self.events if event["method"] in methods]

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))


class Browser:
    """A running browser."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._number = 0
        self._buffer = b""
        self._pages: dict[str, Page] = {}

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """Load a file and wait until everything on it has loaded."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        page = Page(self, attached["sessionId"])
        self._pages[page.session] = page
        for domain in ("Page", "Runtime", "Network", "Log", "Security"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.call("Page.navigate", url=path.resolve().as_uri())
        self._receive(lambda: bool(page.of("Page.loadEventFired")))
        return page

    def call(self, method: str, parameters: dict[str, Any], page: Page | None = None) -> dict[str, Any]:
        """Send a command and wait for its answer; events that come meanwhile are recorded."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if page is not None:
            message["sessionId"] = page.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        answer: dict[str, Any] = {}

        def answered() -> bool:
            return bool(answer)

        self._receive(answered, self._number, answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(
        self, done: Callable[[], bool], wanted: int | None = None, answer: dict[str, Any] | None = None
    ) -> None:
        until = monotonic() + PATIENCE
        while not done():
            message = self._next(until)
            if answer is not None and message.get("id") == wanted:
                answer.update(message)
            elif message.get("sessionId") in self._pages and "method" in message:
                self._pages[message["sessionId"]].events.append(message)

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select([self._answers], [], [], max(0.0, until - monotonic()))
            assert ready, "the browser did not answer in time"
            read = os.read(self._answers, 1 << 16)
            assert read, "the browser has ended"
            self._buffer += read
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Start a browser with a profile of its own, and end it."""
    executable = find_chromium()
    assert executable, "no chromium on this machine: install it, or leave the tests marked 'browser' out"
    browser_reads, commands = os.pipe()
    answers, browser_writes = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The protocol's pipe is descriptors 3 and 4 of the browser; sh puts ours there.
        line = f'exec "$0" "$@" 3<&{browser_reads} 4>&{browser_writes}'
        process = subprocess.Popen(
            ["bash", "-c", line, executable, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(browser_reads, browser_writes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(browser_reads)
        os.close(browser_writes)
        try:
            yield Browser(commands, answers)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(commands)
            os.close(answers)
