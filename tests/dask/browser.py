# SPDX-License-Identifier: BSD-3-Clause
"""A headless Chromium, driven over its DevTools protocol: what a page looks like, and what is in it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

TIMEOUT_S = 30.0


def find() -> str | None:
    """Return the path of a browser, if there is one."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """One tab."""

    def __init__(self, socket: WebSocketClientConnection, session: str) -> None:
        self._socket, self._session, self._calls = socket, session, 0

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        return await _call(self._socket, method, params, session=self._session)

    async def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Wait until a JavaScript expression is true; return its value. The caller bounds it in time."""
        while not (value := await self.evaluate(expression)):
            await asyncio.sleep(0.05)
        return value

    async def screenshot(self, path: Path) -> None:
        answer = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))


_ids = iter(range(1, 1_000_000))


async def _call(
    socket: WebSocketClientConnection, method: str, params: dict[str, Any], session: str | None = None
) -> dict[str, Any]:
    number = next(_ids)
    await socket.write_message(
        json.dumps({"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {}))
    )
    while True:
        message = await socket.read_message()
        assert message is not None, "the browser has gone"
        answer = json.loads(message)
        if answer.get("id") == number:
            assert "error" not in answer, f"{method}: {answer['error']}"
            return answer["result"]


@contextlib.asynccontextmanager
async def opened(url: str, profile: Path, *, width: int = 1280, height: int = 900) -> AsyncIterator[Page]:
    """Open `url` in a browser of its own that keeps its files in `profile`."""
    browser = find()
    assert browser is not None
    process = subprocess.Popen(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--remote-debugging-port=0",
            f"--window-size={width},{height}",
            f"--user-data-dir={profile}",
            "about:blank",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            told = profile / "DevToolsActivePort"
            while not told.exists() or len(told.read_text().split()) != 2:
                assert process.poll() is None, "the browser ended at once"
                await asyncio.sleep(0.02)
            port, path = told.read_text().split()
            socket = await websocket_connect(f"ws://127.0.0.1:{port}{path}", max_message_size=1 << 28)
            target = await _call(socket, "Target.createTarget", {"url": url})
            attach = {"targetId": target["targetId"], "flatten": True}
            session = (await _call(socket, "Target.attachToTarget", attach))["sessionId"]
            yield Page(socket, session)
            await _call(socket, "Browser.close", {})
            socket.close()
            while await socket.read_message() is not None:
                pass  # until it has hung up
    finally:
        # asked to close, it ends its children too
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(100)
        process.kill()
        process.wait(100)
