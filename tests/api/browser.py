"""Headless Chromium, driven over its DevTools protocol; it sees what people see.

Where there is no Chromium, tests that need it are skipped: `apt install chromium`.
"""

import asyncio
import base64
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.hangs import HANG_S

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
MISSING = "" if PROGRAM else "there is no Chromium here: apt install chromium"
START_S = HANG_S
WAIT_S = HANG_S
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--remote-debugging-port=0"),
)
KEYS = {"Enter": 13, "Escape": 27}


class Tab:
    """One page, with a storage of its own. What it complains of and asks for is kept."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        self.complaints: list[str] = []  # exceptions, and what is an error or a warning
        self.asked: list[str] = []  # addresses
        self._reading = asyncio.create_task(self._read())

    async def open(self, url: str) -> None:
        """Go there; returns once the page's scripts have run."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A method of the protocol; what it returns."""
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        said = await asyncio.wait_for(answer, WAIT_S)
        assert "error" not in said, said
        result: dict[str, Any] = said["result"]
        return result

    async def evaluate(self, script: str) -> Any:
        """The value of an expression in the page, as if a person had caused it; of what it
        resolves to, if it is a promise.
        """
        how = {"awaitPromise": True, "returnByValue": True, "userGesture": True}
        said = await self.call("Runtime.evaluate", expression=script, **how)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until the expression is true. Raises AssertionError with the page's text."""
        ends_s = time.monotonic() + WAIT_S
        while time.monotonic() < ends_s:
            if await self.evaluate(f"Boolean({script})"):
                return
            await asyncio.sleep(0.03)
        shown = await self.evaluate("document.body.innerText")
        raise AssertionError(f"never: {script}\n{shown}\n{self.complaints}")

    async def text(self, selector: str) -> str:
        """The visible text of the first matching element; empty without a match."""
        found = await self.evaluate(f"document.querySelector({selector!r})?.innerText ?? ''")
        return str(found)

    async def type(self, text: str) -> None:
        """Put a text in where the focus is."""
        await self.call("Input.insertText", text=text)

    async def paste(self) -> None:
        """Put what was copied in where the focus is."""
        await self.call("Input.dispatchKeyEvent", type="keyDown", commands=["paste"])

    async def press(self, key: str, *, shift: bool = False) -> None:
        """Press and release a key of KEYS."""
        held = {"modifiers": 8} if shift else {}
        said = {"text": "\r"} if key == "Enter" else {}
        pressed = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], **held}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **pressed, **said)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **pressed)

    async def picture(self, file: Path, *, width: int, height: int, dark: bool = False) -> None:
        """Write a screenshot."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        taken = await self.call("Page.captureScreenshot")
        file.write_bytes(base64.b64decode(taken["data"]))

    async def close(self) -> None:
        """Hear nothing more."""
        self._reading.cancel()
        await self._socket.close()

    async def _read(self) -> None:
        async for message in self._socket:
            said = message.json()
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
            else:
                self._note(said["method"], said["params"])

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in {"error", "warning"}:
            self.complaints.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning"}:
            self.complaints.append(str(params["args"]))


class Browser:
    """The running program."""

    def __init__(self, http: aiohttp.ClientSession, address: str) -> None:
        self._http = http
        self._address = address

    @asynccontextmanager
    async def tab(self, url: str) -> AsyncIterator[Tab]:
        """A tab at this address, closed in the end."""
        async with self._http.put(f"{self._address}/json/new?about:blank") as answer:
            target = await answer.json()
        socket = await self._http.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0)
        tab = Tab(socket)
        try:
            await tab.open(url)
            yield tab
        finally:
            await tab.close()
            async with self._http.get(f"{self._address}/json/close/{target['id']}"):
                pass


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Chromium with a profile of its own, which is gone in the end."""
    assert PROGRAM is not None
    with tempfile.TemporaryDirectory(prefix="llmd-chromium-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [PROGRAM, *FLAGS, f"--user-data-dir={folder}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            port = await _port(Path(folder, "DevToolsActivePort"))
            async with aiohttp.ClientSession() as http:
                yield Browser(http, f"http://127.0.0.1:{port}")
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.to_thread(process.wait, 10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def _port(file: Path) -> int:
    async with asyncio.timeout(START_S):
        while not file.exists() or "\n" not in (said := file.read_text()):
            await asyncio.sleep(0.03)
    return int(said.split()[0])
