"""A headless Chromium, driven over its DevTools protocol: what a page says, asks for, and looks like.

It is the machine's own `chromium` (or what CHROMIUM names); nothing here brings one. Protocol:
https://chromedevtools.github.io/devtools-protocol/
"""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast
from urllib.request import urlopen

from websocket import WebSocket, create_connection

SECONDS = 60.0  # for a start or an answer; either takes less than one on an idle machine
_WIDEST = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"
_SMALLEST = """Math.min(...[...document.querySelectorAll("body *")]
  .filter(e => [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()) && e.checkVisibility())
  .map(e => parseFloat(getComputedStyle(e).fontSize)))"""

Message = dict[str, object]


class Visit:
    """One opened page: what it complained of and asked for, its width, its smallest letters and its picture."""

    def __init__(self, tab: "Tab", url: str, width: int) -> None:
        tab.events.clear()
        tab.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
        tab.ask("Page.navigate", url=url)
        tab.wait_for("Page.loadEventFired")
        self.scroll_width = int(cast("float", tab.value(_WIDEST)))
        self.smallest_letters = float(cast("float", tab.value(_SMALLEST)))
        self.complaints = [json.dumps(event) for event in tab.events if _complains(event)]
        asked = [_member(event, "params", "request", "url") for event in tab.named("Network.requestWillBeSent")]
        self.requests = [url for url in map(str, asked) if not url.startswith("data:")]
        size = tab.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": width, "height": _member(size, "height"), "scale": 1}
        self.picture = tab.picture(clip)


class Tab:
    """The connection to one tab, and every event that it sent."""

    def __init__(self, address: str) -> None:
        # Chromium refuses a connection that names an origin, as one from a page would.
        self._socket: WebSocket = create_connection(address, timeout=SECONDS, suppress_origin=True)
        self._number = 0
        self.events: list[Message] = []
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: object) -> Message:
        """Send a command and wait for its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while (message := self._receive()).get("id") != self._number:
            pass
        assert "error" not in message, message
        return cast(Message, message["result"])

    def wait_for(self, name: str) -> None:
        while not self.named(name):
            self._receive()

    def named(self, name: str) -> list[Message]:
        return [event for event in self.events if event.get("method") == name]

    def value(self, expression: str) -> object:
        """What a JavaScript expression gives in the page."""
        return _member(self.ask("Runtime.evaluate", expression=expression, returnByValue=True), "result", "value")

    def picture(self, clip: Message) -> bytes:
        """A PNG of a rectangle of the page, however far down it lies."""
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(str(shot["data"]))

    def printed(self) -> bytes:
        """The page as a PDF of A4 sheets."""
        return base64.b64decode(str(self.ask("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"]))

    def _receive(self) -> Message:
        message: Message = json.loads(self._socket.recv())
        if "method" in message:
            self.events.append(message)
        return message


@contextmanager
def open_tab() -> Iterator[Tab]:
    """A tab of a new Chromium with a profile of its own; raises FileNotFoundError where there is none."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or "chromium"
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        arguments = [program, "--headless", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking"]
        arguments += ["--remote-debugging-port=0", f"--user-data-dir={profile}", "--no-first-run"]
        arguments += ["--no-sandbox"] if os.getuid() == 0 else []  # a container's root has no sandbox to use
        with subprocess.Popen(
            [*arguments, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as browser:
            try:
                yield Tab(_address(Path(profile) / "DevToolsActivePort"))
            finally:
                browser.terminate()
                with suppress(subprocess.TimeoutExpired):
                    browser.wait(SECONDS)
                browser.kill()


def _address(port_file: Path) -> str:
    end = time.monotonic() + SECONDS
    while not (port_file.exists() and port_file.read_text().count("\n")):
        assert time.monotonic() < end, "chromium did not start"
        time.sleep(0.1)
    port = port_file.read_text().split("\n")[0]
    with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=SECONDS) as answer:
        tabs = json.load(answer)
    return next(str(tab["webSocketDebuggerUrl"]) for tab in tabs if tab["type"] == "page")


def _complains(event: Message) -> bool:
    return event["method"] in (
        "Runtime.consoleAPICalled",
        "Runtime.exceptionThrown",
        "Log.entryAdded",
        "Page.javascriptDialogOpening",
        "Network.loadingFailed",
    )


def _member(message: object, *names: str) -> object:
    for name in names:
        message = cast(Message, message)[name]
    return message
