"""A headless Chromium with its network cut, driven over a pipe: `with Chromium() as browser: page = browser.open(path)`.

The DevTools protocol goes over two file descriptors (`--remote-debugging-pipe`), so there is no port, no driver and no package. Every
request that the page makes is written down (`page.requests`), whether it was answered or not.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.servers.needs import needs

NAMES = ("chromium", "chromium-browser", "google-chrome")
WAIT_S = 120
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-extensions", "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe", "--window-size=1100,1400",
)  # fmt: skip

# The browser reads commands on 3 and answers on 4, whatever numbers the pipes have here.
LAUNCH = """
import fcntl, os, sys
to_read, to_write = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 20) for fd in sys.argv[1:3])
os.dup2(to_read, 3)
os.dup2(to_write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """One tab. `call` is a command of the protocol, `evaluate` the value of an expression (a promise is awaited)."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self.browser, self.session = browser, session
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def evaluate(self, expression: str) -> Any:
        out = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in out:
            raise AssertionError(json.dumps(out["exceptionDetails"])[:2000])
        return out["result"].get("value")

    def choose(self, selector: str, *paths: Path) -> None:
        """As if a person had chosen these files in that field."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def screenshot(self, path: Path) -> None:
        width, height = self.evaluate("[innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def noted(self, event: dict[str, Any]) -> None:
        params = event["params"]
        if event["method"] == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event["method"] == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif event["method"] == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"])[:2000])


class Chromium:
    """The program and its pipe. Whoever opens it needs Chromium: without one the test is skipped, and in CI it fails."""

    def __enter__(self) -> Self:
        self.program = next((path for name in NAMES if (path := shutil.which(name))), "")
        if not self.program:
            needs(NAMES[0])
        self.folder = tempfile.mkdtemp(prefix="chromium-")
        to_read, self.write_end = os.pipe()
        self.read_end, to_write = os.pipe()
        command = [sys.executable, "-c", LAUNCH, str(to_read), str(to_write), self.program, *FLAGS]
        self.process = subprocess.Popen(
            [*command, f"--user-data-dir={self.folder}", "about:blank"],
            pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self.count, self.rest = 0, b""
        self.pages: dict[str, Page] = {}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self.write_end)
        os.close(self.read_end)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)  # its own session: the browser and its children, nothing else
        except ProcessLookupError:
            pass
        self.process.wait(10)
        for _ in range(50):  # its children leave the folder a moment later
            shutil.rmtree(self.folder, ignore_errors=True)
            if not os.path.exists(self.folder):
                return
            time.sleep(0.1)

    def open(self, path: Path, *, dark: bool = False, width: int = 1100) -> Page:
        """The page at a path, from disk, offline."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session)
        for name in ("Network", "Page", "Runtime", "Log", "DOM"):
            page.call(f"{name}.enable")
        page.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=1400, deviceScaleFactor=1, mobile=False)
        page.call("Page.navigate", url=path.resolve().as_uri())
        until = time.monotonic() + WAIT_S
        while page.evaluate("document.readyState + typeof globalThis.mandamusVerify") != "completefunction":
            assert time.monotonic() < until, f"the page does not load: {page.complaints}"
        return page

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        self.count += 1
        message: dict[str, Any] = {"id": self.count, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        self._write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self.count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            page = self.pages.get(answer.get("sessionId", ""))
            if page is not None and "method" in answer:
                page.noted(answer)

    def _write(self, raw: bytes) -> None:
        while raw:
            raw = raw[os.write(self.write_end, raw) :]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            piece = os.read(self.read_end, 1 << 20)
            assert piece, "the browser is gone"
            self.rest += piece
        raw, _, self.rest = self.rest.partition(b"\0")
        out: dict[str, Any] = json.loads(raw)
        return out
