"""What calls cost, added up by role."""

from __future__ import annotations

from agentgym.metering import add_by_role, sum_by_role
from agentgym.types import Usage

POLICY = Usage(prompt_tokens=3, completion_tokens=2, cost_usd=0.5)
JUDGE = Usage(prompt_tokens=7, completion_tokens=1)


def test_parts_are_added_role_by_role_and_stay_as_they_are():
    one, other = {"policy": POLICY}, {"policy": POLICY, "judge": JUDGE}
    total = sum_by_role(one, other)
    assert total == {"policy": POLICY + POLICY, "judge": JUDGE}
    assert (one, other) == ({"policy": POLICY}, {"policy": POLICY, "judge": JUDGE})
    add_by_role(total, one)
    assert total["policy"].prompt_tokens == 9
    assert sum_by_role() == {}


def test_one_part_without_a_price_leaves_the_sum_without_one():
    assert sum_by_role({"judge": JUDGE})["judge"].cost_usd is None
    assert sum_by_role({"policy": POLICY}, {"policy": JUDGE})["policy"].cost_usd is None
