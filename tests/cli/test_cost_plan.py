"""`agentgym cost plan`: what it prints, what it keeps, what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agentgym.cost.workload_file import read_workload
from agentgym.price_book import PriceBook

PAGE = Path(__file__).parents[2] / "docs" / "cost.md"


@pytest.fixture
def plan(agentgym_command, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def run(*args):
        code, out, err = agentgym_command("cost", "plan", *args)
        assert (code, err) == (0, "")
        return out

    return run


def figures(plan, *args):
    return json.loads(plan("--json", *args))


def test_the_reference_run_is_planned_without_arguments(plan):
    out = plan()
    for figure in (
        "512,000 episodes, 1,024 per step",
        "18,000 tokens per episode, 18.432 M per step, 9.216 G per run",
        "Sampled: 2.048 M per step",
        "could hold 71.1% of them",
        "$512.00",
        "$327.68",
        "$184.32",
        "$229.38",
        "5,600 tokens per episode, $241.17, all priced roles $753.17",
        "18,000 tokens, $749.08, all priced roles $1,261.08",
        "Counted here: the first",
        "(DeepInfra, 2026-08)",
        "policy: no price, and in no sum",
        "an estimate",
        "Time: unknown",
    ):
        assert figure in out
    assert max(map(len, out.splitlines()[4:20])) <= 100


def test_both_readings_of_the_judge_say_why_they_differ(plan):
    found = figures(plan, "--judge-reads", "prompts")
    assert round(found["total_usd"], 2) == 1_261.08
    assert found["other_reading"]["judge"]["other"] == "transcript"
    assert round(found["other_reading"]["judge"]["total_usd"], 2) == 753.17
    assert "Counted here: the second" in plan("--judge-reads", "prompts")


def test_a_random_number_of_turns_shows_what_the_mean_misses(plan):
    out = plan("--turns", "histogram:2=1,8=1")
    assert "turns 5 ± 3.00" in out
    assert "the mean of 5 turns, they would be 18,000: the spread alone makes it 1.20 times" in out
    assert "Prompts: 21,600 tokens per episode" in out


def test_flags_are_fields_of_the_file(plan, tmp_path):
    path = tmp_path / "w.toml"
    plan(
        *("--groups", 4, "--group-size", 2, "--steps", 3, "--setup-tokens", 100),
        *("--turns", "lognormal:mean=4,sd=3,max=10", "--without", "simulator"),
        *("--judge-model", "zai-org/GLM-5.1", "--cache", "policy=0.5", "--paid-twice", "judge=0.1"),
        *("--set", "roles.judge.output_tokens=300", "--rerun-share", 0.02, "--write", path),
        *("--prefill-tps", 1000, "--decode-tps", 100, "--gpus", 2, "--gpu-hour-usd", 3),
        *("--seconds-per-call", "policy=2", "--concurrency", 4, "--update-s", 9),
    )
    workload = read_workload(path)
    assert (workload.groups, workload.group_size, workload.steps) == (4, 2, 3)
    assert (workload.turns.kind, workload.turns.max_turns) == ("lognormal", 10)
    assert list(workload.roles) == ["judge"]
    judge, policy = workload.roles["judge"], workload.policy
    assert (judge.model, judge.output_tokens, judge.paid_twice) == ("zai-org/GLM-5.1", 300, 0.1)
    assert (policy.cache_hit, policy.seconds_per_call) == (0.5, 2)
    assert (policy.serving.gpus, policy.serving.update_s) == (2, 9)
    assert (workload.tokens.setup, workload.rerun_share, workload.concurrency) == (100, 0.02, 4)
    again = figures(plan, "--workload", path)
    assert again["workload"]["roles"]["judge"]["prices"]["book"] == "GLM-5.1"
    assert again["gpu_hours_held"] >= again["gpu_hours"] > 0
    assert again["unpriced"] == []


def test_a_price_file_wins_for_one_command(plan, tmp_path):
    book = tmp_path / "p.toml"
    book.write_text(
        '"DeepSeek-V4-Flash-0731" = {input = 0, output = 0, as_of = "2026-11", source = "gift"}'
    )
    found = figures(plan, "--prices", book)
    assert found["roles"]["judge"]["usd"] == 0
    assert round(found["total_usd"], 2) == 512


def test_prices_of_a_roles_file(plan, tmp_path):
    roles = tmp_path / "roles.toml"
    roles.write_text(
        '[policy]\nbase_url = "http://localhost:8000/v1"\nmodel = "mine"\n'
        '[judge]\nbase_url = "https://j.example/v1"\nmodel = "big"\n'
        "prices = {input = 1.0, output = 2.0}\n"
    )
    found = figures(plan, "--roles", roles)
    assert found["roles"]["judge"]["model"] == "big"
    assert found["roles"]["judge"]["usd"] == pytest.approx(512_000 * (5_600 + 2 * 128) / 1e6)
    assert found["unpriced"] == ["policy"]


def test_turns_of_a_run_are_counted(plan, agentgym_command, tmp_path):
    run = tmp_path / "run"
    code, _, _ = agentgym_command(
        *("rollout", "--env", "agentgym/WebShop-v0", "--policy", "rule", "-n", 4, "--out", run)
    )
    assert code == 0
    lines = (run / "traces.jsonl").read_text().splitlines()
    taken = [len(json.loads(line)["turns"]) for line in lines]
    found = figures(plan, "--turns-from", run)
    assert found["turns"]["mean"] == pytest.approx(sum(taken) / len(taken))
    assert f"turns counted in 4 episodes of {run}" in found["workload"]["basis"]
    other = figures(plan, "--turns-from", run, "--set", "turns=3")["workload"]
    assert (other["turns"]["turns"], other["basis"]) == (3, "assumed")


def test_no_steps_cost_nothing_and_say_what_one_would(plan):
    found = figures(plan, "--steps", 0)
    assert found["total_usd"] == 0
    assert found["total_usd_per_step"] == pytest.approx(753.17248 / 500)
    assert "$0.00" in plan("--steps", 0)


def test_one_step_of_nothing_priced_is_counted_in_tokens(plan):
    out = plan("--without", "judge", "--without", "simulator")
    assert "nothing has a price" in out
    found = figures(plan, "--without", "judge", "--without", "simulator")
    assert found["sensitivity"]["unit"] == "tokens"
    assert found["roles"]["policy"]["usd"] is None
    assert found["total_usd"] is found["total_usd_per_step"] is None  # case I05
    assert "$" not in out.split("what dominates")[0]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--judge-model", "foo/bar"], "no price for the model 'foo/bar' in the price book"),
        (["--cache", "jugde=1"], "unknown role 'jugde'; did you mean 'judge'"),
        (["--cache", "judge"], "--cache takes ROLE=NUMBER, got 'judge'"),
        (["--cache", "judge=2"], "roles.judge.cache_hit: Input should be less than or equal to 1"),
        (["--turns", "often"], "--turns takes 5, geometric:mean=5,max=20"),
        (["--turns", "geometric:mean=5"], "such as geometric:mean=5,max=20"),
        (["--set", "roles.judg.output_tokens=3"], "unknown role 'judg'; did you mean 'judge'?"),
        (["--set", "judge"], "--set takes FIELD=VALUE, got 'judge'"),
        (["--set", "roles.judge.output=3"], "unknown field 'output'; did you mean 'output_tokens'"),
        (["--steps", "-1"], "steps: Input should be greater than or equal to 0"),
        (["--workload", "none.toml"], "can't read none.toml: No such file"),
        (["--prices", "none.toml"], "can't read the prices in none.toml"),
        (["--turns-from", "none"], "none"),
        (["--without", "user"], "unknown role 'user'; there are simulator, judge"),
        (
            ["--without", "judge", "--judge-reads", "prompts"],
            "unknown role 'judge'; there are simulator",
        ),
        (["--gpus", "2"], "policy.serving.prefill_tokens_per_s: Field required"),
        (["--turns", "histogram:3=10,3=5"], "--turns says something twice"),
        (["--turns", "histogram:3=10,3.0=5"], "counts has 3 turns twice; add the two up"),
        (["--turns", "histogram:2.5=1"], "no episode takes 2.5 turns"),
        (["--turns", "1e7"], "at most 10,000 turns can be planned for"),
        (["--turns", "histogram:1e300=1"], "at most 10,000 turns can be planned for"),
        (["--turns", "histogram:1=1e308,2=1e308"], "less than or equal to"),
        (["--turns", "lognormal:mean=1e-300,sd=1,max=5"], "mean and sd must be within a factor"),
        (["--turns", "lognormal:mean=5,sd=1e-200,max=5"], "mean and sd must be within a factor"),
        (["--set", "turns=true"], "turns: Input should be"),
        (["--set", "turns.kind='geometric'"], "can't set turns.kind: turns is no table"),
        (["--setup-tokens", "1e308"], "tokens.setup: Input should be less than or equal to"),
        (["--groups", "1" + "0" * 320], "groups: Input should be less than or equal to"),
        (["--prefill-tps", "1e-320", "--decode-tps", "1"], "greater than or equal to"),
        (["--set", "roles.judge.prices={input = 1e308, output = 1}"], "less than or equal to"),
        (["--set", "roles.prices.outpt=1"], "roles.prices: unknown field 'outpt'; there are model"),
    ],
)
def test_refusals_are_one_line(agentgym_command, monkeypatch, tmp_path, args, message):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    code, out, err = agentgym_command("cost", "plan", *args)
    assert (code, out) == (1, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_file_whose_roles_are_no_tables_is_refused(agentgym_command, tmp_path):
    path = tmp_path / "w.toml"
    path.write_text("roles = 3")
    for flags in (["--judge-model", "GLM-5.1"], ["--without", "judge"], []):
        code, _, err = agentgym_command("cost", "plan", "--workload", path, *flags)
        assert (code, err.count("\n")) == (1, 1)
        assert "roles must be tables" in err


def test_names_in_the_book_are_printed_harmlessly(agentgym_command, tmp_path):
    book = tmp_path / "p.toml"
    book.write_text('"a\\u001b[2Jb" = {input = 1, output = 1, as_of = 2026-11-30, source = "x"}')
    code, out, _ = agentgym_command("cost", "prices", "--prices", book)
    assert code == 0
    assert "a\\x1b[2Jb" in out


def test_the_book_in_effect_is_listed(agentgym_command, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    book = tmp_path / "p.toml"
    book.write_text('"GLM-5.1" = {input = 9, output = 10, as_of = "2026-11", source = "mine"}')
    code, out, _ = agentgym_command("cost", "prices", "--prices", book)
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[1:]}
    assert code == 0
    assert rows["GLM-5.1"] == ["9", "-", "10", "2026-11", "-", str(book)]
    assert rows["Kimi-K3"] == ["2.85", "0.285", "14.25", "2026-08", "DeepInfra", "shipped"]
    code, out, _ = agentgym_command("cost", "prices", "zai-org/GLM-4.7-Flash", "--json")
    assert [row["entry"]["output"] for row in json.loads(out)] == [0.40]
    code, out, _ = agentgym_command("cost", "prices", "Kimi K3")
    assert "Kimi-K3: from DeepInfra's price list, https://deepinfra.com/pricing; takes no" in out
    code, _, err = agentgym_command("cost", "prices", "foo/bar")
    assert (code, err.count("\n")) == (1, 1)


def test_a_long_tail_of_turns_is_shown_from_both_ends(plan):
    out = plan("--turns", "geometric:mean=50,max=200")
    rows = [line.split()[0] for line in out.splitlines() if "%" in line and "," in line]
    assert {"1", "6", "199", "200"} <= set(rows)
    assert "7" not in rows


def test_a_server_s_speed_is_measured_for_the_plan(agentgym_command, model_server):
    def answer(body):
        words = len(body["messages"][-1]["content"].split())
        reply = {"message": {"role": "assistant", "content": "x"}, "finish_reason": "length"}
        written = body.get("max_tokens") or body["max_completion_tokens"]
        usage = {"prompt_tokens": words, "completion_tokens": written}
        return 200, {"model": "m", "choices": [{"index": 0, **reply}], "usage": usage}

    server = model_server(answer)
    code, out, err = agentgym_command(
        *("cost", "speed", "--base-url", server.url, "--model", "m", "--concurrency", 2),
        *("--requests", 6, "--prompt-words", 50, "--output-tokens", 9, "--gpus", 4),
    )
    assert (code, err) == (0, "")
    assert all(body["ignore_eos"] for body in server.bodies)
    assert len(server.bodies) == 1 + 6 + 6
    flags = out.splitlines()[-1].split("agentgym ")[1].split()
    code, out, _ = agentgym_command(*flags, "--json")
    serving = json.loads(out)["workload"]["policy"]["serving"]
    assert (code, serving["gpus"]) == (0, 4)
    assert serving["decode_tokens_per_s"] > 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "say who is measured: --base-url and --model"),
        (["--concurrency", "8", "--requests", "4"], "--requests must be at least --concurrency"),
        (["--gpus", "0"], "--gpus must be at least 1"),
    ],
)
def test_speeds_that_can_t_be_measured_are_refused(agentgym_command, args, message):
    code, _, err = agentgym_command("cost", "speed", *args)
    assert code == 1
    assert message in err


# --- what nobody would write, or anybody might --------------------------------------------------


def test_names_are_other_people_s(plan):
    """No markup, no emoji, no control characters; and no figure is cut to make room for them."""
    long = "a-user-simulator-" * 5
    role = "{calls_per_episode = 1, input_tokens = 123, prices = {input = 1234.5, output = 1}}"
    out = plan(
        *(
            "--set",
            f'roles={{"[/x] :smile:" = {role}, "{long}" = {role}, "a\\u001b[2Jb" = {role}}}',
        ),
        *("--set", 'name="[red]\\u001b[2J\\nx"', "--groups", 10**7),
    )
    assert "[/x] :smile:" in out
    assert "[red]\\x1b[2J\\nx" in out
    assert "\x1b" not in out
    assert long in out
    per_run = 8 * 10**7 * 500 * 123 * 1234.5 / 1e6
    assert out.count(f"${per_run:,.2f}") >= 3 * 3  # cost, without a cache, with the best; and more
    assert not any("$" in line and "…" in line for line in out.splitlines())


def test_little_is_not_printed_as_nothing(plan):
    out = plan("--groups", 1, "--group-size", 1, "--steps", 1)
    assert "$0.0010" in out  # 4 simulator calls: 6,000 tokens in, 1,600 out
    assert "<$0.0001" in out  # the judge's output: 128 tokens
    assert "$0.00 " not in out


def test_a_token_bill_is_not_that_of_the_gpus(plan):
    speed = ("--prefill-tps", 20_000, "--decode-tps", 2_500, "--gpus", 8)
    hosted = plan("--policy-model", "GLM-5.1", *speed)
    assert "150.8 from first to last step.\n" in hosted
    own = plan("--gpu-hour-usd", 2, *speed)
    assert "150.8 from first to last step, $301.51.\n" in own


def test_prices_that_are_not_the_book_s_say_so(plan, tmp_path):
    """A workload file keeps its prices; the row may have changed since, or be elsewhere."""
    path = tmp_path / "w.toml"
    for name in ("mine", "GLM-5.1"):
        said = f"judge: m at $7 in, as input cached, 8 out per Mtok (given; the book's {name!r}"
        prices = f'roles.judge.prices={{input = 7, output = 8, book = "{name}"}}'
        plan("--set", prices, "--set", "roles.judge.model='m'", "--write", path)
        assert said in plan("--workload", path)


def test_a_command_s_prices_are_a_roles_file_s_too(plan, tmp_path):
    book, roles = tmp_path / "p.toml", tmp_path / "roles.toml"
    book.write_text('"GLM-5.1" = {input = 9, output = 0, as_of = "2026-11", source = "mine"}')
    roles.write_text(
        '[judge]\nbase_url = "https://j.example/v1"\nmodel = "m"\nprices = "GLM-5.1"\n'
    )
    found = figures(plan, "--roles", roles, "--prices", book)
    assert found["roles"]["judge"]["usd"] == pytest.approx(512_000 * 5_600 * 9 / 1e6)


def test_several_judges_read_once_each(plan):
    out = plan("--set", "roles.judge.calls_per_episode=3")
    assert "The judge reads the transcript once per call, with 3 calls per episode: 16,800" in out
    assert "judge reads" not in plan("--set", "roles.judge.calls_per_episode=0")


def test_nothing_priced_and_nothing_to_pay_are_told_apart(plan):
    nothing = ("--without", "judge", "--without", "simulator")
    assert "nothing has a price" in plan(*nothing)
    free = plan(*nothing, "--set", "policy.prices={input = 0, output = 0}")
    assert "nothing is paid for" in free
    assert "nothing is paid for" in plan("--groups", 0)
    assert "what moves the tokens" in free


def test_extremes_are_planned(plan):
    assert "at most" not in plan("--turns", "lognormal:mean=1e-6,sd=1,max=5")
    most = 10**15
    out = plan("--groups", most, "--steps", most, "--setup-tokens", "1e15", "--safety-factor", 9)
    assert "inf" not in out
    assert "nan" not in out


def test_a_later_flag_sets_a_field_of_an_earlier_one(plan):
    prices = ("--set", "roles.judge.prices.input=1", "--set", "roles.judge.prices.output=2")
    found = figures(plan, "--judge-model", "GLM-5.1", *prices)
    assert found["roles"]["judge"]["prices"]["input"] == 1


# --- what docs/cost.md says ---------------------------------------------------------------------


def test_the_page_s_price_table_is_the_shipped_book(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    page = PAGE.read_text(encoding="utf-8").partition("## The price book")[2]
    rows = re.findall(r"^\| ([\w.-]+) \| ([\d.]+) \| ([\d.]*) ?\| ([\d.]+) \|$", page, re.MULTILINE)
    shown = [(name, float(i), float(c) if c else None, float(o)) for name, i, c, o in rows]
    entries = [(row.name, row.entry) for row in PriceBook.load()]
    assert shown == [(name, e.input, e.cached, e.output) for name, e in entries]


@pytest.mark.parametrize(
    "start", ["policy  ", "simulator  ", "judge  ", "priced roles", "GPUs:", "Time:"]
)
def test_the_page_s_output_is_what_is_printed(plan, start):
    """The lines of the reference run, and those of the command with speeds on the page."""
    page = PAGE.read_text(encoding="utf-8")
    said = next(line[4:] for line in page.splitlines() if line.startswith(f"    {start}"))
    command = page.partition("agentgym cost plan --prefill-tps")[2].partition("```")[0]
    speeds = f"--prefill-tps {command}".replace("\\\n", " ").split()
    out = plan(*(speeds if start.endswith(":") else ()))
    assert said in map(str.rstrip, out.splitlines())


def test_the_page_s_mean_and_its_spread(plan):
    found = figures(plan, "--turns", "geometric:mean=5,max=20")["turns"]
    page = PAGE.read_text(encoding="utf-8")
    with_spread, flat = found["prompt_tokens_per_episode"], found["prompt_tokens_at_mean_turns"]
    said = (
        f"a mean of {found['mean']:.2f} turns makes {with_spread:,.0f} prompt tokens per\nepisode "
    )
    assert (
        said + f"where the same constant would make {flat:,.0f}: {with_spread / flat:.2f} times"
        in page
    )


def test_a_hosted_policy_says_what_is_taken_to_be_cached_and_what_hangs_on_it(plan):
    out = plan("--policy-model", "GLM-5.1")
    cache = figures(plan, "--policy-model", "GLM-5.1")["policy_cache"]
    assert (cache["hit"], cache["assumed"], cache["has_price"]) == (1.0, True, True)
    assert "100% of what a prefix cache could hold is planned to hit (assumed, nobody said)" in out
    both = f"${cache['usd_at_best']:,.2f} if all of it does, ${cache['usd_without']:,.2f} if none"
    assert both in out
    # 12,800 of 18,000 input tokens per episode at $1.05 or $0.205 per Mtok, 512,000 episodes.
    assert cache["usd_without"] - cache["usd_at_best"] == pytest.approx(0.845 * 12_800 * 0.512)
    assert f"! that is {cache['swing']:.0%} of the sum" in out
    assert cache["swing"] > 0.3


def test_a_share_that_was_given_is_not_warned_of(plan):
    for flags in (["--cache", "policy=0.5"], ["--set", "policy.cache_hit=0.5"]):
        out = plan("--policy-model", "GLM-5.1", *flags)
        assert "50% of what a prefix cache could hold is planned to hit (given)" in out
        assert "! that is" not in out


def test_a_model_without_a_price_for_cached_input_has_no_hits(plan, tmp_path):
    book = tmp_path / "p.toml"
    book.write_text('"plain" = {input = 1, output = 2, as_of = "2026-11", source = "mine"}')
    args = ("--policy-model", "plain", "--prices", book)
    found = figures(plan, *args)
    assert found["workload"]["policy"]["cache_hit"] == 0
    assert found["roles"]["policy"]["per_run"]["cached_tokens"] == 0
    assert (found["policy_cache"]["assumed"], found["policy_cache"]["swing"]) == (True, 0)
    out = plan(*args)
    assert "cached input has no price of its own" in out
    assert "! that is" not in out
    assert figures(plan, *args, "--cache", "policy=1")["workload"]["policy"]["cache_hit"] == 1


def test_a_roles_file_s_policy_has_a_cache_of_its_own_too(plan, tmp_path):
    roles = tmp_path / "roles.toml"
    head = '[policy]\nbase_url = "https://p.example/v1"\nmodel = "m"\n'
    roles.write_text(head + "prices = {input = 1, output = 2}")
    assert figures(plan, "--roles", roles)["workload"]["policy"]["cache_hit"] == 0
    roles.write_text(head + "prices = {input = 1, cached = 0.1, output = 2}")
    assert "(assumed, nobody said)" in plan("--roles", roles)


def test_what_a_workload_s_file_measured_is_not_assumed(plan, tmp_path):
    path = tmp_path / "w.toml"
    plan("--set", "policy.cache_hit=0.4", "--write", path)
    cache = figures(plan, "--workload", path, "--policy-model", "GLM-5.1")["policy_cache"]
    assert (cache["hit"], cache["assumed"]) == (0.4, False)
    plan("--policy-model", "GLM-5.1", "--cache", "policy=0.4", "--write", path)
    cache = figures(plan, "--workload", path, "--policy-model", "Kimi-K3")["policy_cache"]
    assert cache["assumed"], "of another model"


def test_a_policy_on_own_gpus_keeps_the_workload_s_cache(plan):
    assert figures(plan)["policy_cache"] is None
    assert figures(plan)["workload"]["policy"]["cache_hit"] == 1
    assert "planned to hit" not in plan()
