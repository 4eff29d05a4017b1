"""Fetched items on their way to the jobs."""

from __future__ import annotations

from app.kafka.fetch.deliveries import ByteBudget, FetchedBatches, FetchItem, FetchKey, PartitionFetch
from app.worker.jobs.deliveries import FetchedItems, hand_over


def test_an_error_at_one_item_costs_no_other_and_frees_its_bytes() -> None:
    budget, taken = ByteBudget(100), list[FetchItem]()
    items = []
    for number in range(3):
        part = PartitionFetch(budget, FetchKey(f"job/{number}", 1), "orders", number, 0)
        items.append(FetchedBatches(part, 10, b"", 1, [], 1))
    budget.used_bytes = 30

    def accept(item: FetchItem) -> None:
        if item.partition == 1:
            raise RuntimeError("no such job")
        taken.append(item)

    together = FetchedItems(items[0])
    for item in items[1:]:
        together.add(item)
    hand_over(together, accept)
    assert not together.is_open
    assert taken == [items[0], items[2]]
    assert budget.used_bytes == 20
