"""Kuhn and Leduc poker: a seat sees its own card; the others' are shown after the end."""

from __future__ import annotations

from typing import Any

from ludus.games.builtin.kuhn import BET, KuhnState
from ludus.games.builtin.leduc import RAISE, LeducState, rank
from ludus.games.game import GameBatch, HasTrees, Seat

RANKS = "JQK"
SUITS = "♠♥"


class KuhnView:
    """Everybody has one card; one bet."""

    hides = True
    real_time = False

    def show(self, tables: GameBatch, seat: Seat | None, latest: int | None) -> dict[str, Any]:
        state = _kuhn(tables)
        bettors = {turn % state.seats for turn, move in enumerate(state.moves) if move == BET}
        moves = [
            {"seat": turn % state.seats, "round": 0, "name": _kuhn_names(state.moves[:turn])[move]}
            for turn, move in enumerate(state.moves)
        ]
        # With more than two seats there are more cards than these names.
        cards = [RANKS[card] if state.seats == 2 else str(card + 1) for card in state.cards]
        return _shown(
            cards, None, [2.0 if one in bettors else 1.0 for one in range(state.seats)], moves, seat
        )

    def options(self, tables: GameBatch, seat: Seat) -> list[str]:
        return _kuhn_names(_kuhn(tables).moves)

    def written(self, shown: dict[str, Any]) -> str:
        return _written(shown)


class LeducView:
    """A card each, two rounds, and a public card before the second."""

    hides = True
    real_time = False

    def show(self, tables: GameBatch, seat: Seat | None, latest: int | None) -> dict[str, Any]:
        state = _leduc(tables)
        moves = [
            {"seat": turn % 2, "round": number, "name": _leduc_names(played[:turn])[move]}
            for number, played in enumerate(state.rounds)
            for turn, move in enumerate(played)
        ]
        cards = [f"{RANKS[rank(card)]}{SUITS[card % 2]}" for card in state.cards]
        public = cards[2] if len(cards) > 2 else ""
        return _shown(cards[:2], public, state.stakes(), moves, seat)

    def options(self, tables: GameBatch, seat: Seat) -> list[str]:
        state = _leduc(tables)
        return _leduc_names(state.rounds[len(state.cards) - 2])

    def written(self, shown: dict[str, Any]) -> str:
        return _written(shown)


def _kuhn(tables: GameBatch) -> KuhnState:
    assert isinstance(tables, HasTrees)
    state = tables.tree_state(0)
    assert isinstance(state, KuhnState)
    return state


def _leduc(tables: GameBatch) -> LeducState:
    assert isinstance(tables, HasTrees)
    state = tables.tree_state(0)
    assert isinstance(state, LeducState)
    return state


def _kuhn_names(before: tuple[int, ...]) -> list[str]:
    return ["fold", "call"] if BET in before else ["check", "bet"]


def _leduc_names(before: tuple[int, ...]) -> list[str]:
    """Of fold, call and raise."""
    return ["fold", "call" if before and before[-1] == RAISE else "check", "raise"]


def _shown(
    cards: list[str],
    public: str | None,
    stakes: list[float],
    moves: list[dict[str, Any]],
    seat: Seat | None,
) -> dict[str, Any]:
    """`public`: "" before it is turned up, None in a game that has none."""
    return {
        "kind": "cards",
        "hands": [
            {"card": card if seat in (None, owner) else None, "stake": stake}
            for owner, (card, stake) in enumerate(zip(cards, stakes, strict=True))
        ],
        "public": public,
        "moves": moves,
    }


def _written(shown: dict[str, Any]) -> str:
    lines = []
    for seat, hand in enumerate(shown["hands"]):
        done = [move["name"] for move in shown["moves"] if move["seat"] == seat]
        lines.append(f"seat {seat}: {hand['card'] or '?':3} in the pot {hand['stake']:g}  {', '.join(done)}")
    if shown["public"] is not None:
        lines.append(f"on the table: {shown['public'] or '?'}")
    return "\n".join(line.rstrip() for line in lines)
