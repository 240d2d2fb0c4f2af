"""The trace viewer in a real Chromium: list, episode, side by side, keys, and hostile traces."""

from __future__ import annotations

import threading

import pytest
import trace_zoo as zoo
from made_results import attempt, column, result

from agentgym.evaluate import write_result
from agentgym.report.viewer.export import write_page
from agentgym.report.viewer.server import ViewerServer

pytestmark = pytest.mark.e2e

SOLVED = "00" + "ab12cd34" * 3
WRONG = "01" + "ab12cd34" * 3


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The zoo's runs as pages on disk, by name."""
    folder = tmp_path_factory.mktemp("pages")
    made = {"run": zoo.support_run(), "hostile": zoo.hostile_traces()}
    for name, traces in made.items():
        path = zoo.write_traces(folder / name / "traces.jsonl", traces)
        write_page([path], folder / f"{name}.html", title=f"runs/{name}")
    return {name: folder / f"{name}.html" for name in made}


def rows(page):
    return page.locator(".space .row")


def test_list_shows_filters_and_sorts(open_page, pages):
    visit = open_page(pages["run"])
    page = visit.page
    page.get_by_text("12 episodes · 3 solved · 3 without a score · 1 superseded").wait_for()
    assert page.title() == "runs/run"
    visit.screenshot("viewer-list", height=480)
    page.get_by_label("filter").fill("reward<0.5 -gate:truncated")
    page.get_by_text("3 of 12 episodes").wait_for()
    assert rows(page).count() == 3
    assert {"✗ wrong"} == set(page.locator(".space .outcome").all_inner_texts())
    page.get_by_label("filter").fill("")
    page.locator("[data-sort=reward]").click()
    assert page.locator("[data-sort=reward]").get_attribute("aria-sort") == "descending"
    assert rows(page).first.locator("[role=gridcell]").nth(1).inner_text() == "1"
    page.locator("[data-sort=reward]").click()
    assert rows(page).first.locator("[role=gridcell]").nth(1).inner_text() == "-0.5"
    last = rows(page).last.locator("[role=gridcell]").nth(1).inner_text()
    assert last == "–", "what has no score comes last, whichever way"
    page.get_by_label("gate", exact=True).select_option("malformed_call")
    page.get_by_text("3 of 12 episodes").wait_for()
    assert page.get_by_label("filter").input_value() == "gate=malformed_call"
    assert "q=gate%3Dmalformed_call" in page.url
    visit.assert_harmless()


NONSENSE = {
    "reward>much": "reward takes a number",
    "is:nonsense": "is: takes solved",
    "colour>3": "nothing is called colour",
    "env>3": "env takes : or =",
}


def test_filter_that_makes_no_sense_is_said(open_page, pages):
    page = open_page(pages["run"]).page
    for query, complaint in NONSENSE.items():
        page.get_by_label("filter").fill(query)
        page.locator(".hint", has_text=f"{query}: {complaint}").wait_for()


FOUND = {
    "kettle": 4,
    "kettle is:solved": 1,
    "is:masked": 3,
    "-is:masked -is:superseded": 9,
    "grounded>=0.5": 4,
    "turns=3": 3,
    "task=desk/refund/1 sample<2": 2,
    "class:judge": 3,
    "ended:turns": 3,
    '"broken. I want"': 4,
    "cost>0.008": 3,
    "is:repeated": 1,
    "is:superseded": 1,
    "class=none": 10,
    "http://nothing": 0,
}


def test_filter_finds(open_page, pages):
    page = open_page(pages["run"]).page
    page.get_by_text("12 episodes").wait_for()
    found = {}
    for query in FOUND:
        page.get_by_label("filter").fill(query)
        assert page.locator(".hint").inner_text() == ""
        found[query] = rows(page).count()
    assert found == FOUND


def test_search_in_conversations(open_page, pages):
    page = open_page(pages["run"]).page
    page.get_by_text("12 episodes").wait_for()
    page.keyboard.press("t")
    page.keyboard.type("ENTITLES you")
    page.get_by_text("3 of 12 episodes").wait_for()
    assert rows(page).count() == 3
    page.keyboard.press("Escape")
    page.get_by_text("12 episodes").wait_for()


