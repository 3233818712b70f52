"""Guards the doors of the chat: who is answered, who owns what, how much may come. Spoken to without a browser."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.ui.browser import served
from tests.ui.page.visitor import API, Visitor
from tests.ui.workspaces import scripted_workspace
from ui.session.services import GuestRules
from ui.session.workspace import Workspace

NAMES = "Names of artists?"
SCRIPT = {NAMES: "SELECT name FROM artists ORDER BY name"}
RULES = GuestRules(upload_mb=1, urls=False, models=False)
USERS = (("ada", "secret"), ("bo", "hidden"))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return scripted_workspace(tmp_path_factory.mktemp("doors"), SCRIPT, rules=RULES)


@pytest.fixture(scope="module")
def address(workspace: Workspace) -> Iterator[str]:
    with served(workspace, token="the-token") as where:
        yield where


@pytest.fixture(scope="module")
def ada(address: str) -> Visitor:
    visitor = Visitor(address)
    assert visitor.load()["success"]
    return visitor


@pytest.fixture(scope="module")
def bo(address: str) -> Visitor:
    visitor = Visitor(address)
    visitor.load()
    return visitor


def test_the_token_opens_and_then_leaves_the_address(address: str) -> None:
    plain = address.partition("?")[0]
    assert httpx.get(plain).status_code == 401
    assert httpx.get(f"{plain}?token=guess").status_code == 401
    assert httpx.get(f"{plain}config").status_code == 401
    left_open = httpx.post(f"{plain}gradio_api/queue/join", json={})  # by a page of an earlier start, which reads JSON
    assert left_open.status_code == 401 and "Open the address in its terminal" in left_open.json()["error"]
    visitor = Visitor(address)
    assert visitor.came.status_code == 200 and "token" not in str(visitor.came.url)
    assert visitor.http.get("/config").status_code == 200


def test_the_cookies_cannot_be_read_by_scripts_nor_sent_by_other_sites(address: str) -> None:
    cookies = [*Visitor(address).came.history[0].headers.get_list("set-cookie")]
    assert cookies and all("HttpOnly" in cookie and "SameSite=lax" in cookie for cookie in cookies)
    assert not any("the-token" in cookie for cookie in cookies)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7860", "127.0.0.1.evil.example", "", "a b"])
def test_a_foreign_host_is_not_answered(address: str, host: str) -> None:
    assert Visitor(address, host=host).came.status_code == 400


def test_localhost_is_this_machine_too(address: str) -> None:
    port = urlsplit(address).port
    assert Visitor(address, host=f"localhost:{port}").came.status_code == 200
    assert Visitor(address, host=f"[::1]:{port}").came.status_code == 200


def test_a_name_that_was_allowed_is_answered(tmp_path: Path) -> None:
    with served(scripted_workspace(tmp_path, SCRIPT), token="t", hosts=["chat.example"]) as address:
        assert Visitor(address, host="chat.example").came.status_code == 200
        assert Visitor(address, host="other.example").came.status_code == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://["},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
    ],
)
def test_pages_of_other_origins_are_refused(ada: Visitor, headers: dict[str, str]) -> None:
    assert ada.http.get("/config", headers=headers).status_code == 403
    assert ada.upload(b"a\n1\n", **headers).status_code == 403
    assert ada.http.options(f"{API}/upload", headers=headers).status_code == 403


def test_the_pages_own_requests_and_links_are_answered(ada: Visitor) -> None:
    own = {"origin": str(ada.http.base_url).rstrip("/"), "sec-fetch-site": "same-origin"}
    assert ada.http.get("/config", headers=own).status_code == 200
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert ada.http.get("/", headers=link).status_code == 200


def test_every_answer_says_what_a_browser_must_not_do(ada: Visitor) -> None:
    for path in ("/", "/config", "/nothing", "/theme.css"):
        headers = ada.http.get(path).headers
        assert headers["x-frame-options"] == "DENY" and headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", f"{API}/run/load"), ("POST", f"{API}/api/load"), ("POST", f"{API}/call/load"), ("GET", f"{API}/token"),
        ("POST", f"{API}/component_server"), ("GET", f"{API}/proxy=https://example.com"), ("POST", f"{API}/cancel"),
        ("GET", f"{API}/file=https://example.com/"), ("GET", "/monitoring"), ("POST", f"{API}/vibe-edit"),
        ("POST", f"{API}/stream/x"), ("GET", f"{API}/dev/reload"), ("GET", f"{API}/openapi.json"), ("PUT", "/"),
    ],
)  # fmt: skip
def test_routes_that_the_page_does_not_need_are_not_there(ada: Visitor, method: str, path: str) -> None:
    assert ada.http.request(method, path, json={}).status_code == 404


def test_a_handler_that_queues_is_not_run_past_the_queue(ada: Visitor) -> None:
    body = {"data": [], "fn_index": ada.handler("new", "click"), "session_hash": ada.session}
    assert ada.http.post(f"{API}/run/predict", json=body).status_code >= 400


def test_anothers_session_cannot_be_used_by_its_name(ada: Visitor, bo: Visitor) -> None:
    assert bo.post("share", "click", session=ada.session).status_code == 403
    stop = {"data": [], "fn_index": bo.handler("question", "stop"), "session_hash": ada.session}
    assert bo.http.post(f"{API}/run/predict", json=stop).status_code == 403
    assert bo.http.get(f"{API}/queue/data", params={"session_hash": ada.session}).status_code == 403
    assert bo.http.get(f"{API}/heartbeat/{ada.session}").status_code == 403
    assert (
        bo.http.get(f"{API}/upload_progress", params={"upload_id": "x", "session_hash": ada.session}).status_code == 403
    )


def test_an_event_without_a_session_or_without_sense_is_refused(ada: Visitor) -> None:
    for body in (b"", b"{", b"[]", b'{"data": []}', b'{"session_hash": ["x"]}', b"[" * 100_000):
        assert ada.http.post(f"{API}/queue/join", content=body).status_code == 400


def test_an_event_that_the_page_does_not_have_is_refused(ada: Visitor) -> None:
    for number in (99999, -1, "0", True, None):
        body = {"data": [], "fn_index": number, "session_hash": ada.session}
        assert ada.http.post(f"{API}/queue/join", json=body).status_code == 400
    assert ada.http.get("/static/" + "a" * 5000).status_code == 414


def test_what_a_page_says_of_a_click_may_be_anything(ada: Visitor) -> None:
    ada.load()
    for element, event in (("chat", "select"), ("chat", "example_select"), ("bridge", "click")):
        for said in (
            None,
            3,
            "x",
            [],
            {},
            {"index": "x"},
            {"index": []},
            {"index": [[0]], "value": {"text": ["x"]}},
            {"value": 3},
        ):
            ended = ada.event(element, event, said=said)
            assert ended["success"], (element, said, ended)


def test_another_name_of_the_host_is_not_believed(ada: Visitor) -> None:
    config = ada.http.get("/config", headers={"x-forwarded-host": "evil.example"})
    assert config.status_code == 200 and "evil.example" not in config.text


def test_streams_of_one_guest_are_bounded(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ui.http.entrance.STREAMS", 2)
    guest, other = Visitor(address), Visitor(address)
    assert guest.http.get(f"{API}/queue/data", params={"session_hash": "unknown"}).status_code == 404
    with guest.http.stream("GET", f"{API}/heartbeat/a1") as first, guest.http.stream("GET", f"{API}/heartbeat/a2"):
        assert first.status_code == 200
        assert guest.http.get(f"{API}/heartbeat/a3").status_code == 429
        with other.http.stream("GET", f"{API}/heartbeat/b1") as answer:
            assert answer.status_code == 200


def test_who_has_no_cookie_has_no_session(address: str, ada: Visitor) -> None:
    keys = {name: value for name, value in ada.http.cookies.items() if "visitor" not in name}
    answer = httpx.get(f"{ada.http.base_url}{API}/queue/data?session_hash={ada.session}", cookies=keys)
    assert answer.status_code == 401


def test_an_export_is_its_owners_alone(ada: Visitor, bo: Visitor) -> None:
    sql = SCRIPT[NAMES]
    done = ada.event("export", "click", sql, "csv")
    path = done["output"]["data"][0]["value"]["path"]
    own = ada.file(path)
    assert own.text.split() == ["name", "Ada", "Bo", "Home"]
    assert own.headers["content-disposition"].startswith("attachment") and own.headers["cache-control"] == "no-store"
    assert bo.file(path).status_code == 404
    assert ada.file("/etc/passwd").status_code == 404
    assert ada.file(Path(path).parents[1] / ".." / ".." / "x").status_code == 404


def test_an_upload_is_its_owners_alone(ada: Visitor, bo: Visitor) -> None:
    (path,) = ada.upload(b"shop_id\n1\n2\n", name="shops.csv").json()
    stolen = bo.event("files", "upload", [{"path": path, "meta": {"_type": "gradio.FileData"}}])
    assert "not uploaded here" in stolen["told"][0] and "shops" not in json.dumps(stolen["output"])
    assert not bo.event("replay", "upload", {"path": path, "meta": {"_type": "gradio.FileData"}})["success"]
    assert ada.file(path).status_code == 404  # to be opened, not to be handed out
    done = ada.event("files", "upload", [{"path": path, "meta": {"_type": "gradio.FileData"}}])
    assert done["success"] and "shops" in json.dumps(done["output"])
    assert not Path(path).exists()
    outside = ada.event("files", "upload", [{"path": "/etc/hosts", "meta": {"_type": "gradio.FileData"}}])
    assert not outside["success"]


def test_uploads_are_counted_together(address: str, workspace: Workspace) -> None:
    visitor, half = Visitor(address), b"x" * 600_000
    assert visitor.upload(half).status_code == 403  # no page was loaded
    visitor.load()
    assert visitor.upload(half).status_code == 200
    assert visitor.upload(half).status_code == 413
    assert visitor.upload(half, half).status_code == 413
    assert visitor.upload(b"x" * 300_000).status_code == 200
    workspace.leave(visitor.session)
    again = Visitor(address)
    again.http.cookies.update(visitor.http.cookies)
    again.load()
    assert again.upload(half).status_code == 200


def test_an_upload_says_how_long_it_is(ada: Visitor) -> None:
    def parts() -> Iterator[bytes]:
        yield b"--x\r\n"

    headers = {"content-type": "multipart/form-data; boundary=x"}
    assert ada.http.post(f"{API}/upload", content=parts(), headers=headers).status_code == 411


def test_an_upload_without_files_changes_nothing(ada: Visitor) -> None:
    headers = {"content-type": "multipart/form-data; boundary=x"}
    assert ada.http.post(f"{API}/upload", content=b"nonsense", headers=headers).status_code == 400


def test_what_the_server_does_not_allow_is_refused_where_it_is_done(ada: Visitor, tmp_path: Path) -> None:
    opened = ada.event("url", "submit", f"sqlite:///{tmp_path}/x.sqlite")
    assert "this server opens no database URLs" in json.dumps(opened["output"])
    settings = ["/tmp", "plain", "", 0, 1, 1, 100, 5, False, True, False]
    assert ada.event("model", "change", *settings)["success"]
    ada.event("question", "submit", NAMES)
    done = ada.event("new", "click")
    assert done["success"]


def test_a_long_event_is_refused(ada: Visitor) -> None:
    assert ada.post("run", "click", "x" * (5 << 20), 0).status_code == 413


def test_events_that_come_too_often_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ui.http.entrance.EVENTS_A_MINUTE", 5)
    with served(scripted_workspace(tmp_path, SCRIPT)) as address:
        visitor, other = Visitor(address), Visitor(address)
        assert [visitor.http.post(f"{API}/queue/join").status_code for _ in range(7)] == [400] * 5 + [429] * 2
        assert other.http.post(f"{API}/queue/join").status_code == 400


def test_a_slow_request_is_ended(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ui.page.serve.EVENT_DEADLINE_S", 0.5)
    with served(scripted_workspace(tmp_path, SCRIPT)) as slow:
        where = urlsplit(slow)
        with closing(socket.create_connection((where.hostname, where.port), timeout=10)) as line:
            head = f"POST {API}/queue/join HTTP/1.1\r\nHost: {where.netloc}\r\ncontent-length: 100\r\n\r\n"
            start = time.monotonic()
            line.sendall(head.encode() + b"{")
            assert b" 401 " in line.recv(100)  # without the token nothing is waited for
        visitor = Visitor(slow)
        cookies = "; ".join(f"{name}={value}" for name, value in visitor.http.cookies.items())
        with closing(socket.create_connection((where.hostname, where.port), timeout=10)) as line:
            head = f"POST {API}/queue/join HTTP/1.1\r\nHost: {where.netloc}\r\ncookie: {cookies}\r\ncontent-length: 100\r\n\r\n"
            start = time.monotonic()
            line.sendall(head.encode() + b"{")
            assert b" 408 " in line.recv(100)
        assert time.monotonic() - start < 5


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(scripted_workspace(tmp_path_factory.mktemp("named"), SCRIPT), users=USERS, token=None) as where:
        yield where


def signed_in(address: str, name: str, password: str) -> Visitor:
    visitor = Visitor(address)
    visitor.http.post("/login", data={"username": name, "password": password}).raise_for_status()
    return visitor


def test_who_signed_in_owns_a_session_and_no_other(named: str) -> None:
    ada, bo = signed_in(named, *USERS[0]), signed_in(named, *USERS[1])
    assert ada.load()["success"]
    assert bo.post("share", "click", session=ada.session).status_code == 403
    stranger = Visitor(named)
    assert stranger.http.get("/config").status_code == 401
    assert stranger.http.get(f"{API}/queue/data", params={"session_hash": ada.session}).status_code == 401
    assert stranger.upload(b"a\n1\n").status_code == 401
    assert stranger.http.get(f"{API}/heartbeat/{ada.session}").status_code == 401


def test_a_wrong_password_opens_nothing(named: str) -> None:
    visitor = Visitor(named)
    for name, password in (("ada", "guess"), ("ada", ""), ("eve", ""), ("", "secret")):
        assert visitor.http.post("/login", data={"username": name, "password": password}).status_code in (400, 422)
        assert visitor.http.get("/config").status_code == 401


def test_wrong_passwords_are_slowed(named: str) -> None:
    visitor = Visitor(named)
    for _ in range(5):
        assert visitor.http.post("/login", data={"username": "bo", "password": "guess"}).status_code == 400
    assert visitor.http.post("/login", data={"username": "bo", "password": "hidden"}).status_code == 429
    assert visitor.http.post("/login", data={"username": "ada", "password": "secret"}).status_code == 200
