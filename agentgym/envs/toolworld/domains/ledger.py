"""A bank's back office: accounts, entries, currencies, transfers."""

import random
from collections.abc import Mapping
from typing import Any

from agentgym.envs.toolworld import answers
from agentgym.envs.toolworld.names import dates, people
from agentgym.envs.toolworld.templates import (
    Catalogue,
    Posed,
    Script,
    Template,
    keys,
    only_extreme,
    rows_of,
)
from agentgym.errors import ToolError
from agentgym.simulators.actions import Create, Find, Get, Update
from agentgym.simulators.domain import Domain
from agentgym.simulators.records import (
    AMOUNT,
    DATE,
    FLAG,
    TEXT,
    Entity,
    Records,
    Row,
    State,
    one_of,
)

_CURRENCIES = ("CHF", "NOK", "PLN", "SEK")
_CATEGORIES = ("dining", "fuel", "groceries", "travel")
_MERCHANTS = ["Bellamy", "Cortado", "Dockside", "Everline", "Foxglove", "Greenmart"]

ACCOUNT = Entity(
    name="account",
    key="account_id",
    prefix="ac",
    fields={
        "owner": TEXT,
        "kind": one_of("checking", "savings"),
        "currency": one_of(*_CURRENCIES),
        "balance": AMOUNT,
        "status": one_of("active", "frozen"),
    },
    moves={"status": {"active": ("frozen",), "frozen": ("active",)}},
)
ENTRY = Entity(
    name="entry",
    plural="entries",
    key="entry_id",
    prefix="en",
    fields={
        "account_id": TEXT,
        "date": DATE,
        "merchant": one_of(*_MERCHANTS),
        "category": one_of(*_CATEGORIES),
        "amount": AMOUNT,
        "flagged": FLAG,
    },
)
RATE = Entity(
    name="rate",
    key="currency",
    prefix="rate",
    fields={"euros": {**AMOUNT, "description": "Euros for one unit of the currency"}},
)
TRANSFER = Entity(
    name="payment",
    key="payment_id",
    prefix="pm",
    fields={
        "from_account": TEXT,
        "to_account": TEXT,
        "amount": {"type": "number", "exclusiveMinimum": 0},
    },
    refers={"from_account": "account", "to_account": "account"},
)


def populate(rng: random.Random) -> dict[str, list[Row]]:
    """Eight owners with two accounts each, and three weeks of card entries."""
    accounts: list[Row] = []
    for owner in people(rng, 8):
        currency = rng.choice(_CURRENCIES)
        for kind, key in zip(("checking", "savings"), keys(rng, "ac", 2), strict=True):
            while key in {account["account_id"] for account in accounts}:
                key = f"ac{rng.randrange(1000, 9000)}"
            accounts.append(
                {
                    "account_id": key,
                    "owner": owner,
                    "kind": kind,
                    "currency": currency,
                    "balance": rng.randrange(400, 9000) / 2,
                    "status": "active",
                }
            )
    checking = [account for account in accounts if account["kind"] == "checking"]
    days = dates(rng, 20)
    entries = [
        {
            "entry_id": key,
            "account_id": rng.choice(checking)["account_id"],
            "date": rng.choice(days),
            "merchant": rng.choice(_MERCHANTS),
            "category": rng.choice(_CATEGORIES),
            "amount": rng.randrange(20, 900) / 4,
            "flagged": False,
        }
        for key in keys(rng, "en", 90)
    ]
    for first, again in zip(rng.sample(entries[:45], 6), rng.sample(entries[45:], 6), strict=True):
        again.update({name: first[name] for name in first if name not in ("entry_id", "flagged")})
    values = rng.sample(range(8, 110), len(_CURRENCIES))
    rates = [{"currency": c, "euros": v / 100} for c, v in zip(_CURRENCIES, values, strict=True)]
    return {"account": accounts, "entry": entries, "rate": rates, "payment": []}


def _can_pay(records: Records, arguments: Mapping[str, Any], row: Row) -> None:
    source = records.get("account", arguments["from_account"])
    target = records.get("account", arguments["to_account"])
    if source is target:
        raise ToolError("Error: from_account and to_account are the same.")
    if source["currency"] != target["currency"]:
        raise ToolError(
            f"Error: the accounts are in {source['currency']} and {target['currency']}."
        )
    for account in (source, target):
        if account["status"] == "frozen":
            raise ToolError(f"Error: account {account['account_id']} is frozen.")
    if source["balance"] < arguments["amount"]:
        raise ToolError(_has_only(source))


