"""A scripted expert: serves the scripted customers by the rules, from what the messages show.

It stands in for a very good policy: the check that every task can be solved by somebody who knows
nothing hidden, and the upper yardstick for scores. It reads the customer's phrases by pattern, so
it is at home with `ScriptedUser` and lost with anybody who talks differently.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from agentgym.envs.supportdesk.consent import is_yes
from agentgym.envs.supportdesk.reading import View, has_word
from agentgym.envs.supportdesk.service import TODAY
from agentgym.types import Action, Message

RETURN_DAYS = 30
LATE_DAYS = 5
LATE_CREDIT = 15.0


def call(tool: str, **arguments: Any) -> Action:
    """An action that calls one tool."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    calls = [{"id": "call_0", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def money(amount: float) -> str:
    """Dollars as they are told."""
    return f"${amount:,.2f}"


def expert(messages: Sequence[Message], info: Mapping[str, Any]) -> Action:
    """The next action of the expert."""
    return Expert(View(messages)).act()


class Expert:
    """One decision.

    Args:
        view: The conversation.
    """

    def __init__(self, view: View) -> None:
        self._view = view

    def act(self) -> Action:
        """Identify, look up, then serve."""
        view = self._view
        if view.customer_id is None:
            return self._identify()
        if view.profile is None:
            return call("get_customer", customer_id=view.customer_id)
        if view.wish is None:
            return "Thank you. How can I help you?"
        if view.wish == "spending":
            return self._tell_spending()
        return self._look_up() or self._serve()

    def _identify(self) -> Action:
        view = self._view
        if view.email and json.dumps({"email": view.email}) not in view.tried:
            return call("find_customer_by_email", email=view.email)
        found = view.name_and_zip
        if found and not view.several:
            first, last, zip_code = found
            given = {"first_name": first, "last_name": last, "zip_code": zip_code}
            if json.dumps(given, sort_keys=True) not in view.tried:
                return call("find_customer_by_name_zip", **given)
        if view.several:
            return "Several customers have that name and zip code. What is your email address?"
        return (
            "I'll be glad to help. Could you please give me your email address, or your full name "
            "and zip code?"
        )

    # --- finding the order --------------------------------------------------------------------

    def _look_up(self) -> Action | None:
        """Get the order that the wish is about; None once it is there."""
        view, profile = self._view, self._view.profile or {}
        if view.order_ids:
            missing = [each for each in view.order_ids[-1:] if each not in view.orders]
            return call("get_order", order_id=missing[0]) if missing else None
        if "with the " not in " ".join(view.said(of_wish=False)):
            return "Which order number is this about?"
        missing = [each for each in profile["order_ids"] if each not in view.orders]
        if missing:
            return call("get_order", order_id=missing[0])
        return None if self._described() else "Which order number is this about?"

    def _described(self) -> dict[str, Any] | None:
        """The customer's latest order that has a product they named."""
        text = " ".join(self._view.said(of_wish=False)).casefold()
        own = sorted(self._view.orders.values(), key=lambda order: str(order["placed_on"]))
        fitting = [o for o in own if any(i["product"].casefold() in text for i in o["items"])]
        return fitting[-1] if fitting else None

    @property
    def _order(self) -> dict[str, Any]:
        ids = self._view.order_ids
        found = self._view.orders.get(ids[-1]) if ids else self._described()
        if found is None:
            raise RuntimeError("the order is looked up before it is used")
        return found

    @property
    def _item(self) -> dict[str, Any]:
        """The item that the customer named, or the first."""
        text = " ".join(self._view.said()).casefold()
        items: list[dict[str, Any]] = self._order["items"]
        if self._view.wish == "return" and len(items) > 1:
            text = text.partition(" from ")[0] if " from " in text else text.partition(" of ")[0]
        return next((i for i in items if i["product"].casefold() in text), items[0])

    def _method(self, method_id: str) -> dict[str, Any]:
        methods = (self._view.profile or {})["payment_methods"]
        return next(m for m in methods if m["payment_method_id"] == method_id)

    def _named_method(self) -> dict[str, Any] | None:
        """The payment method that the customer named last."""
        methods = (self._view.profile or {})["payment_methods"]
        for line in reversed(self._view.said()):
            for method in reversed(methods):
                if method["label"].split(" ending")[0].casefold() in line.casefold():
                    chosen: dict[str, Any] = method
                    return chosen
        return None

    # --- serving ------------------------------------------------------------------------------

    def _serve(self) -> Action:
        if self._order["customer_id"] != self._view.customer_id:
            return (
                f"I'm sorry, but order {self._order['order_id']} belongs to another customer, so I "
                "can't tell or change anything about it."
            )
        serve = {
            "fraud": self._transfer,
            "safety": self._transfer,
            "lost": self._transfer,
            "wrong_item": self._put_right,
            "price_match": self._refuse_price_match,
            "credit": self._compensate,
            "refund_status": self._tell_refund,
            "address": self._readdress,
            "payment": self._change_payment,
            "exchange": self._exchange,
            "return": self._take_back,
            "cancel": self._cancel,
        }
        return serve[str(self._view.wish)]()

    def _change(self, tool: str, arguments: dict[str, Any], plan: str, report: str) -> Action:
        """Propose a change, make it once the customer agreed to that, then report it."""
        if self._view.was_done(tool, arguments):
            return report
        proposal = f"{plan} Shall I go ahead?"
        if self._view.last_said == proposal and is_yes(self._view.last):
            return call(tool, **arguments)
        return proposal

    def _cancel(self) -> Action:
        order = self._order
        order_id = order["order_id"]
        if order["status"] != "pending":
            return (
                f"I'm sorry, but order {order_id} was already shipped, so it can't be cancelled "
                "any more."
            )
        text = " ".join(self._view.said()).casefold()
        reason = "ordered by mistake" if "mistake" in text else "no longer needed"
        if "mistake" not in text and "need it any more" not in text:
            return "What is the reason for the cancellation?"
        total, label = money(order["total"]), self._method(order["payment_method_id"])["label"]
        return self._change(
            "cancel_order",
            {"order_id": order_id, "reason": reason},
            f"I would cancel order {order_id} ({reason}) and refund {total} to your {label}.",
            f"Order {order_id} has been cancelled, and {total} refunded to your {label}.",
        )

    def _readdress(self) -> Action:
        address, order_id = self._view.address, self._order["order_id"]
        if address is None:
            return "What is the new address?"
        line = "{street}, {city}, {state} {zip_code}".format(**address)
        return self._change(
            "change_shipping_address",
            {"order_id": order_id, **address},
            f"I would change the shipping address of order {order_id} to {line}.",
            f"The shipping address of order {order_id} has been changed to {line}.",
        )

    def _change_payment(self) -> Action:
        order, method = self._order, self._named_method()
        if method is None:
            return "Which payment method would you like to use?"
        order_id, total = order["order_id"], money(order["total"])
        if method.get("balance", order["total"]) < order["total"]:
            return (
                f"I'm sorry, but the balance of your gift card is {money(method['balance'])}, "
                f"which doesn't cover the {total} of order {order_id}, so I can't charge it."
            )
        return self._change(
            "change_payment_method",
            {"order_id": order_id, "payment_method_id": method["payment_method_id"]},
            f"I would change the payment of order {order_id}: charge {total} to your "
            f"{method['label']} and refund the first charge.",
            f"The payment method of order {order_id} has been changed: {total} to your "
            f"{method['label']}.",
        )

    def _days_since_delivery(self) -> int:
        delivered = date.fromisoformat(self._order["delivered_on"])
        return (date.fromisoformat(TODAY) - delivered).days

    def _why_not_taken_back(self, item: Mapping[str, Any], what: str) -> str | None:
        """The refusal of a return or exchange, if the rules forbid it."""
        if item["final_sale"]:
            product = item["product"]
            return f"I'm sorry, but the {product} was a final sale item, which can't be {what}."
        if self._days_since_delivery() > RETURN_DAYS:
            return (
                f"I'm sorry, but order {self._order['order_id']} was delivered more than 30 days "
                f"ago, so it can't be {what} any more."
            )
        return None

    def _take_back(self) -> Action:
        order, view = self._order, self._view
        everything = any(word in view.said()[0] for word in ("everything", "all of"))
        items = order["items"] if everything else [self._item]
        for item in items:
            if refusal := self._why_not_taken_back(item, "returned"):
                return refusal
        text = " ".join(view.said()).casefold()
        original = self._method(order["payment_method_id"])
        method = self._named_method() or (original if "don't mind" in text else None)
        if method is None:
            return (
                "Where should the refund go: to the original payment method or to your gift card?"
            )
        order_id, label = order["order_id"], method["label"]
        amount = money(sum(item["price"] for item in items))
        products = " and the ".join(item["product"] for item in items)
        return self._change(
            "return_items",
            {
                "order_id": order_id,
                "item_ids": [item["item_id"] for item in items],
                "payment_method_id": method["payment_method_id"],
            },
            f"I would return the {products} of order {order_id} and refund {amount} to your "
            f"{label}.",
            f"The return for order {order_id} has been set up: {amount} refunded to your {label}.",
        )

    def _exchange(self) -> Action:
        order, item = self._order, self._item
        if order["status"] == "delivered" and (
            refusal := self._why_not_taken_back(item, "exchanged")
        ):
            return refusal
        product = self._view.products.get(item["product_id"])
        if product is None:
            return call("get_product", product_id=item["product_id"])
        wanted = self._wanted_variant(item, product)
        looks = [", ".join(v["options"].values()) for v in product["variants"] if v["in_stock"]]
        if wanted is None:
            return f"Which variant would you like instead? In stock are: {'; '.join(looks)}."
        if not wanted["in_stock"]:
            return (
                f"I'm sorry, but the {item['product']} in {', '.join(wanted['options'].values())} "
                f"is out of stock. I can offer: {'; '.join(looks)}."
            )
        return self._swap(item, wanted)

    def _wanted_variant(
        self, item: Mapping[str, Any], product: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """The variant that the customer named last, in what differs from theirs."""
        for line in reversed(self._view.said()):
            named = {
                key: value
                for variant in product["variants"]
                for key, value in variant["options"].items()
                if value != item["options"][key] and has_word(line, value)
            }
            options = {**item["options"], **named}
            if named:
                return next((v for v in product["variants"] if v["options"] == options), None)
        return None

    def _swap(self, item: Mapping[str, Any], wanted: Mapping[str, Any]) -> Action:
        """Change an item of a pending order, or exchange one of a delivered order."""
        order = self._order
        order_id, pending = order["order_id"], order["status"] == "pending"
        difference = round(wanted["price"] - item["price"], 2)
        original = self._method(order["payment_method_id"])
        method = original if pending or not difference else self._named_method()
        if method is None:
            return "Which payment method should I use for the price difference?"
        settled = "There is no price difference."
        if difference:
            verb = "charge" if difference > 0 else "refund"
            settled = f"The difference of {money(abs(difference))}: {verb} to your "
            settled += f"{method['label']}."
        looks = ", ".join(wanted["options"].values())
        arguments = {
            "order_id": order_id,
            "item_ids": [item["item_id"]],
            "new_variant_ids": [wanted["variant_id"]],
        }
        if not pending:
            arguments["payment_method_id"] = method["payment_method_id"]
        return self._change(
            "change_items" if pending else "exchange_items",
            arguments,
            f"I would exchange the {item['product']} of order {order_id} for the one in {looks}. "
            f"{settled}",
            f"Done: the {item['product']} of order {order_id} has been exchanged for the one in "
            f"{looks}. {settled}",
        )

    def _put_right(self) -> Action:
        order = self._order
        wrong = [i for i in order["items"] if i["packed_variant_id"] != i["variant_id"]]
        if not wrong:
            return f"I see no packing error in order {order['order_id']}. What did you receive?"
        item = wrong[0]
        return self._change(
            "exchange_items",
            {
                "order_id": order["order_id"],
                "item_ids": [item["item_id"]],
                "new_variant_ids": [item["variant_id"]],
                "payment_method_id": order["payment_method_id"],
            },
            f"I would exchange the {item['product']} of order {order['order_id']} and send the one "
            "you ordered, free of charge.",
            f"Done: the {item['product']} of order {order['order_id']} has been exchanged for the "
            "one you ordered.",
        )

    # --- nothing to change --------------------------------------------------------------------

    def _tell_refund(self) -> Action:
        refunds = [p for p in self._order["payments"] if p["kind"] == "refund"]
        if not refunds:
            return f"I see no refund for order {self._order['order_id']}."
        label = self._method(refunds[0]["payment_method_id"])["label"]
        return (
            f"For order {self._order['order_id']}, {money(refunds[0]['amount'])} went back to your "
            f"{label} on {refunds[0]['day']}."
        )

    def _tell_spending(self) -> Action:
        view = self._view
        for order_id in view.order_ids:
            if order_id not in view.orders:
                return call("get_order", order_id=order_id)
        totals = [view.orders[order_id]["total"] for order_id in view.order_ids]
        return f"Together they cost {money(sum(totals))}."

    def _refuse_price_match(self) -> Action:
        return (
            "I'm sorry, but we don't price match: I can't give back a difference to another "
            "shop's price."
        )

    def _compensate(self) -> Action:
        order = self._order
        order_id = order["order_id"]
        promised, came = (date.fromisoformat(order[key]) for key in ("promised_on", "delivered_on"))
        if (came - promised).days <= LATE_DAYS:
            return (
                f"I'm sorry for the wait, but I can't compensate you: order {order_id} came "
                "no more than 5 days after its promised date."
            )
        amount = money(LATE_CREDIT)
        return self._change(
            "issue_store_credit",
            {"order_id": order_id, "amount": LATE_CREDIT},
            f"I would issue {amount} of store credit for the late delivery of order {order_id}.",
            f"Store credit of {amount} for order {order_id} has been issued to your gift card.",
        )

    def _transfer(self) -> Action:
        reason = {
            "fraud": "suspected fraud",
            "safety": "product safety",
            "lost": "lost parcel",
        }[str(self._view.wish)]
        order_id = self._order["order_id"]
        summary = f"The customer reports about order {order_id}: {self._view.said()[0]}"
        return call("transfer_to_human", reason=reason, summary=summary)
