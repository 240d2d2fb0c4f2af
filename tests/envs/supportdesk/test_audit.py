"""The desk's real tools beside a model that has the same records."""

import json

import pytest

from agentgym.clients.scripted import ScriptedClient
from agentgym.envs.supportdesk.env import SupportDeskEnv
from agentgym.envs.supportdesk.policies import POLICIES
from agentgym.simulators.audit import audit
from agentgym.simulators.tools import HostedTools

KEYS = {"get_customer": "customer", "get_order": "order", "get_product": "product"}


def clerk(messages):
    """Reads from the records what a look-up asks for; can't do anything else."""
    seen = json.loads(messages[1]["content"])
    tool, arguments = seen["call"]["tool"], seen["call"]["arguments"]
    answer = {"error": "That is out of order."}
    if tool in KEYS:
        (key,) = arguments.values()
        record = seen["records"].get(KEYS[tool], {}).get(key)
        answer = {"error": "No such thing."} if record is None else {"result": record}
    if tool == "find_customer_by_email":
        for customer in seen["records"]["customer"].values():
            if customer["email"].casefold() == arguments["email"].casefold():
                answer = {"result": {"customer_id": customer["customer_id"]}}
    return json.dumps({"answer": answer, "changes": []})


@pytest.mark.thorough
async def test_a_simulator_that_reads_the_customers_records_agrees_with_the_look_ups():
    env = SupportDeskEnv()
    policy = ScriptedClient(POLICIES["expert"](env, 0))
    found = await audit(env, HostedTools(ScriptedClient(clerk)), calls=120, policy=policy)
    tools = {tool.name: tool for tool in found.tools}
    assert sum(tool.calls for tool in found.tools) == 120
    for name in ("find_customer_by_email", *KEYS):
        tool = tools[name]
        assert tool.calls > 0
        assert (tool.faults, tool.same_status, tool.valid) == (0, tool.calls, tool.results)
        assert (tool.shape, tool.values) == (1.0, 1.0)
    write = tools["cancel_order"]
    assert write.same_status == 0
    assert "out of order" in write.examples[0].simulated
    env.close()


def test_the_records_are_of_the_episodes_customer_and_of_now():
    env = SupportDeskEnv()
    assert env.world is None
    env.reset(options={"task_id": "supportdesk/cancel/0"})
    reference = env.table.tasks["supportdesk/cancel/0"].reference
    order_id = reference.look_up[0]
    assert list(env.world.state["customer"]) == [reference.customer_id]
    assert env.world.state["order"][order_id]["status"] == "pending"
    write = reference.outcomes[0][0]
    call = {"name": write.tool, "arguments": json.dumps(write.arguments)}
    env.step(
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": call}]}
    )
    assert env.world.state["order"][order_id]["status"] == "cancelled"
    env.close()
    assert env.world is None
