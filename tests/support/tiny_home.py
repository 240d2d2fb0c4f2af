"""A ToolWorld domain small enough for a very small model to play its back end."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from agentgym.envs.toolworld import answers
from agentgym.envs.toolworld.domains import CATALOGUES
from agentgym.envs.toolworld.templates import Catalogue, Posed, Script, Template
from agentgym.simulators.actions import Compute
from agentgym.simulators.domain import Domain
from agentgym.simulators.records import Records, State, one_of

HOME = CATALOGUES["home"].domain
ROOMS = ("attic", "cellar", "kitchen", "study")


def _lit(records: Records, room: str) -> dict[str, Any]:
    devices = [device for device in records.all("device") if device["room"] == room]
    return {"light": "on" if any(device["on"] for device in devices) else "off"}


class IsLit(Template):
    """One call decides it."""

    name = "is_lit"
    split = "train"
    prompts = ("Is the light in the {room} on or off?",)

    def pose(self, rng: random.Random, state: State) -> Posed:
        """Any room."""
        room = rng.choice(ROOMS)
        lit = any(d["on"] for d in state["device"].values() if d["room"] == room)
        return Posed(
            slots={"room": room},
            answer=answers.name("on" if lit else "off", ["on", "off"]),
            evidence=[(room, "light")],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Look."""
        found = yield "get_light", {"room": slots["room"]}
        return str(found["light"])


TINY_HOME = Catalogue(
    Domain(
        name="tiny_home",
        background="A small house.",
        entities=HOME.entities,
        actions=(
            Compute(
                name="get_light",
                description="Whether a room's light is on.",
                entity="device",
                takes={"room": one_of(*ROOMS)},
                gives={"light": one_of("on", "off")},
                function=_lit,
            ),
        ),
        populate=HOME.populate,
    ),
    [IsLit()],
)
