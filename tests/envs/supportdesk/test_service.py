"""The shop's systems and the desk's tools: what they do, and what they can't."""

import pytest

from agentgym.envs.supportdesk import service
from agentgym.envs.supportdesk.reference import apply
from agentgym.envs.supportdesk.store import Store, changes
from agentgym.envs.supportdesk.tasks.table import shared_table
from agentgym.errors import ToolError

TABLE = shared_table(0, 12)


@pytest.fixture
def store():
    opened = Store(TABLE.image)
    yield opened
    opened.close()


def reference(family, number=0):
    return TABLE.tasks[f"supportdesk/{family}/{number}"].reference


def order_of(family, number=0):
    return reference(family, number).look_up[0]


def paid(store, order_id):
    """Cents charged less cents given back."""
    rows = store.all("SELECT * FROM ledger WHERE order_id = ?", order_id)
    sign = {"charge": 1, "refund": -1, "store_credit": 0}
    return sum(sign[row["kind"]] * row["amount_cents"] for row in rows)


def test_a_cancelled_order_is_paid_back_in_full_and_restocked(store):
    order_id = order_of("cancel")
    items = service.order(store, order_id)["items"]
    stock = {i["variant_id"]: _stock(store, i["variant_id"]) for i in items}
    service.cancel(store, order_id, "no longer needed")
    assert paid(store, order_id) == 0
    assert service.order(store, order_id)["status"] == "cancelled"
    assert all(_stock(store, variant) == count + 1 for variant, count in stock.items())


def _stock(store, variant_id):
    return store.one("SELECT stock FROM variants WHERE variant_id = ?", variant_id)["stock"]


def test_a_change_of_payment_moves_the_whole_amount(store):
    write = reference("change_payment", 1).outcomes[0][0].arguments
    before = paid(store, write["order_id"])
    method = "SELECT * FROM payment_methods WHERE payment_method_id = ?"
    balance = store.one(method, write["method_id"])["balance_cents"]
    service.change_payment(store, **write)
    assert paid(store, write["order_id"]) == before
    assert store.one(method, write["method_id"])["balance_cents"] == balance - before


@pytest.mark.parametrize("family", ["exchange", "change_item"])
def test_a_swap_settles_exactly_the_difference(store, family):
    write = reference(family).outcomes[0][0]
    before = paid(store, write.arguments["order_id"])
    swap = service.exchange_items if family == "exchange" else service.change_items
    difference = swap(store, **write.arguments)
    assert paid(store, write.arguments["order_id"]) - before == difference


def test_a_refund_to_the_gift_card_raises_its_balance(store):
    task = next(
        t.reference
        for t in TABLE.tasks.values()
        if t.metadata["family"] == "return" and len(t.reference.outcomes) == 2
    )
    write = task.outcomes[1][0].arguments
    amount = service.return_items(store, **write)
    row = store.one("SELECT * FROM payment_methods WHERE payment_method_id = ?", write["method_id"])
    assert row["balance_cents"] == 2500 + amount


def test_store_credit_goes_to_the_gift_card(store):
    order_id = order_of("late_credit")
    card = service.store_credit(store, order_id, 1500)
    row = store.one("SELECT * FROM payment_methods WHERE payment_method_id = ?", card)
    assert (row["kind"], row["balance_cents"]) == ("gift_card", 4000)


def held(store, order_id):
    """What the customer has of an order, in cents."""
    worth = 0
    for item in store.all("SELECT * FROM order_items WHERE order_id = ?", order_id):
        query = "SELECT price_cents FROM variants WHERE variant_id = ?"
        if item["status"] == "exchanged":
            worth += store.one(query, item["new_variant_id"])["price_cents"]
        elif item["status"] not in ("returned", "cancelled"):
            worth += item["price_cents"]
    return worth


def test_whatever_is_done_customers_have_paid_for_exactly_what_they_hold(store):
    for task in TABLE.tasks.values():
        apply(store, task.reference.outcomes[0])
    for order in store.all("SELECT order_id FROM orders"):
        assert paid(store, order["order_id"]) == held(store, order["order_id"])


IMPOSSIBLE = {
    "no such order": lambda s: service.cancel(s, "W0", "no longer needed"),
    "cancel a shipped order": lambda s: service.cancel(s, order_of("cancel_shipped"), "x"),
    "return a pending order": lambda s: service.return_items(s, order_of("cancel"), ["I1"], "pm"),
    "readdress a delivered order": lambda s: service.change_address(
        s, order_of("return"), "1 A St", "B", "OR", "97201"
    ),
    "somebody else's payment method": lambda s: service.change_payment(
        s, order_of("cancel"), reference("change_payment").outcomes[0][0].arguments["method_id"]
    ),
    "an empty gift card": lambda s: service.change_payment(
        s, order_of("gift_card_balance"), _gift_card(s, order_of("gift_card_balance"))
    ),
    "no items": lambda s: service.return_items(
        s, order_of("return"), [], _gift_card(s, order_of("return"))
    ),
    "the same item twice": lambda s: service.return_items(
        s, order_of("return"), _items(s, "return") * 2, _gift_card(s, order_of("return"))
    ),
    "items of another order": lambda s: service.return_items(
        s, order_of("return"), _items(s, "exchange"), _gift_card(s, order_of("return"))
    ),
    "a variant of another product": lambda s: service.exchange_items(
        s,
        order_of("exchange"),
        _items(s, "exchange")[:1],
        ["V1"],
        _gift_card(s, order_of("exchange")),
    ),
    "fewer variants than items": lambda s: service.exchange_items(
        s, order_of("exchange"), _items(s, "exchange")[:1], [], _gift_card(s, order_of("exchange"))
    ),
    "negative credit": lambda s: service.store_credit(s, order_of("return"), -5),
}


