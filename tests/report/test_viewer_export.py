"""The viewer as one file: everything in it, deflated, and nothing that could run or load."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re
import zlib

import pytest
import trace_zoo as zoo

from agentgym.errors import TraceError
from agentgym.report.viewer import export, pages
from agentgym.report.viewer.export import write_page


class Elements(html.parser.HTMLParser):
    """A page's tags with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def inflated(text: str, name: str):
    data = re.search(f'id="{name}">([^<]*)<', text)[1]
    return json.loads(zlib.decompress(base64.b64decode(data)))


def test_page_has_the_index_and_every_episode(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "BLOCK_CHARS", 6_000)
    path = zoo.write_traces(tmp_path / "traces.jsonl", zoo.support_run())
    out = tmp_path / "new" / "x.html"
    written = write_page([path], out, title="a <b>")
    text = out.read_text(encoding="utf-8")
    assert written == (13, len(out.read_bytes()), ())
    assert "<title>a &lt;b&gt;</title>" in text
    index = inflated(text, "index")
    assert len(index["rows"]) == 13
    for line in index["rows"]:
        row = dict(zip(index["columns"], line, strict=True))
        body = inflated(text, f"block-{row['block']}")[row["place"]]
        assert body["trace"]["trace_id"] == row["id"]
    assert row["block"] > 3, "several blocks"


def test_hostile_text_is_nowhere_in_the_file(tmp_path):
    path = zoo.write_traces(tmp_path / "t.jsonl", [zoo.hostile_traces()[0]])
    out = tmp_path / "x.html"
    write_page([path], out, title=f"{zoo.EVIL}\x1b")
    text = out.read_text(encoding="utf-8")
    assert "onerror" not in text.replace("onerror=alert(2)&gt;", "")
    assert "attacker" not in text
    tags = [tag for tag, _ in Elements(text).tags]
    assert tags.count("script") == 3, "the page's own, one block, the index"
    assert not {"img", "iframe", "object", "embed", "form"} & set(tags)


def test_policy_allows_the_pages_own_script_and_style_only(tmp_path):
    path = zoo.write_traces(tmp_path / "t.jsonl", [zoo.make_trace("a")])
    write_page([path], tmp_path / "x.html", title="x")
    page = (tmp_path / "x.html").read_text(encoding="utf-8")
    found = Elements(page)
    policy = next(a["content"] for _, a in found.tags if "http-equiv" in a)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["connect-src"] == "'none'"
    for rule, tag in (("style-src", "style"), ("script-src", "script")):
        text = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    addresses = [value for _, a in found.tags for key, value in a.items() if key in ("src", "href")]
    assert addresses == ["data:,"]


def test_scripts_make_no_markup_of_text():
    script = pages.script()
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        uses = [line for line in script.splitlines() if forbidden in line and "//" not in line]
        assert uses == []
    assert "</script" not in script


def test_every_script_and_style_is_in_the_page():
    folder = pages.files("agentgym.report.viewer").joinpath("assets")
    names = {file.name for file in folder.iterdir()}
    assert names == {*pages.SCRIPTS, "viewer.css"}


def test_nothing_to_show_leaves_nothing_behind(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    out = tmp_path / "x.html"
    with pytest.raises(TraceError, match=r"there is no \*\.jsonl file"):
        write_page([folder], out, title="x")
    (folder / "traces.jsonl").touch()
    out.write_text("<!doctype html>the page before")
    with pytest.raises(TraceError, match="no episode has finished yet"):
        write_page([folder], out, title="x")
    assert out.read_text() == "<!doctype html>the page before"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "x.html"]


def test_page_that_cant_be_written(tmp_path):
    path = zoo.write_traces(tmp_path / "t.jsonl", [zoo.make_trace("a")])
    with pytest.raises(TraceError, match="can't write"):
        write_page([path], path / "x.html", title="x")


def test_notes_are_in_the_page(tmp_path):
    path = zoo.write_traces(tmp_path / "t.jsonl", [zoo.make_trace("a")])
    path.write_text(path.read_text() + '{"torn')
    written = write_page([path], tmp_path / "x.html", title="x")
    assert written.notes == ("t.jsonl, line 2 is left out: torn: no JSON",)
    text = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert inflated(text, "index")["notes"] == list(written.notes)


def test_page_takes_the_place_of_a_page_and_of_nothing_else(tmp_path):
    path = zoo.write_traces(tmp_path / "t.jsonl", [zoo.make_trace("a")])
    before = path.read_bytes()
    with pytest.raises(TraceError, match="is there and no HTML page"):
        write_page([path], path, title="x")
    assert path.read_bytes() == before
    out = tmp_path / "x.html"
    out.touch()
    for _ in range(2):
        assert write_page([path], out, title="x").episodes == 1
