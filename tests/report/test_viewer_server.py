"""The viewer as a server: whom it answers, and that it takes up what is appended."""

from __future__ import annotations

import json
import threading
import time
from http.client import HTTPConnection
from urllib.parse import urlencode, urlsplit

import pytest
import trace_zoo as zoo

from agentgym.errors import ConfigError, TraceError
from agentgym.report.viewer import rows
from agentgym.report.viewer.server import ViewerServer
from agentgym.report.viewer.shelf import Shelf


@pytest.fixture
def run_folder(tmp_path):
    zoo.write_traces(tmp_path / "run" / "traces.jsonl", zoo.support_run())
    return tmp_path / "run"


@pytest.fixture
def server(run_folder):
    viewer = ViewerServer([run_folder], title="x")
    viewer.shelf.read()
    thread = threading.Thread(target=viewer.serve)
    thread.start()
    yield viewer
    viewer.shutdown()
    thread.join()
    viewer.close()


def ask(server, path, *, host=None, method="GET", **params):
    address = urlsplit(server.url)
    connection = HTTPConnection(address.hostname, address.port, timeout=30)
    headers = {} if host is None else {"Host": host}
    connection.request(method, f"{path}?{urlencode(params)}", headers=headers)
    reply = connection.getresponse()
    return reply, reply.read().decode()


def generation(shelf):
    return shelf.rows(None, 0)["generation"]


def test_page_comes_with_its_policy(server):
    reply, text = ask(server, "/")
    assert reply.status == 200
    assert text.startswith("<!doctype html>")
    assert "data-served" in text
    policy = reply.headers["Content-Security-Policy"]
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert reply.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:1", "[::1]:80"])
def test_this_machine_is_answered_whatever_the_port(server, host):
    assert ask(server, "/", host=host)[0].status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "localhost.evil.example", "10.0.0.1", "", "[::1"]
)
def test_other_hosts_are_refused(server, host):
    for path in ("/", "/api/rows", "/api/episode"):
        reply, text = ask(server, path, host=host)
        assert reply.status == 403
        assert "localhost only" in text


def test_nothing_but_reading(server):
    assert ask(server, "/api/rows", method="POST")[0].status == 501
    assert ask(server, "/etc/passwd")[0].status == 404
    assert ask(server, "/api/rows/../../x")[0].status == 404


def test_rows_then_episode(server):
    reply, text = ask(server, "/api/rows")
    news = json.loads(text)
    assert reply.status == 200
    assert len(news["rows"]) == 13
    row = dict(zip(news["columns"], news["rows"][5], strict=True))
    body = json.loads(ask(server, "/api/episode", generation=news["generation"], row=5)[1])
    assert body["trace"]["trace_id"] == row["id"]
    again = json.loads(ask(server, "/api/rows", generation=news["generation"], after=13)[1])
    assert again["rows"] == []


@pytest.mark.parametrize(
    ("params", "status"),
    [
        ({"row": 99}, 410),
        ({"row": -1}, 410),
        ({"generation": 7, "row": 0}, 410),
        ({"generation": "x", "row": 0}, 400),
        ({"row": "../1"}, 400),
        ({}, 410),
    ],
)
def test_rows_that_arent_there(server, params, status):
    params = {"generation": generation(server.shelf), **params}
    assert ask(server, "/api/episode", **params)[0].status == status


def test_search_goes_through_all(run_folder):
    shelf = Shelf([run_folder])
    shelf.read()
    found = shelf.search(generation(shelf), "ENTITLES", 0)
    assert found == {"rows": [1, 5, 9], "next": 13}
    assert shelf.search(generation(shelf), "nowhere", 0)["rows"] == []


def test_search_goes_on_where_a_file_is_gone(run_folder):
    other = zoo.write_traces(run_folder / "a.jsonl", [zoo.make_trace("gone")])
    shelf = Shelf([run_folder])
    shelf.read()
    other.unlink()
    assert shelf.search(generation(shelf), "ENTITLES", 0) == {"rows": [2, 6, 10], "next": 14}


def test_search_is_cut_into_slices(run_folder, monkeypatch):
    monkeypatch.setattr("agentgym.report.viewer.shelf.SEARCH_SLICE_S", 0.0)
    shelf = Shelf([run_folder])
    shelf.read()
    found, after = [], 0
    while after < 13:
        part = shelf.search(generation(shelf), "entitles", after)
        assert part["next"] == after + 1
        found += part["rows"]
        after = part["next"]
    assert found == [1, 5, 9]


def test_rows_come_in_portions(run_folder, monkeypatch):
    monkeypatch.setattr("agentgym.report.viewer.shelf.ROWS_AT_ONCE", 10)
    shelf = Shelf([run_folder])
    shelf.read()
    first = shelf.rows(None, 0)
    assert (len(first["rows"]), first["more"]) == (10, True)
    second = shelf.rows(first["generation"], 10)
    assert (len(second["rows"]), second["more"]) == (3, False)


def test_appended_episodes_come_and_a_replaced_file_begins_anew(run_folder):
    path = run_folder / "traces.jsonl"
    shelf = Shelf([run_folder])
    shelf.read()
    before = generation(shelf)
    zoo.write_traces(path, [zoo.make_trace("late")])
    shelf.read()
    assert [line[1] for line in shelf.rows(before, 13)["rows"]] == ["late"]
    path.unlink()
    zoo.write_traces(path, [zoo.make_trace("other")])
    shelf.read()
    news = shelf.rows(before, 14)
    assert news["generation"] != before
    assert [line[1] for line in news["rows"]] == ["other"]
    with pytest.raises(TraceError, match="load the page again"):
        shelf.body(before, 0)


def test_page_of_an_earlier_viewer_begins_anew(run_folder):
    """A viewer that is started again, at the same port, may have other files."""
    earlier, later = Shelf([run_folder]), Shelf([run_folder])
    earlier.read()
    later.read()
    assert len(later.rows(generation(earlier), 13)["rows"]) == 13


def test_reading_that_fails_is_told(run_folder, monkeypatch):
    shelf = Shelf([run_folder])
    failed = iter([True])

    def row_of(*args):
        if next(failed, False):
            raise MemoryError("no more")
        return rows.row_of(*args)

    monkeypatch.setattr("agentgym.report.viewer.shelf.row_of", row_of)
    shelf.start()
    try:
        until = time.monotonic() + 30
        while (news := shelf.rows(None, 0))["reading"] and time.monotonic() < until:
            time.sleep(0.01)
        assert news["notes"] == ["the reading stumbled: MemoryError: no more"]
    finally:
        shelf.close()


def test_empty_file_may_get_episodes_but_an_empty_folder_wont(tmp_path):
    with pytest.raises(TraceError, match=r"there is no \*\.jsonl file"):
        Shelf([tmp_path])
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(TraceError, match="metrics.jsonl is no trace file"):
        Shelf([tmp_path])
    (tmp_path / "traces.jsonl").touch()
    shelf = Shelf([tmp_path])
    shelf.read()
    assert shelf.rows(None, 0)["rows"] == []


def test_port_that_cant_be_had(server, run_folder):
    port = urlsplit(server.url).port
    with pytest.raises(ConfigError, match=f"can't listen on port {port}: .*--port"):
        ViewerServer([run_folder], port=port, title="x")
    with pytest.raises(ConfigError, match="can't listen on port 99999"):
        ViewerServer([run_folder], port=99999, title="x")
