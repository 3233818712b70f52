"""A visitor of the chat who speaks to the server without a browser, as an attacker would: cookies, events, files."""

import json
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.ui.browser import PATIENCE_S

API = "/gradio_api"


class Visitor:
    """Comes in by `address` with the token in it; `session` is the name that its page gives itself."""

    def __init__(self, address: str, session: str | None = None, **headers: str) -> None:
        self.session = session or token_hex(8)
        self.http = httpx.Client(base_url=f"http://{urlsplit(address).netloc}", headers=headers, timeout=PATIENCE_S)
        self.came = self.http.get(f"/?{urlsplit(address).query}", follow_redirects=True)

    def config(self) -> Any:
        return self.http.get("/config").json()

    def handler(self, element: str, event: str) -> int:
        """The number of the handler of a component's event; the page itself is the element "page"."""
        config = self.config()
        ids = {part["id"] for part in config["components"] if part["props"].get("elem_id") == element}
        for each in config["dependencies"]:
            if any((target in ids or element == "page") and name == event for target, name in each["targets"]):
                return int(each["id"])
        raise LookupError(f"nothing happens on {event} of {element}")

    def post(
        self, element: str, event: str, *data: Any, session: str | None = None, said: Any = None
    ) -> httpx.Response:
        """Join the queue with an event, of which the page says `said`."""
        body = {"data": data, "fn_index": self.handler(element, event), "session_hash": session or self.session}
        body |= {"event_data": said}
        return self.http.post(f"{API}/queue/join", json=body)

    def event(self, element: str, event: str, *data: Any, said: Any = None) -> dict[str, Any]:
        """The message with which an event ends; "told": the sentences that popped up before."""
        self.post(element, event, *data, said=said).raise_for_status()
        told = []
        with self.http.stream("GET", f"{API}/queue/data", params={"session_hash": self.session}) as stream:
            for line in stream.iter_lines():
                message = json.loads(line[6:]) if line.startswith("data:") else {}
                if message.get("msg") == "log":
                    told.append(message["log"])
                if message.get("msg") == "process_completed":
                    return {**message, "told": told}
        raise AssertionError("the event never ended")

    def load(self) -> dict[str, Any]:
        """What a page does first."""
        return self.event("page", "load", "")

    def upload(self, *contents: bytes, name: str = "a.csv", **headers: str) -> httpx.Response:
        files = [("files", (name, content)) for content in contents]
        return self.http.post(f"{API}/upload", files=files, headers=headers)

    def file(self, path: str | Path) -> httpx.Response:
        return self.http.get(f"{API}/file={path}")
