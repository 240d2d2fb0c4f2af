"""A small theatre whose bookings are simulated, and models that play a part by a script."""

from __future__ import annotations

import copy
import json

from agentgym.client import Completion
from agentgym.simulator import SimulatedTool, SimulatedWorld

BOOKING = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "name": {"type": "string"},
        "seats": {"type": "integer"},
    },
    "required": ["id"],
    "additionalProperties": False,
}
LIST = {
    "type": "object",
    "properties": {"bookings": {"type": "array", "items": BOOKING}},
    "required": ["bookings"],
}
DONE = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


def booking_tool(name, effect, parameters, result, required=()):
    return SimulatedTool(
        name=name,
        description=name.replace("_", " ").capitalize() + ".",
        parameters={"properties": parameters, "required": list(required)},
        result=result,
        effect=effect,
        entity="booking",
        key="id",
    )


ID, NAME, SEATS = {"type": "string"}, {"type": "string"}, {"type": "integer", "minimum": 1}
TOOLS = (
    booking_tool("create_booking", "create", {"name": NAME, "seats": SEATS}, BOOKING, ["name"]),
    booking_tool("get_booking", "read", {"id": ID}, BOOKING, ["id"]),
    booking_tool("list_bookings", "read", {"name": NAME}, LIST),
    booking_tool("change_booking", "update", {"id": ID, "seats": SEATS}, BOOKING, ["id", "seats"]),
    booking_tool("cancel_booking", "delete", {"id": ID}, DONE, ["id"]),
)


class Backend:
    """A model that answers by a script and keeps the requests it got."""

    def __init__(self, *replies):
        self.prompts, self.sampling, self.sessions = [], [], []
        self._replies = iter(replies)

    async def complete(self, messages, tools, sampling, *, session=None):
        self.prompts.append(copy.deepcopy(list(messages)))
        self.sampling.append(sampling)
        self.sessions.append(session)
        reply = next(self._replies)
        if isinstance(reply, BaseException):
            raise reply
        if isinstance(reply, Completion):
            return reply
        text = reply if isinstance(reply, str) else json.dumps(reply)
        return Completion(message={"role": "assistant", "content": text})

    async def release(self, session): ...

    async def aclose(self): ...


def theatre(*tools, seed=5):
    """A new world."""
    background = "A small theatre."
    return SimulatedWorld(tools=tools or TOOLS, seed=seed, background=background, session="e1")
