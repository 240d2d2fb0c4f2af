"""The desk: the tools an agent has, on one episode's database and case file.

The tools do what they are told as far as the shop's systems can (`service`). They don't enforce the
written policy: an agent that cancels without asking cancels, and the case file has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field

from agentgym.envs.supportdesk import service
from agentgym.envs.supportdesk.case_file import (
    CaseFile,
    claims_falsely,
    discloses,
    said_by_customer,
)
from agentgym.envs.supportdesk.consent import agreed_to, required_words
from agentgym.envs.supportdesk.reference import APPLY, TransferReason
from agentgym.envs.supportdesk.store import Store
from agentgym.errors import ResetNeeded, ToolError
from agentgym.simulator import UserDialogue
from agentgym.simulators.hearing import plain
from agentgym.simulators.helpers import calculate
from agentgym.tools import Tool, ToolBox

CancelReason = Literal["no longer needed", "ordered by mistake"]


class Desk:
    """One agent's desk, for one episode after the other.

    Args:
        on_transfer: Called when the conversation goes to a human.
    """

    def __init__(self, on_transfer: Callable[[], None]) -> None:
        self._on_transfer = on_transfer
        self._store: Store | None = None
        self.case = CaseFile()
        self.dialogue: UserDialogue | None = None

    @property
    def store(self) -> Store:
        """The episode's database.

        Raises:
            ResetNeeded: If no episode is running.
        """
        if self._store is None:
            raise ResetNeeded("no episode is running: call reset() first")
        return self._store

    def begin(self, store: Store, case: CaseFile, dialogue: UserDialogue) -> None:
        """Start an episode, or take one up from a snapshot."""
        self.close()
        self._store, self.case, self.dialogue = store, case, dialogue

    def close(self) -> None:
        """Forget the episode."""
        if self._store is not None:
            self._store.close()
        self._store = self.dialogue = None

    def hear(self, text: str) -> None:
        """Note what the customer is about to be told."""
        if self.dialogue is not None:
            self.case.note_line(
                text,
                discloses=discloses(self.store, self.case, self.dialogue, text),
                false_claim=claims_falsely(self.store, self.case, text),
            )

    def toolbox(self) -> ToolBox:
        """The tools."""
        functions = (
            *(self.find_customer_by_email, self.find_customer_by_name_zip, self.get_customer),
            *(self.list_orders, self.get_order, self.search_products, self.get_product),
            *(self.calculate, self.cancel_order, self.change_shipping_address),
            *(self.change_payment_method, self.change_items, self.return_items),
            *(self.exchange_items, self.issue_store_credit, self.transfer_to_human),
        )
        return ToolBox([Tool(function, inline=True) for function in functions])

    # --- looking things up --------------------------------------------------------------------

    def find_customer_by_email(self, email: str) -> dict[str, Any]:
        """Find the customer who has an email address.

        Args:
            email: As the customer gave it.
        """
        query = "SELECT * FROM customers WHERE email = ?"
        row = self.store.one(query, email.strip().lower())
        if row is None:
            raise ToolError(f"Error: no customer has the email address {email!r:.80}.")
        self.case.identify(row["customer_id"], said=self._was_said(email))
        return {"customer_id": row["customer_id"]}

    def find_customer_by_name_zip(
        self, first_name: str, last_name: str, zip_code: str
    ) -> dict[str, Any]:
        """Find the customer of a name and zip code.

        Args:
            first_name: As the customer gave it.
            last_name: As the customer gave it.
            zip_code: Of their home address, five digits.
        """
        rows = self.store.all(
            "SELECT * FROM customers WHERE lower(first_name) = ? AND lower(last_name) = ?"
            " AND zip = ?",
            *(first_name.strip().lower(), last_name.strip().lower(), zip_code.strip()),
        )
        if not rows:
            raise ToolError("Error: no customer has that name and zip code.")
        if len(rows) > 1:
            raise ToolError(
                f"Error: {len(rows)} customers have that name and zip code; "
                "ask for the email address and use find_customer_by_email."
            )
        said = all(map(self._was_said, (first_name, last_name, zip_code)))
        self.case.identify(rows[0]["customer_id"], said=said)
        return {"customer_id": rows[0]["customer_id"]}

    def get_customer(self, customer_id: str) -> dict[str, Any]:
        """A customer's name, email, address, payment methods and order numbers.

        Args:
            customer_id: As a find_customer tool gave it.
        """
        found = service.customer(self.store, customer_id)
        self.case.touch(customer_id)
        return found

    def list_orders(self, customer_id: str) -> list[dict[str, Any]]:
        """A customer's orders: number, date and products, not the details.

        Args:
            customer_id: As a find_customer tool gave it.
        """
        order_ids = service.customer(self.store, customer_id)["order_ids"]
        self.case.touch(customer_id)
        found = [service.order(self.store, order_id) for order_id in order_ids]
        return [
            {
                "order_id": order["order_id"],
                "placed_on": order["placed_on"],
                "products": [item["product"] for item in order["items"]],
            }
            for order in found
        ]

    def get_order(self, order_id: str) -> dict[str, Any]:
        """All about an order: whose it is, status, dates, address, items, payments.

        Args:
            order_id: Such as W1234567.
        """
        found = service.order(self.store, order_id)
        self.case.touch(found["customer_id"], mentioned=self._was_said(order_id))
        if self.case.identified is not None:
            self.case.looked_up.append(order_id)
        return found

    def search_products(self, query: str) -> list[dict[str, Any]]:
        """Find products by words of their name or category; an empty query lists all.

        Args:
            query: Words, such as "rain jacket".
        """
        words = query.lower().split()
        rows = self.store.all("SELECT * FROM products")
        return [
            row
            for row in rows
            if all(w in f"{row['name']} {row['category']}".lower() for w in words)
        ]

    def get_product(self, product_id: str) -> dict[str, Any]:
        """A product's variants with options, price and stock.

        Args:
            product_id: Such as P12345.
        """
        return service.product(self.store, product_id)

    def calculate(self, expression: str) -> float:
        """Work out an arithmetic expression.

        Args:
            expression: Numbers, + - * / and parentheses, such as "(19.99 + 5) * 2".
        """
        return round(float(calculate(expression)), 6)

    # --- changing things ----------------------------------------------------------------------

    def cancel_order(self, order_id: str, reason: CancelReason) -> dict[str, Any]:
        """Cancel a pending order and refund it to its payment method.

        Args:
            order_id: Such as W1234567.
            reason: The customer's reason.
        """
        return self._change("cancel_order", order_id=order_id, reason=reason)

    def change_shipping_address(
        self, order_id: str, street: str, city: str, state: str, zip_code: str
    ) -> dict[str, Any]:
        """Send a pending order to another address.

        Args:
            order_id: Such as W1234567.
            street: House number and street.
            city: City.
            state: Two letters.
            zip_code: Five digits.
        """
        address = {"street": street, "city": city, "state": state, "zip_code": zip_code}
        return self._change("change_shipping_address", order_id=order_id, **address)

    def change_payment_method(self, order_id: str, payment_method_id: str) -> dict[str, Any]:
        """Charge a pending order to another of the customer's payment methods.

        Args:
            order_id: Such as W1234567.
            payment_method_id: As get_customer gives it.
        """
        return self._change("change_payment_method", order_id=order_id, method_id=payment_method_id)

    def change_items(
        self, order_id: str, item_ids: list[str], new_variant_ids: list[str]
    ) -> dict[str, Any]:
        """Swap items of a pending order for other variants of the same products.

        Args:
            order_id: Such as W1234567.
            item_ids: Items to swap.
            new_variant_ids: What they are swapped for, in the same order.
        """
        pairs = {"item_ids": item_ids, "variant_ids": new_variant_ids}
        return self._change("change_items", order_id=order_id, **pairs)

    def return_items(
        self, order_id: str, item_ids: list[str], payment_method_id: str
    ) -> dict[str, Any]:
        """Take back delivered items and refund their price.

        Args:
            order_id: Such as W1234567.
            item_ids: Items to take back.
            payment_method_id: Where the refund goes.
        """
        return self._change(
            "return_items", order_id=order_id, item_ids=item_ids, method_id=payment_method_id
        )

    def exchange_items(
        self,
        order_id: str,
        item_ids: list[str],
        new_variant_ids: list[str],
        payment_method_id: str,
    ) -> dict[str, Any]:
        """Exchange delivered items for variants of the same products.

        Args:
            order_id: Such as W1234567.
            item_ids: Items to take back.
            new_variant_ids: What is sent instead, in the same order.
            payment_method_id: What a price difference is charged or refunded to.
        """
        pairs = {"item_ids": item_ids, "variant_ids": new_variant_ids}
        return self._change(
            "exchange_items", order_id=order_id, **pairs, method_id=payment_method_id
        )

    def issue_store_credit(
        self, order_id: str, amount: Annotated[float, Field(gt=0, le=1000)]
    ) -> dict[str, Any]:
        """Put store credit for an order on its customer's gift card.

        Args:
            order_id: The order it is for.
            amount: Dollars.
        """
        return self._change(
            "issue_store_credit", order_id=order_id, amount_cents=service.cents(amount)
        )

    def transfer_to_human(self, reason: TransferReason, summary: str) -> str:
        """Hand the conversation to a human, which ends it.

        Args:
            reason: Why a human is needed.
            summary: What the human has to know.
        """
        self.case.transfer = reason
        self._on_transfer()
        return "Transferred."

    # --- inside -------------------------------------------------------------------------------

    def _was_said(self, text: str) -> bool:
        wanted = plain(text)
        if not wanted or self.dialogue is None:
            return False
        return wanted in said_by_customer(self.dialogue)

    def _change(self, tool: str, *, order_id: str, **arguments: Any) -> dict[str, Any]:
        """Make a change, and note whose it was and whether they had agreed to it."""
        row = service.order_row(self.store, order_id)
        given = {"order_id": order_id, **arguments}
        words = required_words(self.store, tool, given)
        said = self.dialogue.said if self.dialogue is not None else []
        agreed = agreed_to(said, words, given.get("amount_cents"))
        APPLY[tool](self.store, **given)
        self.case.note_write(row["customer_id"], tool, given, agreed=agreed)
        return service.order(self.store, order_id)