def test_episode_page_has_all_there_is(open_page, pages):
    visit = open_page(pages["run"], fragment=f"#view=episode&id={WRONG}")
    page = visit.page
    page.get_by_role("heading", name="desk/refund/0").wait_for()
    text = page.locator("main.episode").inner_text()
    for part in (
        "Opening",
        "My kettle arrived broken",
        "Turn 1",
        "900 in (0 % cached)",
        "1,200 in (71 % cached)",
        "policy 0.8 s",
        "find_order",
        '"order": 4711',
        "tool: find_order",
        "error: order takes a number",
        "I can't find anything",
        "grounded",
        "0.15",
        "tripped",
        "manner: friendly, and to the point",
        "its group: 4 rollouts",
        "$0.0042",
        "trace id",
    ):
        assert part in text, part
    visit.screenshot("viewer-episode")
    page.get_by_text("reasoning: 66 characters").click()
    page.get_by_text("The policy allows it.").wait_for()
    page.get_by_text("tools (1)").click()
    page.get_by_text('"name": "find_order"').wait_for()
    page.get_by_text("turn by turn").click()
    page.get_by_role("link", name="sample 2").click()
    page.get_by_text("Let me see … one moment").first.wait_for()
    visit.assert_harmless()


def test_masked_repeated_and_superseded_attempts_say_so(open_page, pages):
    page = open_page(pages["run"], fragment="#view=list&q=is:masked").page
    page.get_by_text("3 of 12 episodes").wait_for()
    page.keyboard.press("Enter")
    page.get_by_text("masked", exact=True).wait_for()
    assert "no verdict in the reply" in page.locator("aside").inner_text()
    assert "no reward" in page.locator("aside").inner_text()
    again = "again" + "20" + "ab12cd34" * 3
    page.evaluate("link => { location.hash = link; }", f"view=episode&id={again}")
    page.get_by_text("1. infra, in run").click()
    page.get_by_text("EndpointError: 503").wait_for()
    page.evaluate("link => { location.hash = link; }", "view=list&q=is:superseded")
    rows(page).first.click()
    page.get_by_text("superseded by a later attempt").wait_for()


def test_two_side_by_side_from_the_first_difference(open_page, pages):
    visit = open_page(pages["run"], fragment=f"#view=compare&a={SOLVED}&b={WRONG}")
    page = visit.page
    page.get_by_text("first difference: turn 2").wait_for()
    assert page.locator(".pair").count() == 2, "turns 2 and 3; what is the same is folded"
    assert "over by then" in page.locator(".side.nothing").inner_text()
    marked = page.locator("mark").all_inner_texts()
    assert any("the order qualifies" in text for text in marked)
    visit.screenshot("viewer-compare", height=680)
    page.get_by_text("the same in both: the opening and 1 turn").click()
    page.get_by_text("My kettle arrived broken").first.wait_for()
    page.get_by_role("button", name="swap").click()
    page.get_by_role("link", name="A: sample 1").wait_for()
    visit.assert_harmless()


def test_keyboard_alone_suffices(open_page, pages):
    page = open_page(pages["run"]).page
    page.get_by_text("12 episodes").wait_for()
    selected = page.locator(".row.selected")
    page.keyboard.press("j")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("k")
    assert selected.get_attribute("data-id") == WRONG
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="desk/refund/0").wait_for()
    page.locator("#turn-0").wait_for()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.locator("#turn-1.current").wait_for()
    assert page.url.endswith("turn=2")
    page.keyboard.press("x")
    page.get_by_text("marked:").wait_for()
    page.keyboard.press("n")
    page.get_by_text("truncated: turns").wait_for()
    page.keyboard.press("c")
    page.get_by_text("first difference").wait_for()
    page.keyboard.press("Escape")
    page.get_by_text("12 episodes").wait_for()
    page.keyboard.press("G")
    assert selected.get_attribute("data-id").startswith("again")
    page.keyboard.press("g")
    assert selected.get_attribute("data-id") == SOLVED
    page.keyboard.press("/")
    page.keyboard.type("parcel")
    page.get_by_text("4 of 12 episodes").wait_for()
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    page.get_by_text("12 episodes").wait_for()
    page.keyboard.press("?")
    page.get_by_role("dialog", name="help").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog", name="help").wait_for(state="hidden")


def test_link_leads_to_a_turn_and_back_leads_to_the_list(open_page, pages):
    page = open_page(pages["run"], fragment="#view=list&q=is:solved&sort=-cost").page
    page.get_by_text("3 of 12 episodes").wait_for()
    assert rows(page).count() == 4, "the superseded one is shown, too"
    rows(page).nth(1).click()
    page.get_by_role("heading", name="Verdict").wait_for()
    page.go_back()
    page.get_by_text("3 of 12 episodes").wait_for()
    page = open_page(pages["run"], fragment=f"#view=episode&id={WRONG}&turn=3").page
    page.locator("#turn-2.current").wait_for()
    page = open_page(pages["run"], fragment="#view=episode&id=nobody").page
    page.get_by_text("No episode nobody here.").wait_for()


