"""All tasks of the service desk, by family and split.

Splits hold different *families*: what is validated and tested are situations that no training task
had, put together from the same tools and rules. Within a family, tasks differ in customer, orders,
amounts, wording, in how much the customer knows of their order, and in what they answer.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from agentgym.envs.supportdesk.shop import Shop
from agentgym.envs.supportdesk.store import Row, Store, make_image
from agentgym.envs.supportdesk.tasks import orders, questions, returns, twists
from agentgym.envs.supportdesk.tasks.scene import Scene, SupportTask
from agentgym.types import Task

Split: TypeAlias = Literal["train", "validation", "test"]

FAMILIES: Mapping[Split, Mapping[str, Callable[[Scene], SupportTask]]] = {
    "train": {
        "cancel": orders.cancel,
        "cancel_shipped": orders.cancel_shipped,
        "change_address": orders.change_address,
        "change_item": orders.change_item,
        "return": returns.return_order,
        "partial_return": returns.partial_return,
        "return_late": returns.return_late,
        "exchange": returns.exchange,
        "refund_status": questions.refund_status,
        "others_order": questions.others_order,
        "late_credit": twists.late_credit,
        "fraud": questions.fraud,
    },
    "validation": {
        "change_payment": orders.change_payment,
        "out_of_stock": returns.out_of_stock,
        "changed_mind": twists.changed_mind,
        "price_match": questions.price_match,
        "namesake": twists.namesake,
        "product_safety": questions.product_safety,
    },
    "test": {
        "gift_card_balance": orders.gift_card_balance,
        "final_sale": returns.final_sale,
        "wrong_item": returns.wrong_item,
        "spending": questions.spending,
        "credit_not_due": questions.credit_not_due,
        "lost_parcel": questions.lost_parcel,
        "two_requests": twists.two_requests,
    },
}
"""Split to family to what makes one of its tasks."""
SPLITS: tuple[Split, ...] = tuple(FAMILIES)
TASKS_PER_FAMILY = 12


class TaskTable:
    """The shop and its tasks; built once per seed and shared, never changed.

    Args:
        seed: Everything follows from it.
        tasks_per_family: How many tasks each family has.
    """

    def __init__(self, seed: int, tasks_per_family: int) -> None:
        shop = Shop(random.Random(f"supportdesk/{seed}"))
        made = {
            f"supportdesk/{family}/{number}": (split, _make(shop, family, number, generate))
            for split, families in FAMILIES.items()
            for family, generate in families.items()
            for number in range(tasks_per_family)
        }
        self.image = make_image(shop.rows)
        store = Store(self.image)
        self.rows: Mapping[str, list[Row]] = store.rows()
        store.close()
        self.digest = _digest({task_id: task for task_id, (_, task) in made.items()}, self.rows)
        self.scenarios = {task_id: task.scenario for task_id, (_, task) in made.items()}
        self.tasks: Mapping[str, Task] = {
            task_id: Task(
                task_id=task_id,
                split=split,
                reference=task.reference,
                metadata={"family": task.family, "tasks": len(made), "digest": self.digest},
            )
            for task_id, (split, task) in made.items()
        }

    def ids(self, split: Split | None) -> list[str]:
        """Ids of a split's tasks, or of all, in order."""
        return [key for key, task in self.tasks.items() if split in (None, task.split)]


def _digest(tasks: Mapping[str, SupportTask], rows: Mapping[str, list[Row]]) -> str:
    """SHA-256 over every task and row: equal digests mean equal tasks."""
    text = json.dumps(
        [
            (task_id, task.scenario.model_dump(), task.reference.model_dump())
            for task_id, task in tasks.items()
        ]
    )
    return hashlib.sha256((text + json.dumps(rows)).encode()).hexdigest()


def _make(
    shop: Shop, family: str, number: int, generate: Callable[[Scene], SupportTask]
) -> SupportTask:
    scene = Scene(shop, family, number, shop.person())
    task = generate(scene)
    for _ in range(shop.rng.randrange(0, 3)):
        shop.any_order(scene.person)
    return task


@functools.lru_cache(maxsize=4)
def shared_table(seed: int, tasks_per_family: int) -> TaskTable:
    """The table of a seed, built on first use."""
    return TaskTable(seed, tasks_per_family)
