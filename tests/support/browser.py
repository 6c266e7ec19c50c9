"""Chromium without a window, driven by its DevTools protocol: a page is opened, used and looked at."""

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0"),
)
LONGEST_S = 30.0


class Tab:
    """One page, with all that it said on its console and every address that it asked for."""

    def __init__(self, socket: ClientConnection, folder: Path) -> None:
        self.socket, self.sent, self.folder = socket, 0, folder
        self.console: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """A command of the protocol; returns its result."""
        self.sent += 1
        self.socket.send(json.dumps({"id": self.sent, "method": method, "params": params}))
        while (message := json.loads(self.socket.recv(timeout=LONGEST_S))).get("id") != self.sent:
            self.note(message)
        assert "error" not in message, message
        return message["result"]

    def note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                self.console.append(json.dumps(params))
            case "Log.entryAdded":
                self.console.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])

    def open(self, path: Path, width: int = 1280, dark: bool = False, scripts: bool = True) -> None:
        """Loads a file at a width, in a theme."""
        self.console, self.requests = [], []
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call("Page.navigate", url=path.resolve().as_uri())
        while self.call("Runtime.evaluate", expression="document.readyState")["result"]["value"] != "complete":
            time.sleep(0.05)

    def run(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def click(self, css: str) -> None:
        """A click of the mouse in the middle of the first element of a selector."""
        place = self.run(
            f"(() => {{ const e = document.querySelector({css!r}); e.scrollIntoView({{block: 'center'}});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def type(self, css: str, text: str) -> None:
        """Types a text in place of what a field holds."""
        self.run(f"(() => {{ const e = document.querySelector({css!r}); e.focus(); e.select(); }})()")
        self.call("Input.insertText", text=text)

    def picture(self, path: Path) -> None:
        """Writes the whole page as a PNG file."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=self.clip())
        path.write_bytes(base64.b64decode(shot["data"]))

    def clip(self) -> dict[str, float]:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}

    def printed(self) -> bytes:
        """The page on paper, as PDF."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])


@contextmanager
def browser(folder: Path) -> Iterator[Tab]:
    """Chromium with a profile and downloads in a folder, and its one tab."""
    assert CHROMIUM
    profile = folder / "profile"
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            port = profile / "DevToolsActivePort"
            end = time.monotonic() + LONGEST_S
            while not (port.exists() and port.read_text().count("\n")):
                assert time.monotonic() < end and process.poll() is None, "chromium did not start"
                time.sleep(0.05)
            with urlopen(f"http://127.0.0.1:{port.read_text().splitlines()[0]}/json/list") as answer:
                pages = [one for one in json.load(answer) if one["type"] == "page"]
            with connect(pages[0]["webSocketDebuggerUrl"], max_size=None, proxy=None) as socket:
                tab = Tab(socket, folder)
                tab.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
                yield tab
        finally:
            process.terminate()
