"""What the environment itself says to a policy: the rules, and help on a wrong action."""

from collections.abc import Sequence

SYSTEM_PROMPT = """\
You are shopping in a web shop. Find the product that fits the instruction, choose the options it \
asks for, and buy it. Every turn you get the current page and take one action, either by calling a \
tool or by writing it:
search[words] looks for products; it works on every page.
click[target] clicks a button, a product id or an option value of the current page.
click[buy now] on a product's page buys it and ends the visit; you can buy once."""

MOST_NAMED = 60
"""Clickable names listed in a refusal, at most."""
MOST_QUOTED = 200
"""Characters of an attempt repeated in a refusal, at most."""


def explain_action(attempt: str | None, clickables: Sequence[str]) -> str:
    """Say that an action was not possible, and what is.

    Args:
        attempt: The action as written; ``None`` if the message held no action.
        clickables: Names on the current page.
    """
    named = [f"click[{name}]" for name in clickables if name not in {"", "search"}]
    possible = ", ".join(["search[words]", *named[:MOST_NAMED]])
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    if attempt is None:
        fault = (
            "This is not an action. Write search[words] or click[target], and nothing before it."
        )
    else:
        quoted = attempt if len(attempt) <= MOST_QUOTED else f"{attempt[:MOST_QUOTED]}…"
        fault = f"{quoted} is not possible on this page."
    return f"{fault} Possible now: {possible}{more}."
