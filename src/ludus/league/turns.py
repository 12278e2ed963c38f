"""Whose turn it is to train, where more players learn than can train at a time."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from ludus.league.players import Standing


def next_turns(
    turns: Mapping[str, int], standings: Mapping[str, Standing], *, capacity: int, length: int
) -> dict[str, int]:
    """The turns that run from now on: at most `capacity`, by player, with what it had `trained` at the start.

    A turn goes on until its player has trained `length` decisions. A free place goes to whoever has trained
    least, which may be the player that has just left it; of equals, to the one that joined first. So what
    two players have trained differs by about one turn, however long the league goes on.
    """
    going = {
        player: start
        for player, start in turns.items()
        if player in standings and standings[player].trained - start < length
    }
    found = dict(islice(going.items(), capacity))
    waiting = [standing for player, standing in standings.items() if player not in found]
    waiting.sort(key=lambda standing: (standing.trained, standing.player.joined))
    return found | {one.player.id: one.trained for one in waiting[: capacity - len(found)]}