def _has_only(account: Row) -> str:
    return f"Error: account {account['account_id']} has only {account['balance']:.2f}."


def _pay(records: Records, arguments: Mapping[str, Any], row: Row) -> None:
    source = records.get("account", row["from_account"])
    target = records.get("account", row["to_account"])
    source["balance"] = round(source["balance"] - row["amount"], 2)
    target["balance"] = round(target["balance"] + row["amount"], 2)


DOMAIN = Domain(
    name="ledger",
    background="A bank's back office. Everybody has a checking and a savings account in one "
    "currency; entries are card payments from a checking account.",
    entities=(ACCOUNT, ENTRY, RATE, TRANSFER),
    actions=(
        Find(
            name="find_accounts",
            description="Accounts of an owner, by full name.",
            entity="account",
            where={"owner": "owner", "kind": "kind"},
            required=("owner",),
            shows=("kind",),
        ),
        Get(name="get_account", description="Balance, currency and status.", entity="account"),
        Find(
            name="list_entries",
            description="Card entries of an account, by category, merchant or period.",
            entity="entry",
            where={
                "account_id": "account_id",
                "category": "category",
                "merchant": "merchant",
                "from_date": ("date", "at_least"),
                "to_date": ("date", "at_most"),
            },
            required=("account_id",),
        ),
        Get(name="get_rate", description="What a currency is worth in euros.", entity="rate"),
        Create(
            name="send_payment",
            description="Move an amount between two accounts of the same currency.",
            entity="payment",
            takes=("from_account", "to_account", "amount"),
            check=_can_pay,
            then=_pay,
        ),
        Update(
            name="flag_entry",
            description="Mark an entry as disputed.",
            entity="entry",
            sets={"flagged": True},
            when={"flagged": (False,)},
        ),
        Update(
            name="set_account_status",
            description="Freeze an account, or activate it again.",
            entity="account",
            takes=("status",),
        ),
    ),
    populate=populate,
)


def _checking(rng: random.Random, state: State) -> tuple[Row, list[Row]]:
    account = rng.choice(rows_of(state, "account", kind="checking"))
    return account, rows_of(state, "entry", account_id=account["account_id"])