def paper(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_dark_and_light_follow_the_system_and_the_key(open_page, pages):
    light = open_page(pages["run"]).page
    visit = open_page(pages["run"], dark=True)
    dark = visit.page
    assert paper(light) == "rgb(255, 255, 255)"
    assert paper(dark) == "rgb(22, 24, 28)"
    dark.get_by_text("12 episodes").wait_for()
    dark.keyboard.press("d")
    assert paper(dark) == paper(light)
    dark.keyboard.press("d")
    light.keyboard.press("d")
    assert paper(dark) == paper(light) == "rgb(22, 24, 28)"


def test_fits_a_small_window(open_page, pages):
    small = {"viewport": {"width": 700, "height": 500}}
    page = open_page(pages["run"], fragment=f"#view=episode&id={WRONG}", **small).page
    page.get_by_role("heading", name="Verdict").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 700


def test_hostile_text_stays_text(open_page, pages):
    visit = open_page(pages["hostile"])
    page = visit.page
    page.get_by_text("4 episodes").wait_for()
    scripts = page.locator("script").count()
    page.keyboard.press("Enter")
    page.get_by_text("Judge's notes").wait_for()
    for folded in page.locator("details").all():
        folded.evaluate("node => { node.open = true; }")
    conversation = page.locator("main.episode")
    assert conversation.inner_text().count(zoo.EVIL) > 10
    assert conversation.locator("script, img, iframe, object, embed").count() == 0
    targets = [link.get_attribute("href") for link in conversation.locator("a").all()]
    assert all(target.startswith("#view=") for target in targets)
    marks = conversation.locator(".unseen").all_inner_texts()
    assert {"U+001B", "U+0000", "U+202E", "U+200B", "U+FEFF", "U+E0041"} <= set(marks)
    shown = conversation.inner_text()
    assert not any(char in shown for char in "\x1b\x07\u202e\u200b\ufeff\U000e0041")
    assert "1208925819614629174706176" in shown, "a number greater than JavaScript's stays whole"
    assert "4611686018427387905" in shown
    page.evaluate("link => { location.hash = link; }", "view=compare&a=huge&b=many")
    page.get_by_text("first difference").wait_for()
    page.evaluate("link => { location.hash = link; }", "view=list&text=ALERT(1)")
    page.get_by_text("2 of 4 episodes").wait_for()
    page.keyboard.press("Escape")
    page.get_by_label("gate", exact=True).select_option(index=1)
    page.get_by_text("1 of 4 episodes").wait_for()
    assert page.locator("script").count() == scripts
    assert page.evaluate("({}).polluted") is None
    visit.assert_harmless()


def test_page_refuses_script_and_requests_that_got_in_all_the_same(open_page, pages):
    """The policy holds even where a text became markup."""
    visit = open_page(pages["run"])
    visit.page.get_by_text("12 episodes").wait_for()
    visit.page.evaluate(
        """() => {
          const script = document.createElement("script");
          try { script.textContent = "window.ran = 1"; document.body.append(script); } catch {}
          const image = document.createElement("img");
          image.src = "http://attacker.example/x.png";
          document.body.append(image);
        }"""
    )
    refused = visit.page.evaluate(
        """() => { try { document.body.innerHTML = "<b>x</b>"; return false; }
                   catch { return true; } }"""
    )
    assert refused
    assert visit.page.evaluate("window.ran") is None
    asked = visit.page.evaluate("fetch('http://attacker.example/').then(() => 1, () => 0)")
    assert asked == 0
    assert visit.complaints, "the browser tells what it refused"


def test_huge_texts_come_in_parts(open_page, pages):
    visit = open_page(pages["hostile"], fragment="#view=episode&id=huge")
    page = visit.page
    more = page.get_by_role("button", name="show more")
    more.first.wait_for()
    assert more.count() == 3
    length = "document.querySelector('main.episode').textContent.length"
    assert page.evaluate(length) < 50_000
    more.first.click()
    assert 50_000 < page.evaluate(length) < 110_000
    visit.assert_harmless()


def test_ten_thousand_episodes(open_page, tmp_path):
    path = zoo.write_many(tmp_path / "many" / "traces.jsonl", 10_000)
    out = tmp_path / "many.html"
    assert write_page([path], out, title="many").episodes == 10_000
    visit = open_page(out)
    page = visit.page
    page.get_by_text("10,000 episodes · 3,334 solved").wait_for()
    assert rows(page).count() < 100, "only those in sight are in the page"
    page.get_by_label("filter").fill("is:solved turns<3 desk/refund/33")
    page.get_by_text("45 of 10,000 episodes").wait_for()
    page.keyboard.press("Escape")
    page.get_by_text("10,000 episodes ·").wait_for()
    page.keyboard.press("G")
    page.locator(f"[data-id='{9999:032x}']").wait_for()
    page.keyboard.press("Enter")
    page.get_by_text("I looked it up").first.wait_for()
    page.evaluate("link => { location.hash = link; }", "view=list&text=entitles")
    page.get_by_text("3,333 of 10,000 episodes").wait_for()
    visit.assert_harmless()


def test_page_cut_in_the_middle_says_so(open_page, pages, tmp_path):
    whole = pages["run"].read_bytes()
    cut = tmp_path / "cut.html"
    cut.write_bytes(whole[: whole.index(b'id="index"')])
    page = open_page(cut).page
    page.get_by_text('this page is cut short: its part "index" is missing').wait_for()


@pytest.fixture
def served(tmp_path):
    path = zoo.write_traces(tmp_path / "run" / "traces.jsonl", zoo.support_run())
    server = ViewerServer([path.parent], title="live")
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield server.url, path
    server.shutdown()
    thread.join()
    server.close()


def test_served_page_takes_up_what_is_appended(open_page, served):
    url, path = served
    visit = open_page(url)
    page = visit.page
    page.get_by_text("12 episodes").wait_for()
    late = zoo.make_trace("late", task_id="desk/late", turns=[zoo.text_turn(0, "late <b>text</b>")])
    zoo.write_traces(path, [late])
    page.get_by_text("13 episodes").wait_for()
    page.get_by_label("filter").fill("desk/late")
    page.get_by_label("filter").press("Enter")
    page.keyboard.press("Enter")
    page.get_by_text("late <b>text</b>").wait_for()
    page.keyboard.press("Escape")
    page.get_by_text("1 of 13 episodes").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    page.keyboard.type("LATE <b>")
    page.get_by_text("1 of 13 episodes").wait_for()
    assert rows(page).count() == 1
    zoo.write_traces(path, [late.model_copy(update={"trace_id": "later", "task_id": "desk/2"})])
    page.get_by_text("2 of 14 episodes").wait_for()
    visit.assert_harmless()


def test_served_page_starts_anew_where_the_file_was_replaced(open_page, served):
    url, path = served
    page = open_page(url).page
    page.get_by_text("12 episodes").wait_for()
    path.unlink()
    zoo.write_traces(path, [zoo.make_trace("other")])
    page.get_by_text("1 episode · 1 solved").wait_for()


def test_served_page_says_when_the_viewer_is_gone(open_page, tmp_path):
    path = zoo.write_traces(tmp_path / "traces.jsonl", zoo.support_run())
    server = ViewerServer([path], title="gone")
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        page = open_page(server.url).page
        page.get_by_text("12 episodes").wait_for()
    finally:
        server.shutdown()
        thread.join()
        server.close()
    page.get_by_text("the viewer no longer answers").wait_for()


def test_external_scores_stand_beside_the_reward_and_can_be_filtered_by(open_page, tmp_path):
    folder = tmp_path / "evaluation"
    traces = [zoo.support_trace(0, k) for k in range(4)]  # solved, wrong, no answer, masked
    zoo.write_traces(folder / "traces" / "rule-1.jsonl", traces)
    said = [False, True, False, None]
    tried = [attempt(f"t{k}", right, trace_id=traces[k].trace_id) for k, right in enumerate(said)]
    scored = result(column("rule", tried, trace_file="traces/rule-1.jsonl"))
    write_result(folder / "result.json", scored)
    write_page([folder], tmp_path / "e.html", title="evaluation")
    page = open_page(tmp_path / "e.html").page
    page.get_by_text("1 solved by the external score · 1 solved by the reward's verdict").wait_for()
    heads = page.locator("[role=columnheader]").all_inner_texts()
    assert heads[:2] == ["external score", "reward's verdict"]
    marks = {"external-solved": 1, "external-unsolved": 2, "external-unscored": 1, "disagreed": 2}
    for fact, count in marks.items():
        page.get_by_label("outcome", exact=True).select_option(fact)
        assert page.get_by_label("filter").input_value() == f"is:{fact}"
        assert rows(page).count() == count, fact
    page.get_by_label("filter").fill("external>0.5")
    assert rows(page).count() == 1
    assert rows(page).first.locator("[role=gridcell]").first.inner_text() == "✓ solved ≠"
    rows(page).first.click()
    page.get_by_role("heading", name="External score").wait_for()
    text = page.locator("main.episode aside").inner_text()
    for part in ("test/exact", "what the evaluation counts", "Reward's verdict", "disagree"):
        assert part.lower() in text.lower()
