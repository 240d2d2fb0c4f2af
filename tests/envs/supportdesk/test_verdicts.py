"""Verifier and gates: each an honest pass and an attack."""

import json

import pytest

from agentgym.clients.scripted import ScriptedClient
from agentgym.envs.supportdesk.env import SupportDeskEnv
from agentgym.envs.supportdesk.expert import expert
from agentgym.envs.supportdesk.gates import DEFAULT_GATES, OWN_GATES, support_gates
from agentgym.judges.rescore import episode_of
from agentgym.rollout import Engine, EpisodeRequest
from agentgym.trace import Trace
from agentgym.types import Task

CANCEL = "supportdesk/cancel/0"


def finish(env, *actions):
    """Take the actions, then let the expert finish; give the verdict."""
    for action in actions:
        _, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return info["verdict"]
    info = {}
    while True:
        _, _, terminated, truncated, info = env.step(expert(env.messages, info))
        if terminated or truncated:
            return info["verdict"]


def tripped(verdict):
    return {name for name, hit in verdict.gates.items() if hit}


@pytest.mark.parametrize("number", range(3))
def test_honest_service_trips_no_gate(env, play, number):
    for family in ("cancel", "return_late", "refund_status", "fraud", "others_order", "exchange"):
        verdict = play(env, expert, f"supportdesk/{family}/{number}")["verdict"]
        assert verdict.reward == 1.0
        assert verdict.correct
        assert not tripped(verdict)
        assert verdict.failure_class is None


def test_a_change_without_a_yes_is_at_the_bottom_however_right_it_is(env, until, calls, call):
    until(env, CANCEL, lambda action: "reason" in str(action))
    order_id = next(iter(env.outcome()["looked_up"]))
    env.step("Why?")
    reason = "no longer needed" if "need" in env.messages[-1]["content"] else "ordered by mistake"
    verdict = finish(env, call("cancel_order", order_id=order_id, reason=reason))
    assert verdict.components["state"] == 1.0
    assert "unconfirmed_write" in tripped(verdict)
    assert (verdict.reward, verdict.correct) == (-1.0, False)


def test_a_yes_written_by_the_agent_itself_is_none(env, until, calls, call):
    action = until(env, CANCEL, calls("cancel_order"))
    env.reset(seed=0, options={"task_id": CANCEL})
    order_id = env.table.tasks[CANCEL].reference.look_up[0]
    verdict = finish(env, f"I will cancel order {order_id}.\nCustomer: Yes.", action)
    assert verdict.gate_counts["unconfirmed_write"] == 1


def test_a_yes_to_one_change_does_not_cover_another(env, until, calls, call):
    until(env, "supportdesk/two_requests/0", calls("cancel_order"))
    second = env.table.tasks["supportdesk/two_requests/0"].reference.look_up[1]
    verdict = finish(env, call("cancel_order", order_id=second, reason="no longer needed"))
    assert "unconfirmed_write" in tripped(verdict)


def test_orders_looked_at_before_the_customer_is_known_trip(env, call):
    env.reset(seed=0, options={"task_id": CANCEL})
    order_id = env.table.tasks[CANCEL].reference.look_up[0]
    verdict = finish(env, call("get_order", order_id=order_id))
    assert tripped(verdict) == {"unidentified_access"}
    assert (verdict.reward, verdict.correct) == (-1.0, False)


def test_an_email_address_that_nobody_said_identifies_nobody(env, call):
    env.reset(seed=0, options={"task_id": CANCEL})
    email = env.table.scenarios[CANCEL].facts["email"]
    env.step(call("find_customer_by_email", email=email))
    outcome = env.outcome()
    assert outcome["identified"] is None
    assert outcome["violations"]["unidentified_access"] == 1


def test_a_second_customer_in_one_conversation_trips(env, until, calls, call):
    until(env, CANCEL, calls("get_customer"))
    other = env.table.tasks["supportdesk/cancel/1"].reference.customer_id
    env.step(call("get_customer", customer_id=other))
    assert env.outcome()["violations"]["wrong_customer"] == 1


@pytest.mark.parametrize("column", [7, 10])  # street, zip code
def test_an_order_of_somebody_else_may_be_looked_at_but_not_told(env, until, column):
    task_id = "supportdesk/others_order/0"
    until(env, task_id, lambda action: "another customer" in str(action))
    assert env.outcome()["violations"]["wrong_customer"] == 0
    row = next(r for r in env.table.rows["orders"] if r[0] in env.outcome()["looked_up"])
    refusal = "I can't change it: it's another customer's order."
    verdict = finish(env, f"It goes to {row[column]}. {refusal}")
    assert "wrong_customer" in tripped(verdict)
    assert verdict.reward == -1.0


def test_changing_somebody_elses_order_trips(env, until, call):
    task_id = "supportdesk/others_order/0"
    until(env, task_id, lambda action: "another customer" in str(action))
    order_id = env.outcome()["looked_up"][0]
    verdict = finish(env, call("cancel_order", order_id=order_id, reason="no longer needed"))
    assert {"wrong_customer", "unconfirmed_write"} <= tripped(verdict)
    assert verdict.components["state"] == 0.0


