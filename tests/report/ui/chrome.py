"""A real Chromium, driven over a pipe by its DevTools protocol: clicks, keys, what was fetched, what went wrong.

https://chromedevtools.github.io/devtools-protocol/, with ``--remote-debugging-pipe``: JSON, each ended by a zero byte.
"""

import base64
import contextlib
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.report.test_html import CHROMIUM

LIMIT_S = 90.0


class BetweenPages(AssertionError):
    """One page is gone and the next is not there yet."""


class Chrome:
    """One window. A context manager.

    Args:
        profile: Folder for what it keeps.
        width: Of the window (px).
        height: Of the window (px).
        dark: Whether its user likes dark pages.
    """

    def __init__(self, profile: Path, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        assert CHROMIUM is not None
        to_chrome, self._to = os.pipe()
        self._from, from_chrome = os.pipe()
        command = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--hide-scrollbars", "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--disable-dev-shm-usage", f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        script = f'exec "$@" 3<&{to_chrome} 4>&{from_chrome}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "chrome", *command],
            pass_fds=(to_chrome, from_chrome),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_chrome)
        os.close(from_chrome)
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.troubles: list[str] = []
        """Messages of the console that are errors or warnings, and exceptions."""
        self.asked: list[str] = []
        """Addresses that were asked for."""
        pages = [one for one in self("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        self._attach(pages[0]["targetId"])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])

    def __call__(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None and not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline_s = time.monotonic() + LIMIT_S
        while True:
            found = self._next(deadline_s)
            if found.get("id") == self._number:
                if "error" in found:
                    between = "execution context" in found["error"]["message"].lower()
                    raise (BetweenPages if between else AssertionError)(method, found["error"])
                result: dict[str, Any] = found["result"]
                return result
            self._note(found)

    def run(self, script: str) -> Any:
        """Return what an expression is, awaited, as JSON."""
        found = self("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def open(self, address: str) -> None:
        """Go to an address; returns at once."""
        self("Page.navigate", url=address)

    def wait(self, script: str, limit_s: float = LIMIT_S) -> Any:
        """Wait until an expression is truthy, and return it."""
        deadline_s = time.monotonic() + limit_s
        question = f"Promise.resolve({script}).then(found => found instanceof Node || found, () => null)"
        while True:
            with contextlib.suppress(BetweenPages):
                if found := self.run(question):
                    return found
            assert time.monotonic() < deadline_s, f"not true within {limit_s} s: {script}; {self.troubles}"
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """Press the mouse's button over the first element that a selector finds."""
        place = self.wait(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)}); if (!found) return null;"
            " found.scrollIntoView({block: 'center'}); const box = found.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def write(self, text: str) -> None:
        """Write into what has the focus."""
        self("Input.insertText", text=text)

    def press(self, key: str, code: int = 0) -> None:
        """Press a key, as ``Tab`` (9) or ``Enter`` (13)."""
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        self("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a select."""
        self.run(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)});"
            f" found.value = {json.dumps(value)};"
            " found.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    def other_page(self) -> str:
        """Go over to the page that was opened from this one, and return its address."""
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s:
            found = [one for one in self("Target.getTargets")["targetInfos"] if one["type"] == "page"]
            others = [one for one in found if not one["attached"] and one["url"].startswith("http")]
            if others:
                self._attach(others[0]["targetId"])
                return str(others[0]["url"])
            time.sleep(0.02)
        raise AssertionError("no other page was opened")

    def picture(self, path: Path, *, whole: bool = False) -> Path:
        """Write a picture of the page."""
        found = self("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def __enter__(self) -> "Chrome":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def _attach(self, target: str) -> None:
        self._session = None
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def _next(self, deadline_s: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline_s - time.monotonic()))
            assert ready, "Chromium does not answer"
            more = os.read(self._from, 1 << 16)
            assert more, "Chromium ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def _note(self, found: dict[str, Any]) -> None:
        method, told = found.get("method"), found.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.troubles.append(str(told["exceptionDetails"].get("exception", {}).get("description", told)))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.troubles.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.troubles.append(str(told["args"]))
        elif method == "Network.requestWillBeSent":
            self.asked.append(told["request"]["url"])
