"""Drives a headless Chromium over the DevTools protocol, with nothing but the standard library.

The browser reads and writes the protocol's messages on its descriptors 3 and 4 (--remote-debugging-pipe), each ended by a
NUL byte: no port, no WebSocket, no driver program.
"""
import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
DEADLINE_S = 120


def find():
    """The browser's path, or None."""
    return next((path for path in map(shutil.which, PROGRAMS) if path), None)


class BrowserError(Exception):
    pass


class Page:
    """One tab of a browser of its own. A context manager."""

    def __init__(self, program):
        self.profile = tempfile.mkdtemp(prefix="cedar-page-")
        to_browser, self.out = os.pipe()
        self.into, from_browser = os.pipe()

        def move_descriptors():
            # Above 4 first, so that neither takes the other's place.
            read, write = os.dup(to_browser), os.dup(from_browser)
            high = [os.dup2(read, 30), os.dup2(write, 31)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        command = [program, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self.profile}",
                   "--no-first-run", "--no-default-browser-check", "--disable-gpu", "--disable-dev-shm-usage",
                   "--disable-extensions", "--disable-background-networking", "--disable-sync", "--mute-audio",
                   "--hide-scrollbars", "--window-size=1280,860"]
        if os.geteuid() == 0:
            command.append("--no-sandbox")  # Chromium's sandbox cannot start as root
        self.process = subprocess.Popen(command, close_fds=False, preexec_fn=move_descriptors, start_new_session=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.next_id = 0
        self.replies = {}
        self.arrived = threading.Condition()
        self.events = []  # (method, params) in order
        self.closed = False
        threading.Thread(target=self._read, daemon=True).start()
        target = self.call("Target.createTarget", {"url": "about:blank"}, session=None)["targetId"]
        self.session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True}, session=None)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.out)
        shutil.rmtree(self.profile, ignore_errors=True)

    def _read(self):
        rest = b""
        while True:
            try:
                piece = os.read(self.into, 1 << 16)
            except OSError:
                piece = b""
            *messages, rest = (rest + piece).split(b"\0")
            with self.arrived:
                for message in map(json.loads, messages):
                    if "id" in message:
                        self.replies[message["id"]] = message
                    else:
                        self.events.append((message["method"], message.get("params", {})))
                self.closed = self.closed or not piece
                self.arrived.notify_all()
            if not piece:
                return

    def call(self, method, params=None, session=""):
        """One command and its result."""
        self.next_id += 1
        message = {"id": self.next_id, "method": method, "params": params or {}}
        if session is not None:
            message["sessionId"] = session or self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        with self.arrived:
            if not self.arrived.wait_for(lambda: message["id"] in self.replies or self.closed, DEADLINE_S):
                raise BrowserError(f"{method}: no answer")
            if message["id"] not in self.replies:
                raise BrowserError(f"{method}: the browser has ended")
            reply = self.replies.pop(message["id"])
        if "error" in reply:
            raise BrowserError(f"{method}: {reply['error']['message']}")
        return reply["result"]

    def open(self, url):
        self.call("Page.navigate", {"url": url})
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def eval(self, expression):
        """The value of a JavaScript expression; promises are awaited."""
        reply = self.call("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in reply:
            details = reply["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description", details["text"]))
        return reply["result"].get("value")

    def wait(self, condition, deadline_s=DEADLINE_S):
        """Until the JavaScript condition holds."""
        end = time.monotonic() + deadline_s
        while True:
            if self.eval(f"Boolean({condition})"):  # an element has no value that could travel
                return
            if time.monotonic() > end:
                raise BrowserError(f"never became true: {condition}")
            time.sleep(0.03)

    def type(self, text):
        self.call("Input.insertText", {"text": text})

    def press(self, key, modifiers=0):
        """A key by its DevTools name. `modifiers`: 8 is shift."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9}
        event = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], "modifiers": modifiers}
        if key == "Enter":
            event["text"] = "\r"
        self.call("Input.dispatchKeyEvent", {"type": "keyDown", **event})
        self.call("Input.dispatchKeyEvent", {"type": "keyUp", **event})

    def click(self, selector):
        """A real mouse click in the middle of the element."""
        box = self.eval(f"(() => {{ const r = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
                        " return [r.x + r.width / 2, r.y + r.height / 2]; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent",
                      {"type": kind, "x": box[0], "y": box[1], "button": "left", "clickCount": 1})

    def look(self, width, height, dark=False, scale=1, mobile=False):
        """The window's size and the colour scheme."""
        self.call("Emulation.setDeviceMetricsOverride",
                  {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile})
        self.call("Emulation.setEmulatedMedia",
                  {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", {"format": "png"})["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))

    def complaints(self):
        """What the console, the log (refused by the Content-Security-Policy, failed requests) and exceptions said."""
        said = []
        with self.arrived:
            for method, params in self.events:
                if method == "Runtime.exceptionThrown":
                    details = params["exceptionDetails"]
                    said.append(details.get("exception", {}).get("description", details["text"]))
                elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                    said.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
                elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                    said.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))
        return said