def _gift_card(store, order_id):
    row = service.order_row(store, order_id)
    query = "SELECT * FROM payment_methods WHERE customer_id = ? AND kind = 'gift_card'"
    return store.one(query, row["customer_id"])["payment_method_id"]


def _items(store, family):
    return [item["item_id"] for item in service.order(store, order_of(family))["items"]]


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_the_impossible_is_refused_and_changes_nothing(store, what):
    with pytest.raises(ToolError, match="Error: "):
        IMPOSSIBLE[what](store)
    assert changes(TABLE.rows, store.rows()) == {}


def test_what_is_out_of_stock_cannot_be_sent(store):
    task = TABLE.scenarios["supportdesk/out_of_stock/0"]
    order = service.order(store, order_of("out_of_stock"))
    item = order["items"][0]
    empty = next(
        v
        for v in service.product(store, item["product_id"])["variants"]
        if not v["in_stock"] and any(w in task.goal for w in v["options"].values())
    )
    with pytest.raises(ToolError, match="out of stock"):
        service.exchange_items(
            store,
            order["order_id"],
            [item["item_id"]],
            [empty["variant_id"]],
            order["payment_method_id"],
        )


def test_an_item_is_taken_back_once(store):
    write = reference("partial_return").outcomes[0][0].arguments
    service.return_items(store, **write)
    with pytest.raises(ToolError, match="already returned"):
        service.return_items(store, **write)


def test_the_policy_is_not_enforced_by_the_systems(store):
    """Late and final-sale returns go through: keeping to the rules is the agent's job."""
    for family in ("return_late", "final_sale"):
        service.return_items(
            store, order_of(family), _items(store, family)[:1], _gift_card(store, order_of(family))
        )


def test_changes_are_rows_removed_and_added(store):
    assert changes(TABLE.rows, store.rows()) == {}
    order_id = order_of("change_address")
    service.change_address(store, order_id, "1 A St", "B", "OR", "97201")
    found = changes(TABLE.rows, store.rows())
    assert set(found) == {"orders"}
    (removed,), (added,) = found["orders"]["removed"], found["orders"]["added"]
    assert removed[0] == added[0] == order_id
    assert added[7:11] == ["1 A St", "B", "OR", "97201"]


def test_only_touched_tables_can_differ(store):
    service.cancel(store, order_of("cancel"), "no longer needed")
    assert changes(TABLE.rows, store.rows(store.touched)) == changes(TABLE.rows, store.rows())
    assert store.touched == {"orders", "order_items", "variants", "ledger", "payment_methods"}


def test_an_image_is_a_whole_copy(store):
    service.cancel(store, order_of("cancel"), "no longer needed")
    copy = Store(store.image())
    service.cancel(store, order_of("cancel", 1), "no longer needed")
    assert changes(TABLE.rows, copy.rows()) != changes(TABLE.rows, store.rows())
    assert service.order(copy, order_of("cancel"))["status"] == "cancelled"
    copy.close()


# --- the desk's own tools -----------------------------------------------------------------------


def said(env, action):
    return env.step(action)[0][-1]["content"]


@pytest.mark.parametrize(
    ("expression", "result"),
    [("(19.99 + 5) * 2", "49.98"), ("0.1 + 0.2", "0.3"), ("7/2", "3.5")],
)
def test_the_calculator_works_like_a_cash_register(env, call, expression, result):
    env.reset(seed=0)
    assert said(env, call("calculate", expression=expression)) == result


@pytest.mark.parametrize(
    "expression", ["", "1/0", "9**9**9", "(" * 400, "x", "__import__('os')", "1e308*10", "1" * 999]
)
def test_the_calculator_refuses_what_is_no_sum(env, call, expression):  # case J04
    env.reset(seed=0)
    assert said(env, call("calculate", expression=expression)).startswith("Error: ")


def test_products_are_found_by_any_of_their_words(env, call):
    env.reset(seed=0)
    assert "Rain Jacket" in said(env, call("search_products", query="jacket RAIN"))
    assert said(env, call("search_products", query="spaceship")) == "[]"
    assert said(env, call("search_products", query="")).count("product_id") == 22


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("find_customer_by_email", {"email": "nobody@example.com"}),
        ("find_customer_by_name_zip", {"first_name": "A", "last_name": "B", "zip_code": "00000"}),
        ("get_customer", {"customer_id": "C0"}),
        ("list_orders", {"customer_id": "C0"}),
        ("get_order", {"order_id": "W0"}),
        ("get_product", {"product_id": "P0"}),
    ],
)
def test_what_does_not_exist_is_an_answer_and_no_violation(env, call, tool, arguments):
    env.reset(seed=0)
    assert said(env, call(tool, **arguments)).startswith("Error: ")
    assert not any(env.outcome()["violations"].values())


@pytest.mark.parametrize("amount", [0, -1, 1001, "much"])
def test_an_amount_of_credit_out_of_range_is_malformed(env, call, amount):
    env.reset(seed=0)
    text = said(env, call("issue_store_credit", order_id="W1", amount=amount))
    assert "amount" in text
    assert env.running.records[-1].calls[0].status == "malformed"
