"""Workload files: written ones read back, wrong ones are refused in one line."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.client import Prices
from agentgym.cost.plan import make_plan, plan_priced
from agentgym.cost.turns import turns_of_traces
from agentgym.cost.workload import PolicyLoad, RoleLoad, Serving, Workload
from agentgym.cost.workload_file import REFERENCE, read_workload, workload_of, workload_text
from agentgym.errors import ConfigError
from tests.cost.test_turns import DISTRIBUTIONS

SERVING = "{prefill_tokens_per_s = 1, decode_tokens_per_s = 1, usd_per_gpu_hour = 1}"

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
loads = st.builds(
    RoleLoad,
    model=st.none() | texts,
    prices=st.none()
    | st.builds(Prices, input=st.floats(0, 9), cached=st.none(), output=st.just(1e-7)),
    calls_per_episode=st.floats(0, 3),
    reads=st.sampled_from(["own", "transcript", "prompts"]),
    cache_hit=st.floats(0, 1),
)


@settings(max_examples=60)
@given(
    name=texts,
    turns=DISTRIBUTIONS,
    roles=st.dictionaries(texts.filter(lambda name: name != "policy"), loads, max_size=3),
    gpus=st.none() | st.integers(1, 8),
)
def test_what_is_written_reads_back(name, turns, roles, gpus):
    serving = gpus and Serving(prefill_tokens_per_s=1e4, decode_tokens_per_s=0.1, gpus=gpus)
    base = read_workload(REFERENCE)
    changes = {"name": name, "turns": turns, "roles": roles}
    policy = PolicyLoad(serving=serving, shared_setup=bool(gpus))
    workload = base.model_copy(update={**changes, "policy": policy})
    assert workload_of(tomllib.loads(workload_text(workload))) == workload


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grups = 3", r"w\.toml: unknown field 'grups'; did you mean 'groups'\?"),
        ("tokens.setups = 3", "tokens: unknown field 'setups'; did you mean 'setup'"),
        ("policy.modle = 'x'", "policy: unknown field 'modle'; did you mean 'model'"),
        ("policy.serving.gpu = 2", "policy.serving: unknown field 'gpu'; did you mean 'gpus'"),
        ("roles.judge.read = 'own'", "roles.judge: unknown field 'read'; did you mean 'reads'"),
        ("roles.judge.reads = 'all'", "roles.judge.reads: Input should be 'own', 'transcript'"),
        ("roles.policy.model = 'x'", r"the policy has a table of its own, \[policy\]"),
        (
            "roles.user = {calls_per_reply = 1, reads = 'prompts'}",
            "reads = 'prompts' is for calls_per_episode",
        ),
        ("group_size = 0", "group_size: Input should be greater than or equal to 1"),
        ("steps = 1.5", "steps: Input should be a valid integer"),
        ("turns = {kind = 'geometric', mean = 3}", r"turns\.geometric\.max_turns: Field required"),
        (
            "turns = {kind = 'geometric', means = 3, mean = 3, max_turns = 5}",
            r"unknown field 'means'; did you mean 'mean'",
        ),
        (
            "roles.judge.prices = {inputs = 1, output = 1}",
            r"roles\.judge\.prices: unknown field 'inputs'; did you mean 'input'",
        ),
        (f"policy = {{model = 'x', serving = {SERVING}}}", "by the token .* or by the hour"),
        ("groups = ", "not valid TOML"),
    ],
)
def test_wrong_files_are_refused(tmp_path, text, message):
    path = tmp_path / "w.toml"
    needed = {
        "groups": "groups = 1",
        "group_size": "group_size = 1",
        "steps": "steps = 1",
        "turns": "turns = 1",
        "tokens.": "tokens = {setup = 1, output = 1, reply = 1}",
    }
    if text.startswith("tokens"):
        needed["tokens."] = "tokens.setup = 1\ntokens.output = 1\ntokens.reply = 1"
    rest = [line for key, line in needed.items() if key == "tokens." or not text.startswith(key)]
    path.write_text("\n".join([text, *rest]), encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as error:
        read_workload(path)
    assert "\n" not in str(error.value)


def test_unknown_model_names_the_book_to_edit():
    # Case I05.
    base = read_workload(REFERENCE)
    judge = base.roles["judge"].model_copy(update={"model": "foo/bar"})
    with pytest.raises(ConfigError, match=r"no price for the model 'foo/bar'.*prices\.toml"):
        make_plan(base.with_role("judge", judge))


def test_prices_in_the_file_need_no_book():
    base = read_workload(REFERENCE)
    judge = base.roles["judge"]
    given_prices = Prices(input=1, output=0)
    priced = judge.model_copy(update={"model": "foo/bar", "prices": given_prices})
    plan = plan_priced(base.with_role("judge", priced))
    assert plan.usd("judge") == pytest.approx(512_000 * 5_600 / 1e6)


def test_safety_factor_is_on_tokens_and_dollars_and_not_on_calls_i07():
    # Case I07: a count by another tokenizer was too low; the factor is there, and shows.
    base = read_workload(REFERENCE)
    plain = make_plan(base)
    careful = make_plan(base.model_copy(update={"safety_factor": 1.3}))
    for role in ("policy", "simulator", "judge"):
        before, after = plain.role(role).per_episode, careful.role(role).per_episode
        assert after.calls == before.calls
        assert after.input_tokens == pytest.approx(1.3 * before.input_tokens)
        assert after.output_tokens == pytest.approx(1.3 * before.output_tokens)
    assert careful.total_usd == pytest.approx(1.3 * plain.total_usd)
    assert careful.turn_rows[-1].read_so_far == pytest.approx(1.3 * 18_000)


def test_no_traces_give_no_turns():
    with pytest.raises(ConfigError, match="no played episode"):
        turns_of_traces([])


def test_a_workload_is_frozen_and_its_copy_apart():
    base = read_workload(REFERENCE)
    changed = base.with_role("judge", RoleLoad())
    assert base.roles["judge"].calls_per_episode == 1
    assert isinstance(changed, Workload)
    assert changed.roles["judge"].calls_per_episode == 0
