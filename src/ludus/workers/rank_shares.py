"""How a batch lies over the ranks of a learner, and what came of it in all of them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple, Protocol

import numpy as np

from ludus.data.batch import Batch
from ludus.data.trajectory import SlotPool
from ludus.data.trees import IntArray
from ludus.runtime.rank_messages import Standing, Train
from ludus.workers.ranks import Ranks


class Seen(NamedTuple):
    """What an update was made of."""

    by_version: Mapping[int, int]
    """Decisions trained on, by the version of the weights that made them."""

    @property
    def decisions(self) -> int:
        return sum(self.by_version.values())

    def lags(self, version: int, most: int) -> dict[str, float]:
        """Age, in updates, of the decisions that were trained on; where they may be up to `most` old, also
        the share of each age."""
        ages = {version - one: count for one, count in self.by_version.items()}
        total = max(self.decisions, 1)
        found = {
            "lag": sum(age * count for age, count in ages.items()) / total,
            "max_lag": float(max(ages, default=0)),
        }
        if most:
            found |= {f"lag_share.{age}": ages.get(age, 0) / total for age in range(most + 1)}
        return found


def seen_in(batches: Mapping[int, Batch]) -> Seen:
    versions = [batch.version[batch.valid] for batch in batches.values()]
    found, counts = np.unique(np.concatenate(versions or [[]]).astype(np.int64), return_counts=True)
    return Seen(dict(zip(found.tolist(), counts.tolist(), strict=True)))


def seen_by_all(ranks: Ranks, seen: Seen) -> Seen:
    together: Counter[int] = Counter()
    for one in ranks.gather(seen.by_version):
        together.update(one)
    return Seen(together)


class Spread(NamedTuple):
    """Of one kind of seat: how the pieces that minibatches are made of lie over the ranks."""

    first: int
    """Number of this rank's first piece, among those of all ranks one after the other."""
    own: int
    """Pieces of this rank."""
    total: int
    """Pieces of all ranks."""
    decisions: IntArray | None
    """In each piece of all ranks; None: one each."""

    def count(self, pieces: IntArray) -> int:
        """Decisions in these pieces."""
        return len(pieces) if self.decisions is None else int(self.decisions[pieces].sum())

    @property
    def num_decisions(self) -> int:
        return self.total if self.decisions is None else int(self.decisions.sum())


def spread_over(ranks: Ranks, batches: Mapping[int, Batch], *, whole: bool) -> dict[int, Spread]:
    """By kind of seat that any rank has; pieces are whole trajectories, or single decisions."""
    own: dict[int, Any] = {
        kind: batch.valid.sum(0).tolist() if whole else int(batch.valid.sum())
        for kind, batch in batches.items()
    }
    everywhere = ranks.gather(own)
    found = {}
    for kind in sorted({kind for one in everywhere for kind in one}):
        held = [one.get(kind, [] if whole else 0) for one in everywhere]
        sizes = [len(one) for one in held] if whole else held
        decisions = np.array([count for one in held for count in one], np.int64) if whole else None
        found[kind] = Spread(sum(sizes[: ranks.rank]), sizes[ranks.rank], sum(sizes), decisions)
    return found


Measured = Mapping[int, tuple[float, Mapping[str, float]]]
"""Of one gradient step, by kind of seat: what it counts, and its statistics."""


def means(steps: Sequence[Measured]) -> dict[str, float]:
    """Of the same gradient step in all ranks: the mean over the ranks, by what each counts, then over the
    kinds of seat. The names of heads differ between kinds."""
    found: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for step in steps:
        for kind, (weight, statistics) in step.items():
            for name, value in statistics.items():
                found.setdefault(name, {}).setdefault(kind, []).append((weight, value))
    return {name: fmean(map(_weighted, kinds.values())) for name, kinds in found.items()}


def _weighted(values: Sequence[tuple[float, float]]) -> float:
    total = sum(weight for weight, _ in values)
    if len(values) == 1 or not total:
        return fmean(value for _, value in values)
    return sum(weight * value for weight, value in values) / total


class OtherRanks(Protocol):
    """Rank 0's way to the others, which do whatever it does."""

    def standings(self) -> Sequence[Standing]: ...
    def order(self, order: Train) -> None: ...


@dataclass
class LeftOut:
    """Decisions that could not be trained on."""

    stale: int = 0
    refused: int = 0


def joined(standings: Sequence[Standing]) -> Standing:
    """What waits in several ranks, each of which has actors of its own."""
    first = standings[0]
    return Standing(
        decisions={player: sum(one.decisions[player] for one in standings) for player in first.decisions},
        held_up={
            player: [any(actor) for actor in zip(*(one.held_up[player] for one in standings), strict=True)]
            for player in first.held_up
        },
        preparing=[player for player in first.decisions if any(player in one.preparing for one in standings)],
    )


def nothing_of(pool: SlotPool) -> Batch:
    """A batch in which nothing is valid."""
    return pool.stack(np.zeros(1, np.int64), oldest_version=np.iinfo(np.int64).max)
