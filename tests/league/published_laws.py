"""The published laws of opponents, written once more as their sources have them, to hold the presets to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Law = dict[str, float]
WinRates = Mapping[tuple[str, str], float]


@dataclass
class Pool:
    """A league at one moment: live players by role, snapshots by parent (oldest first), who beats whom."""

    live: Mapping[str, Sequence[str]]
    history: Mapping[str, Sequence[str]]
    win_rates: WinRates

    def past(self, role: str | None = None) -> list[str]:
        parents = [p for r, players in self.live.items() if role in (None, r) for p in players]
        return [snapshot for parent in parents for snapshot in self.history[parent]]

    def role_of(self, player: str) -> str:
        return next(role for role, players in self.live.items() if player in players)

    def w(self, player: str, other: str) -> float:
        return 0.5 if player == other else self.win_rates[player, other]


def squared(w: float) -> float:
    return (1 - w) * (1 - w)


def variance(w: float) -> float:
    return w * (1 - w)


def capped(w: float) -> float:
    return min(0.5, 1 - w)


def pfsp(pool: Pool, player: str, others: Sequence[str], f: Callable[[float], float]) -> Law:
    weights = {other: f(pool.w(player, other)) for other in others}
    return {other: weight / sum(weights.values()) for other, weight in weights.items()}


def even(others: Sequence[str]) -> Law:
    return {other: 1 / len(others) for other in others}


def mixed(*parts: tuple[float, Law]) -> Law:
    law: Law = {}
    for share, part in parts:
        for other, probability in part.items():
            law[other] = law.get(other, 0.0) + share * probability
    return law


def averaged(laws: Sequence[Law]) -> Law:
    return mixed(*((1 / len(laws), law) for law in laws))


def without_suffix(rates: list[float]) -> list[float]:
    for i in range(len(rates) - 1, 0, -1):
        if rates[i - 1] < rates[i]:
            return rates[: i + 1]
    return []


def remembered(pool: Pool, player: str, rival: str) -> list[str]:
    history = list(pool.history[rival])
    return history[: len(without_suffix([pool.w(player, other) for other in history]))]


def live_or_past(pool: Pool, player: str, rival: str, bar: float, past: Sequence[str] | None = None) -> Law:
    if pool.w(player, rival) > bar:
        return {rival: 1.0}
    return pfsp(pool, player, pool.history[rival] if past is None else past, variance)


def alphastar(pool: Pool, player: str) -> Law:
    mains, main_past = pool.live["main"], pool.past("main")
    match pool.role_of(player):
        case "main":
            lost = [other for other in pool.past("main_exploiter") if pool.w(player, other) < 0.3]
            for main in mains:
                lost += [other for other in remembered(pool, player, main) if pool.w(player, other) < 0.7]
            rest = pfsp(pool, player, lost, squared) if lost else even(mains)
            return mixed((0.35, even(mains)), (0.5, pfsp(pool, player, pool.past(), squared)), (0.15, rest))
        case "main_exploiter":
            attack = averaged([live_or_past(pool, player, main, 0.2, main_past) for main in mains])
            return mixed((0.5, pfsp(pool, player, main_past, variance)), (0.5, attack))
        case _:
            return pfsp(pool, player, pool.past(), squared)


def alphastar_pseudocode(pool: Pool, player: str) -> Law:
    mains = pool.live["main"]
    match pool.role_of(player):
        case "main":
            return mixed(
                (0.5, pfsp(pool, player, pool.past(), squared)),
                (0.15, averaged([verification(pool, player, main) for main in mains])),
                (0.35, averaged([live_or_past(pool, player, main, 0.3) for main in mains])),
            )
        case "main_exploiter":
            return averaged([live_or_past(pool, player, main, 0.1) for main in mains])
        case _:
            return pfsp(pool, player, pool.past(), capped)


def verification(pool: Pool, player: str, main: str) -> Law:
    exploiters = pool.past("main_exploiter")
    if exploiters and min(pool.w(player, other) for other in exploiters) < 0.3:
        return pfsp(pool, player, exploiters, squared)
    kept = remembered(pool, player, main)
    if kept and min(pool.w(player, other) for other in kept) < 0.7:
        return pfsp(pool, player, kept, squared)
    return live_or_past(pool, player, main, 0.3)


def di_star(pool: Pool, player: str) -> Law:
    mains = pool.live["main"]
    match pool.role_of(player):
        case "main":
            alike = averaged([live_or_past(pool, player, main, 0.3) for main in mains])
            return mixed((0.5, alike), (0.5, pfsp(pool, player, pool.past(), squared)))
        case "main_exploiter":
            attack = averaged([live_or_past(pool, player, main, 0.2) for main in mains])
            past = pfsp(pool, player, pool.past("main"), variance)
            return mixed((0.5 / 0.95, attack), (0.45 / 0.95, past))
        case _:
            return pfsp(pool, player, pool.past(), capped)