class SpentInEuros(Template):
    """A category's total, converted."""

    name = "spent_in_euros"
    split = "train"
    prompts = (
        (
            "How much did {owner} spend on {category} from the checking account, over all entries,"
            " in euros at the bank's rate? Round to cents."
        ),
        (
            "Convert into euros what all {category} entries of the checking account of {owner} add"
            " up to. Round to cents."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """At least two entries of the category."""
        account, entries = _checking(rng, state)
        category = rng.choice(_CATEGORIES)
        chosen = [entry for entry in entries if entry["category"] == category]
        if len(chosen) < 2:
            return None
        total = sum(entry["amount"] for entry in chosen)
        total *= state["rate"][account["currency"]]["euros"]
        if not answers.rounds_clearly(total):
            return None
        return Posed(
            slots={"owner": account["owner"], "category": category},
            answer=answers.number(total),
            evidence=[*(entry["entry_id"] for entry in chosen), (account["currency"], "euros")],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Account, currency, entries, rate."""
        whose = {"owner": slots["owner"], "kind": "checking"}
        found = yield "find_accounts", whose
        account = yield "get_account", {"account_id": found["accounts"][0]["account_id"]}
        which = {"account_id": account["account_id"], "category": slots["category"]}
        listed = yield "list_entries", which
        rate = yield "get_rate", {"currency": account["currency"]}
        return f"{sum(entry['amount'] for entry in listed['entries']) * rate['euros']:.2f}"


class TopMerchant(Template):
    """Where most of the money went."""

    name = "top_merchant"
    split = "train"
    prompts = (
        (
            "At which merchant did {owner} spend most in total, over all entries of the checking "
            "account?"
        ),
        (
            "Add up the checking account's entries of {owner} by merchant. Which merchant has the "
            "highest sum?"
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """One merchant leads, and it isn't simply that of the largest entry."""
        account, entries = _checking(rng, state)
        sums: dict[str, float] = {}
        for entry in entries:
            sums[entry["merchant"]] = sums.get(entry["merchant"], 0) + entry["amount"]
        totals = [{"merchant": merchant, "sum": total} for merchant, total in sums.items()]
        top = only_extreme(totals, "sum", lowest=False)
        if top is None or len(sums) < 3:
            return None
        return Posed(
            slots={"owner": account["owner"]},
            answer=answers.name(top["merchant"], _MERCHANTS),
            evidence=[entry["entry_id"] for entry in entries],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Account, entries, sums."""
        whose = {"owner": slots["owner"], "kind": "checking"}
        found = yield "find_accounts", whose
        listed = yield "list_entries", {"account_id": found["accounts"][0]["account_id"]}
        sums: dict[str, float] = {}
        for entry in listed["entries"]:
            sums[entry["merchant"]] = sums.get(entry["merchant"], 0) + entry["amount"]
        return max(sums, key=lambda merchant: sums[merchant])


class TopUpSavings(Template):
    """Move what is missing, if there is enough."""

    name = "top_up_savings"
    none_share = 0.3
    split = "train"
    prompts = (
        (
            "Bring the savings account of {owner} to exactly {target} with one payment from their "
            "checking account, and answer with the amount moved. If the checking account doesn't "
            "have enough, move nothing and answer none."
        ),
        (
            "{owner} wants {target} in savings. Pay the difference from checking and answer with "
            "it; if checking can't cover it, pay nothing and answer none."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """A target above what there is; a third can't be paid."""
        saved = rng.choice(rows_of(state, "account", kind="savings"))
        (paying,) = rows_of(state, "account", owner=saved["owner"], kind="checking")
        share = rng.choice((0.3, 0.6, 1.4))
        missing = round(paying["balance"] * share)
        target = saved["balance"] + missing
        both = {"from_account": paying["account_id"], "to_account": saved["account_id"]}
        pays = missing <= paying["balance"]
        return Posed(
            slots={"owner": saved["owner"], "target": f"{target:.2f}"},
            answer=answers.number(missing) if pays else answers.no_number(),
            evidence=[
                (saved["account_id"], "balance"),
                {(paying["account_id"], "balance"), _has_only(paying)},
            ],
            writes=[("send_payment", {**both, "amount": float(missing)})] if pays else (),
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Both accounts, perhaps a payment."""
        found = yield "find_accounts", {"owner": slots["owner"]}
        accounts = {}
        for entry in found["accounts"]:
            which = {"account_id": entry["account_id"]}
            accounts[entry["kind"]] = yield "get_account", which
        missing = float(slots["target"]) - accounts["savings"]["balance"]
        if missing > accounts["checking"]["balance"]:
            return "none"
        both = {
            "from_account": accounts["checking"]["account_id"],
            "to_account": accounts["savings"]["account_id"],
        }
        yield "send_payment", {**both, "amount": missing}
        return f"{missing:.2f}"


class ChargedTwice(Template):
    """Which entry repeats another, if one does."""

    name = "charged_twice"
    none_share = 0.3
    split = "test"
    prompts = (
        (
            "{owner} says the checking account was charged twice: same day, merchant and amount. "
            "Flag both entries and answer with the amount of one, or answer none if no two entries"
            " agree."
        ),
        (
            "Look for two entries of the same day, merchant and amount in the checking account of "
            "{owner}. Flag the two and answer with the amount of a single one; without such a "
            "pair, flag nothing and answer none."
        ),
    )

    def pose(self, rng: random.Random, state: State) -> Posed | None:
        """An account with one pair, or with none."""
        account, entries = _checking(rng, state)
        pairs = [
            (one, other)
            for position, one in enumerate(entries)
            for other in entries[:position]
            if all(one[name] == other[name] for name in ("date", "merchant", "amount"))
        ]
        if len(pairs) > 1 or len(entries) < 3:
            return None
        amount = answers.number(pairs[0][0]["amount"]) if pairs else answers.no_number()
        return Posed(
            slots={"owner": account["owner"]},
            answer=amount,
            evidence=[entry["entry_id"] for entry in entries],
            writes=[
                ("flag_entry", {"entry_id": entry["entry_id"]}) for pair in pairs for entry in pair
            ],
        )

    def solve(self, slots: Mapping[str, str]) -> Script:
        """Account, entries, flags."""
        whose = {"owner": slots["owner"], "kind": "checking"}
        found = yield "find_accounts", whose
        listed = yield "list_entries", {"account_id": found["accounts"][0]["account_id"]}
        seen: dict[tuple[Any, ...], Row] = {}
        for entry in listed["entries"]:
            what = (entry["date"], entry["merchant"], entry["amount"])
            if what in seen:
                for each in (seen[what], entry):
                    yield "flag_entry", {"entry_id": each["entry_id"]}
                return f"{entry['amount']:.2f}"
            seen[what] = entry
        return "none"


CATALOGUE = Catalogue(DOMAIN, (SpentInEuros(), TopMerchant(), TopUpSavings(), ChargedTwice()))
