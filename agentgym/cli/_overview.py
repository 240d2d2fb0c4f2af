"""The overview that `agentgym --help` begins with: commands by what one wants to do, on one page.

A line is a command, or the action of one, in few words; the command's own help has the sentence.
A test holds it against the commands and actions that there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

GROUPS: dict[str, dict[str, str]] = {
    "play": {
        "demo": "watch a small policy learn, here, in minutes",
        "envs": "the environments there are",
        "rollout": "play episodes and write their traces",
        "simulator audit": "a tool simulator against the real tools",
        "webshop-stats": "what WebShop's splits hold",
    },
    "train": {
        "eval verdict": "is training worth it? by episodes played before",
        "train": "train a policy with GRPO (TRL on vLLM)",
        "diagnose": "why a training run fails, or that it doesn't",
    },
    "evaluate": {
        "eval run": "play systems side by side on held-out tasks",
        "eval show": "the figures of a result",
        "eval compare": "two systems: alike or not, difference, p-value",
        "eval power": "how many tasks a difference takes",
        "eval export": "a result for other programs",
        "judge attack": "try to talk a judge round",
        "judge check": "a judge against known verdicts",
        "judge rescore": "judge stored traces again, without playing",
    },
    "look": {
        "view": "traces in a browser: filter, search, side by side",
        "show": "one episode in the terminal",
        "report": "a run as one page with charts",
    },
    "serve": {
        "serve": "rollouts over HTTP: jobs, envs, policy pools",
    },
    "cost": {
        "cost plan": "what a run will cost",
        "cost actual": "what runs have cost",
        "cost calibrate": "a plan from a dozen episodes",
        "cost prices": "the price book",
        "cost speed": "a server's tokens per second",
    },
}
"""What one wants to do, to the commands for it."""


def overview(commands: Iterable[str]) -> str:
    """The commands by what they are for.

    Args:
        commands: All there are; those that no group names come last.
    """
    told = {line.partition(" ")[0] for group in GROUPS.values() for line in group}
    others = {name: "" for name in commands if name not in told}
    groups = {**GROUPS, **({"others": others} if others else {})}
    width = max(len(line) for group in groups.values() for line in group)
    return "\n".join(_lines(groups, width))


def _lines(groups: dict[str, dict[str, str]], width: int) -> Iterator[str]:
    for title, group in groups.items():
        for number, (line, what) in enumerate(group.items()):
            yield f"{title if number == 0 else '':<9} {line:<{width}}  {what}".rstrip()
