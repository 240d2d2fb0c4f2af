"""The trace viewer in a real Chromium, with what is legal and odd: names, windows, paper."""

from __future__ import annotations

import pytest
import trace_zoo as zoo

from agentgym.report.viewer.export import write_page
from agentgym.types import Verdict

pytestmark = pytest.mark.e2e

QUOTED_GATE = 'says "hi" \\ there'
ASKED = {"id": "c", "type": "function", "function": {"name": "find_order", "arguments": "[99]"}}
EXAMPLE = (
    {"role": "user", "content": "an example"},
    {"role": "assistant", "content": None, "tool_calls": [ASKED]},
    {"role": "tool", "tool_call_id": "c", "content": "found"},
)


def odd_traces():
    """Names that are JavaScript's own, one conversation judged twice, a late difference."""
    names = Verdict(
        reward=0.5,
        correct=False,
        components={"constructor": 0.5, "exact-match": 0.7, "my score": 0.2},
        gates={"toString": False, QUOTED_GATE: True},
    )
    plain = Verdict(reward=0.4, correct=None)
    same = "the same again " * 1000
    judged = {"task_id": "judged", "turns": [zoo.text_turn(0, "one conversation")]}
    return [
        zoo.make_trace("a", turns=[zoo.text_turn(0, same + "LEFT")], group="g", verdict=names),
        zoo.make_trace(
            "b", turns=[zoo.text_turn(0, same + "RIGHT")], group="g", sample=1, verdict=plain
        ),
        zoo.make_trace("twice", verdict=Verdict(reward=0.1, reason="at first"), **judged),
        zoo.make_trace("twice", verdict=Verdict(reward=0.9, reason="in the end"), **judged),
        zoo.make_trace(
            "long",
            task_id="long",
            opening=EXAMPLE,
            turns=[zoo.text_turn(k, "a line\n" * 50) for k in range(20)],
        ),
    ]


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    path = zoo.write_traces(folder / "traces.jsonl", odd_traces())
    write_page([path], folder / "odd.html", title="odd")
    return folder / "odd.html"


def go(page, link):
    page.evaluate("link => { location.hash = link; }", link)


def until(page, condition):
    """Wait for what is so in a moment; Playwright's own way is `eval`, which the page refuses."""
    look = f"() => {{ ({condition}) ? done() : requestAnimationFrame(look); }}"
    wait = f"setTimeout(() => fail(Error('not so in 30 s')), 30000); const look = {look}; look();"
    page.evaluate(f"() => new Promise((done, fail) => {{ {wait} }})")


def test_any_name_will_do(open_page, odd):
    visit = open_page(odd)
    page = visit.page
    told = page.locator(".count")
    page.get_by_text("4 episodes · 1 solved · 2 of which nobody can tell · 1 superseded").wait_for()
    for query in ('"my score">0.1', "exact-match>=0.7", "constructor=0.5", "is:unsolved"):
        page.get_by_label("filter").fill(query)
        assert page.locator(".hint").inner_text() == ""
        assert told.inner_text().startswith("1 of 4 episodes"), query
    page.get_by_label("filter").fill("is:constructor toString>1")
    hint = page.locator(".hint").inner_text()
    assert "is: takes solved" in hint
    assert "nothing is called toString" in hint
    page.get_by_label("filter").fill("")
    page.get_by_label("gate", exact=True).select_option(QUOTED_GATE)
    page.get_by_text("1 of 4 episodes").wait_for()
    assert page.get_by_label("gate", exact=True).input_value() == QUOTED_GATE
    for link in ("view=list&sort=constructor", "view=toString"):
        go(page, link)
        page.get_by_text("4 episodes ·").wait_for()
    go(page, "view=compare&a=a&b=b")
    page.get_by_text("first difference").wait_for()
    summary = page.locator(".summary").first.inner_text()
    assert "native code" not in summary
    assert "gate toString\tnot tripped\t–" in summary
    visit.assert_harmless()


def test_conversation_that_was_judged_twice_has_two_links(open_page, odd):
    page = open_page(odd, fragment="#view=list&q=task:judged&sort=reward").page
    page.locator(".row.superseded").click()
    page.get_by_text("at first").wait_for()
    assert "judged=1" in page.url
    page.keyboard.press("n")
    page.get_by_text("in the end").wait_for()
    assert page.url.endswith("id=twice"), "the link without more is to the verdict that counts"
    page.get_by_role("link", name="compare").click()
    page.get_by_text("The two conversations are identical").wait_for()
    assert "0.9\t0.1" in page.locator(".summary").first.inner_text()


def test_late_difference_is_in_sight(open_page, odd):
    page = open_page(odd, fragment="#view=compare&a=a&b=b").page
    page.get_by_text("first difference").wait_for()
    assert page.locator("mark").all_inner_texts() == ["LEF", "RIGH"]
    before = page.get_by_role("button", name="show what comes before: 14,700 characters")
    assert before.count() == 2
    before.first.click()
    assert page.locator("pre.text").first.evaluate("node => node.textContent.length") == 15_004


def at_rest(page, position):
    """A scroll position, once the scrolling is over; the browser glides."""
    places = [page.evaluate(position)]
    while len(places) < 100 and places[-4:] != places[-1:] * 4:
        page.wait_for_timeout(50)
        places.append(page.evaluate(position))
    return places[-1]


def test_episode_scrolls_by_keys_and_stays_where_it_is_when_marked(open_page, odd):
    page = open_page(odd, fragment="#view=episode&id=long").page
    page.get_by_role("heading", name="Verdict").wait_for()
    assert "find_order\n[99]" in page.locator("#opening").inner_text()
    top = "document.querySelector('main.episode').scrollTop"
    page.keyboard.press("PageDown")
    until(page, f"{top} > 300")
    page.keyboard.press("G")
    place = at_rest(page, top)
    page.keyboard.press("x")
    page.get_by_role("button", name="marked").wait_for()
    assert at_rest(page, top) == place
    page.keyboard.press("p")
    page.get_by_text("in the end").wait_for()


def test_all_columns_can_be_reached_in_a_narrow_window(open_page, odd):
    page = open_page(odd, viewport={"width": 420, "height": 500}).page
    page.get_by_text("4 episodes").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 420
    page.locator(".scroller").hover()
    page.mouse.wheel(2000, 0)
    until(page, "document.querySelector('.scroller').scrollLeft > 300")
    right = page.locator(".head > :last-child").bounding_box()
    assert right["x"] + right["width"] <= 420


def test_paper_has_all_of_it(open_page, odd):
    visit = open_page(odd, fragment="#view=episode&id=long", dark=True)
    page = visit.page
    page.get_by_role("heading", name="Verdict").wait_for()
    assert page.pdf().count(b"/Type /Page\n") > 10
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    visit.assert_harmless()


def test_files_are_told_apart_in_little_room(open_page, tmp_path):
    for name in ("traces/oracle-3b13d97be78922f4", "traces/random-3b13d97be78922f4"):
        zoo.write_traces(tmp_path / f"{name}.jsonl", [zoo.make_trace(name)])
    write_page([tmp_path], tmp_path / "x.html", title="x")
    page = open_page(tmp_path / "x.html").page
    page.get_by_text("2 episodes").wait_for()
    shown = page.locator(".space [title$='22f4.jsonl']").all_inner_texts()
    assert [name.split("-")[0] for name in shown] == ["oracle", "random"]
