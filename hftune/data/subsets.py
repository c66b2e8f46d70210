"""Seeded, stratified choices of rows: splits made from train, and nested subsets. Called by ``load``.

Everything is a function of labels, texts and seed. Draws are ``random.Random.random``, whose sequence Python
keeps the same on every version and machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from random import Random


def nested_order(labels: Sequence[Hashable], seed: int) -> list[int]:
    """All rows in such an order that each prefix is a stratified subset: the shorter lies in the longer.

    The first prefix holds one row of each label; from there on every label grows in step with its share.
    """
    rank: list[tuple[bool, float, float]] = [(False, 0.0, 0.0)] * len(labels)
    for drawn in _shuffled_by_label(labels, seed):
        for place, (draw, row) in enumerate(drawn):
            rank[row] = (place > 0, (place + 0.5) / len(drawn) if place > 0 else -float(len(drawn)), draw)
    return sorted(range(len(labels)), key=rank.__getitem__)


def subset(labels: Sequence[Hashable], size: int, seed: int) -> list[int]:
    """The rows of a stratified subset, in their old order."""
    return sorted(nested_order(labels, seed)[:size])


def held_out(
    keys: Sequence[Hashable], labels: Sequence[Hashable], shares: Sequence[float], seed: int
) -> list[list[int]]:
    """Rows that leave train to become other splits, stratified, in their old order.

    Rows with one key (one text) go together, so that a made split shares no text with train; a text with two
    labels stays in train, and so does one text at least of every label.

    Args:
        keys: what must not be torn apart, one a row.
        labels: one a row.
        shares: of the rows, one for each split that is made.
        seed: of the choice.

    Returns:
        The rows of each split; those in none of them stay in train.
    """
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for row, key in enumerate(keys):
        groups[key].append(row)
    pure = [rows for rows in groups.values() if len({labels[row] for row in rows}) == 1]
    by_label = [
        [pure[group] for _, group in drawn] for drawn in _shuffled_by_label([labels[rows[0]] for rows in pure], seed)
    ]
    capacity = [max(0, len(choice) - 1) for choice in by_label]
    used = [0] * len(by_label)
    made = []
    for share in shares:
        total = max(1, round(share * len(groups)))
        takes = _allot([share * len(choice) for choice in by_label], total, capacity)
        chosen = [
            row
            for choice, begin, take in zip(by_label, used, takes, strict=True)
            for group in choice[begin : begin + take]
            for row in group
        ]
        capacity = [room - take for room, take in zip(capacity, takes, strict=True)]
        used = [begin + take for begin, take in zip(used, takes, strict=True)]
        made.append(sorted(chosen))
    return made


def _shuffled_by_label(labels: Sequence[Hashable], seed: int) -> list[list[tuple[float, int]]]:
    """For each label its rows in a drawn order, with their draws; labels in the order they first occur."""
    random = Random(seed)
    drawn: dict[Hashable, list[tuple[float, int]]] = defaultdict(list)
    for row, label in enumerate(labels):
        drawn[label].append((random.random(), row))
    return [sorted(rows) for rows in drawn.values()]


def _allot(wanted: list[float], total: int, capacity: list[int]) -> list[int]:
    """Whole numbers near the wanted ones, none above its capacity, summing to the total if there is room."""
    takes = [min(int(want), room) for want, room in zip(wanted, capacity, strict=True)]
    by_remainder = sorted(range(len(wanted)), key=lambda index: (takes[index] - wanted[index], index))
    left = total - sum(takes)
    while left > 0 and any(takes[index] < capacity[index] for index in by_remainder):
        for index in by_remainder:
            if left > 0 and takes[index] < capacity[index]:
                takes[index] += 1
                left -= 1
    return takes
