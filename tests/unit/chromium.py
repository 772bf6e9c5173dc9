"""A real browser for tests: Chromium without a window, driven through two pipes by its own DevTools protocol."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# Chromium speaks through just these; a pipe of ours may have any number but them.
_ON_3_AND_4 = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for number, end in enumerate(ends, 3):
    os.dup2(end, number)
os.execvp(sys.argv[3], sys.argv[3:])
"""
_PATIENCE = 60.0  # seconds for any answer: a loaded machine is slow, a dead browser is found by its pipe


def found() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One process with one page, once it is opened. `events` are the messages that nobody asked for, in their order."""

    def __init__(self, program: str, profile: Path) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        self._read, self._write, self._buffer, self._last = ours_in, ours_out, b"", 0
        self.events: list[dict[str, Any]] = []
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _ON_3_AND_4, str(theirs_in), str(theirs_out), program, "--headless",
                 "--no-sandbox", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run", "--disable-extensions",
                 "--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}"],
                pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self._session = ""

    def open(self) -> None:
        """Begin to speak with it; it may still be starting."""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The page's answer to one command of the protocol."""
        return self._ask(method, session=self._session, **parameters)

    def value(self, expression: str) -> Any:
        """What an expression is in the page, as JSON."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def show(self, address: str, *, width: int, height: int = 900, scheme: str = "light") -> None:
        """Open a page and wait until it is there."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.ask("Page.navigate", url=address)
        end = time.monotonic() + _PATIENCE
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._receive(end)

    def press(self, key: str) -> None:
        code, types = {"Tab": (9, {}), "Enter": (13, {"text": "\r"})}[key]
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **types)

    def picture(self, *, whole: bool = False) -> bytes:
        """A PNG of what is seen, or of the `whole` page."""
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **(
            {"clip": {"x": 0, "y": 0, "scale": 1, **self._size()}} if whole else {}
        ))  # fmt: skip
        return base64.b64decode(shot["data"])

    def printed(self) -> bytes:
        """The page as a PDF, as a printer gets it."""
        return base64.b64decode(self.ask("Page.printToPDF", printBackground=False)["data"])

    def close(self) -> None:
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            self._send("Browser.close", {}, None)
        os.close(self._write)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def _size(self) -> dict[str, float]:
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        return {"width": size["width"], "height": size["height"]}

    def _ask(self, method: str, *, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        number = self._send(method, parameters, session)
        end = time.monotonic() + _PATIENCE
        while True:
            message = self._receive(end)
            if message.get("id") == number:
                assert "error" not in message, (method, message)
                return dict(message["result"])

    def _send(self, method: str, parameters: dict[str, Any], session: str | None) -> int:
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        return self._last

    def _receive(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(end - time.monotonic(), 0))
            if not ready:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self._read, 1 << 20)
            if not piece:
                raise EOFError("the browser has ended")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    program = found()
    assert program is not None
    opened = Browser(program, profile)
    try:
        opened.open()
        yield opened
    finally:
        opened.close()
