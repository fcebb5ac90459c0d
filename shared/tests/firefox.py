"""Firefox for the tests of pages. It needs no driver, because it speaks WebDriver BiDi by itself.

A command is JSON with a number, and its answer has the same number. In between come events, such as
a line of the console: https://w3c.github.io/webdriver-bidi
"""

import contextlib
import json
import re
import subprocess

WATCHED = ["log.entryAdded", "network.beforeRequestSent"]
NO_NEWS = 'user_pref("services.settings.server", "data:,");'  # else it asks its makers at its start


class Tab:
    """The one tab of a Firefox. Its complaints land in errors, and addresses of the network."""

    def __init__(self, socket):
        self.socket, self.commands, self.errors = socket, 0, []
        self.send("session.new", capabilities={})
        self.send("session.subscribe", events=WATCHED)
        self.context = self.send("browsingContext.getTree")["contexts"][0]["context"]

    def send(self, method, **params):
        self.commands += 1
        self.socket.send(json.dumps({"id": self.commands, "method": method, "params": params}))
        for heard in map(json.loads, self.socket):
            if heard["type"] != "event":
                assert heard["type"] == "success", heard
                return heard["result"]
            address = heard["params"].get("request", {}).get("url", "")
            if address.startswith(("http", "ws")):
                self.errors.append(address)
            if heard["params"].get("level") in ("warn", "error"):
                self.errors.append(heard["params"]["text"])

    def goto(self, address):
        self.send("browsingContext.navigate", context=self.context, url=address, wait="complete")

    def evaluate(self, script):
        """Returns what an expression, or a function without arguments, comes to, by way of JSON."""
        called = f"const it = {script}; return typeof it === 'function' ? it() : it;"
        as_text = f"(async () => {{ {called} }})().then((it) => JSON.stringify(it) ?? 'null')"
        target = {"context": self.context}
        said = self.send("script.evaluate", expression=as_text, target=target, awaitPromise=True)
        assert said["type"] == "success", said["exceptionDetails"]["text"]
        return json.loads(said["result"]["value"])

    def type(self, text):
        for key in text:
            strokes = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
            keyboard = {"type": "key", "id": "keyboard", "actions": strokes}
            self.send("input.performActions", context=self.context, actions=[keyboard])


@contextlib.contextmanager
def open_tab(program, profile):
    """Within the block Firefox runs without a window; profile is a new folder for its settings."""
    from websockets.sync.client import connect

    (profile / "user.js").write_text(NO_NEWS, encoding="utf-8")
    command = [program, "--headless", "--profile", profile, "--remote-debugging-port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        found = next(filter(None, (re.search(r"ws://\S+", line) for line in process.stderr)))
        try:
            with connect(f"{found[0]}/session", max_size=None, proxy=None) as socket:
                yield Tab(socket)
        finally:
            process.terminate()