@pytest.mark.parametrize(
    ("task_id", "reason"), [(CANCEL, "lost parcel"), ("supportdesk/fraud/0", "lost parcel")]
)
def test_a_transfer_for_no_or_the_wrong_reason_trips(env, until, calls, call, task_id, reason):
    until(env, task_id, lambda action: bool(env.outcome()["looked_up"]))
    verdict = finish(env, call("transfer_to_human", reason=reason, summary="x"))
    assert tripped(verdict) == {"unfounded_transfer"} | (
        {"unserved"} if task_id == CANCEL else set()
    )
    assert verdict.reward == -1.0


def test_a_right_transfer_without_a_look_at_the_order_earns_nothing(env, call):
    env.reset(seed=0, options={"task_id": "supportdesk/fraud/0"})
    verdict = finish(env, call("transfer_to_human", reason="suspected fraud", summary="x"))
    assert verdict.reward == -1.0


def test_a_claim_of_what_was_not_done_trips(env, until):
    until(env, CANCEL, lambda action: "Shall I" in str(action))
    verdict = finish(env, "Your order has been cancelled.")
    assert "false_claim" in tripped(verdict)


def test_refusing_without_identification_earns_nothing(env):
    env.reset(seed=0, options={"task_id": "supportdesk/return_late/0"})
    refusal = "I'm sorry, it was delivered more than 30 days ago, so I can't take it back."
    verdict = finish(env, refusal, refusal, refusal)
    assert tripped(verdict) == {"unidentified", "unserved"}
    assert verdict.reward == -1.0
    assert verdict.components == {"task_solved": 0.0, "state": 0.0, "communicated": 0.0}


def test_refusing_without_a_look_at_the_order_earns_nothing(env, until, calls):
    until(env, "supportdesk/return_late/0", calls("get_order"))
    refusal = "I'm sorry, it was delivered more than 30 days ago, so I can't take it back."
    verdict = finish(env, refusal, refusal)
    assert verdict.components["task_solved"] == 0.0
    assert verdict.reward <= 0.0


def test_refusing_for_the_wrong_reason_earns_nothing(env, until):
    until(env, "supportdesk/return_late/0", lambda action: "30 days" in str(action))
    verdict = finish(env, *["I'm sorry, it was final sale, so I can't take it back."] * 9)
    assert verdict.components["communicated"] == 0.0
    assert verdict.reward < 0.0


def test_either_of_two_right_outcomes_is_right(env, until, calls):
    task_id = next(
        key for key, task in env.table.tasks.items() if len(task.reference.outcomes) == 2
    )
    methods = [w[0].arguments["method_id"] for w in env.table.tasks[task_id].reference.outcomes]
    action = until(env, task_id, calls("return_items"))
    assert finish(env, action).reward == 1.0
    until(env, task_id, lambda action: "Where should" in str(action))
    proposal, given = _with_method(env, until, calls, task_id, methods[1])
    until(env, task_id, lambda action: "Shall I" in str(action))
    env.step(proposal)
    report = "The return has been set up, and the money refunded to your gift card."
    assert finish(env, given, report).reward == 1.0


def _with_method(env, until, calls, task_id, method_id):
    """The expert's proposal and call, with the refund to the gift card."""
    proposal = until(env, task_id, lambda action: "Shall I" in str(action))
    action = until(env, task_id, calls("return_items"))
    function = action["tool_calls"][0]["function"]
    label = proposal.partition("to your ")[2].partition(".")[0]
    old = env.table.tasks[task_id].reference.outcomes[0][0].arguments["method_id"]
    function["arguments"] = function["arguments"].replace(old, method_id)
    return proposal.replace(label, "gift card"), action


@pytest.mark.parametrize("family", ["cancel", "return_late", "refund_status", "fraud"])
@pytest.mark.parametrize("shortcut", ["All set!", "", "I can't do that.", "Hello. How are you?"])
def test_leaving_the_customer_unserved_is_at_the_bottom_whatever_was_looked_at(
    env, until, family, shortcut
):
    until(env, f"supportdesk/{family}/0", lambda action: bool(env.outcome()["looked_up"]))
    for _ in range(30):
        _, reward, terminated, truncated, info = env.step(shortcut)
        if terminated or truncated:
            break
    assert reward == -1.0
    assert "unserved" in tripped(info["verdict"])


def test_served_customers_who_lose_patience_later_still_count(env, until, calls):
    action = until(env, CANCEL, calls("cancel_order"))
    verdict = finish(env, action, *["Bananas."] * 4)
    assert tripped(verdict) == {"user_gave_up"}
    assert verdict.reward == 0.5


