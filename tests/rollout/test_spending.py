"""What a run has spent, from one process to the next."""

from __future__ import annotations

import pytest

from agentgym.errors import ConfigError, TraceError
from agentgym.rollout import Ledger, RunBudget
from agentgym.rollout.spending import Spending, read_spending
from agentgym.types import Usage

TOLD = Usage(prompt_tokens=100, completion_tokens=20, cost_usd=0.02)


async def test_bills_that_nobody_saw_are_spent_in_the_next_process_too(tmp_path):
    file = tmp_path / "spent.json"
    ledger = Ledger(RunBudget(usd=1.0, tokens=10_000))
    ledger.keep_in(file)
    for tokens, usd in ((120, 0.02), (500, 0.10)):  # of the second, no bill ever came
        held = await ledger.hold("policy", tokens=500, usd=0.10)
        ledger.let_go(held, tokens=tokens, usd=usd)
    ledger.charge("policy", TOLD)
    ledger.charge("judge", TOLD)  # whose client holds nothing
    ledger.keep()
    kept = read_spending(file)
    assert kept.billed == {"policy": TOLD, "judge": TOLD}
    assert kept.unbilled.keys() == {"policy"}
    assert (kept.unbilled["policy"].usd, kept.unbilled["policy"].tokens) == (
        *(pytest.approx(0.10), 500),
    )
    for _ in range(2):  # and in the one after that
        ledger = Ledger(RunBudget(usd=1.0, tokens=10_000))
        ledger.spent_before(kept.billed, unbilled=kept.unbilled)
        assert [cap.spent for cap in ledger.caps()] == [pytest.approx(0.14), 740]
        kept = ledger.spending()


def test_what_the_traces_tell_counts_where_it_is_more():
    more, less = TOLD + TOLD, Usage(prompt_tokens=1, cost_usd=0.001)
    kept = Spending(billed={"policy": TOLD, "judge": TOLD})
    told = {"policy": more, "judge": less, "simulator": less}
    assert kept.at_least(told).billed == {"policy": more, "judge": TOLD, "simulator": less}


def test_a_file_that_cant_be_used_is_told_of(tmp_path):
    file = tmp_path / "spent.json"
    assert read_spending(file) == Spending()
    for text in (b"{torn", b"[]", b"\xff", b'{"billed": {"policy": 3}}'):
        file.write_bytes(text)
        with pytest.raises(ConfigError, match="which says what the run has spent"):
            read_spending(file)
    ledger = Ledger(RunBudget(usd=1.0))
    ledger.keep_in(tmp_path / "none" / "spent.json")
    with pytest.raises(TraceError, match="can't write"):
        ledger.keep()