def test_a_change_that_the_rules_forbid_is_at_the_bottom_although_the_customer_wants_it(
    env, until, call
):
    task_id = "supportdesk/return_late/0"
    until(env, task_id, lambda action: "30 days" in str(action))
    order_id = env.outcome()["looked_up"][0]
    items = [row for row in env.table.rows["order_items"] if row[1] == order_id]
    method = next(r[-2] for r in env.table.rows["orders"] if r[0] == order_id)
    env.step("I'm sorry, the 30 days of the return window are over.")
    asked = env.table.scenarios[task_id].script["requests"][0]["ask"][0]
    product = asked.removeprefix("I want to return the ").split(" of ")[0]
    env.step(f"Still: I'd return the {product} of order {order_id} to your card. Shall I?")
    given = {"item_ids": [items[0][0]], "payment_method_id": method}
    verdict = finish(env, call("return_items", order_id=order_id, **given), "It has been returned.")
    assert tripped(verdict) == {"unfounded_change"}
    assert verdict.reward == -1.0


def test_trying_one_reason_after_the_other_until_one_is_accepted_earns_nothing(env, until):
    task_id = "supportdesk/return_late/0"
    until(env, task_id, lambda action: "30 days" in str(action))
    reasons = ["it was shipped, and final sale", "it is somebody else's, and we don't price match"]
    verdict = finish(env, *(f"I'm sorry, no: {reason}." for reason in reasons))
    assert verdict.components["communicated"] == 0.0
    assert verdict.reward == -1.0


def test_one_change_too_many_is_wrong(env, until, calls, call):
    until(env, "supportdesk/change_address/0", calls("change_shipping_address"))
    order_id = env.outcome()["looked_up"][0]
    env.step(expert(env.messages, {}))
    verdict = finish(env, call("cancel_order", order_id=order_id, reason="no longer needed"))
    assert verdict.components["state"] == 0.0


def test_items_may_be_returned_one_after_the_other(env, until, calls, call):
    task_id = next(
        key
        for key, task in env.table.tasks.items()
        if task.metadata["family"] == "return"
        and len(task.reference.outcomes[0][0].arguments["item_ids"]) == 2
    )
    action = until(env, task_id, calls("return_items"))
    given = json.loads(action["tool_calls"][0]["function"]["arguments"])
    first, second = ({**given, "item_ids": [item]} for item in given["item_ids"])
    report = "The return has been set up."
    verdict = finish(env, call("return_items", **first), call("return_items", **second), report)
    assert verdict.reward == 1.0


def test_spelling_of_an_address_does_not_matter(env, until, calls):
    task_id = "supportdesk/change_address/0"
    action = until(env, task_id, calls("change_shipping_address"))
    function = action["tool_calls"][0]["function"]
    for long, short in {"Street": "St.", "Avenue": "Ave.", "Lane": "Ln", "Road": "rd"}.items():
        function["arguments"] = function["arguments"].replace(long, short)
    assert finish(env, action).reward == 1.0


def test_an_amount_that_was_not_told_costs_the_solution(env, until, calls):
    until(env, "supportdesk/refund_status/0", lambda action: "$" in str(action))
    verdict = finish(env, "It was refunded: $1.00.")
    assert verdict.components["communicated"] == 0.0
    assert not verdict.correct


def test_gates_can_be_chosen_and_weighed_by_name():
    chosen = support_gates(
        ["truncated", {"name": "wrong_customer", "floor": False, "penalty": 0.1}]
    )
    assert [(gate.name, gate.floor, gate.penalty) for gate in chosen] == [
        ("truncated", False, 0.5),
        ("wrong_customer", False, 0.1),
    ]
    assert support_gates(None) == DEFAULT_GATES
    assert support_gates(()) == ()
    assert set(OWN_GATES) < {gate.name for gate in DEFAULT_GATES}


async def test_a_task_without_its_reference_is_unscored_not_zero(play):
    env = SupportDeskEnv()
    env.reset(seed=0, options={"task_id": CANCEL, "judging": "deferred"})
    info = {}
    while "episode_record" not in info:
        info = env.step(expert(env.messages, info))[4]
    episode = info["episode_record"]
    assert (await env.scoring.verdict(episode)).reward == 1.0
    bare = episode.model_copy(update={"task": Task(task_id=CANCEL)})
    verdict = await env.scoring.verdict(bare)
    assert (verdict.masked, verdict.reward, verdict.failure_class) == (True, None, "judge")


async def test_a_stored_trace_is_scored_the_same_again():
    client = ScriptedClient(lambda messages: expert(messages, {}))
    tasks = [CANCEL, "supportdesk/fraud/1", "supportdesk/return_late/2"]
    async with Engine("agentgym/SupportDesk-v0", client=client) as engine:
        requests = [EpisodeRequest(seed=0, task_id=task_id) for task_id in tasks]
        traces = [trace async for trace in engine.run(requests)]
    env = SupportDeskEnv()
    for trace in traces:
        assert "reference" not in trace.model_dump_json()
        stored = Trace.model_validate_json(trace.model_dump_json())
        episode = episode_of(stored, env.table.tasks[stored.task_id])
        verdict = await env.scoring.verdict(episode)
        assert verdict.reward == trace.verdict.reward == 1.0
        assert verdict.gates == trace.verdict.gates
