"""Whether a match can be one of this league: its teams, its line-ups and who trains in it."""

from __future__ import annotations

from ludus.data.records import Match, Side
from ludus.league.players import check_player_id, unknown
from ludus.league.roster import Roster


def check_match(match: Match, seats_per_team: tuple[int, ...], roster: Roster) -> None:
    """Raises ValueError with what is wrong."""
    num_teams = len(seats_per_team)
    if len(match.sides) != num_teams:
        raise ValueError(f"match {match.id} has {len(match.sides)} sides; the game has {num_teams} teams")
    if match.tables < 1 or match.episodes_per_table < 1:
        raise ValueError(
            f"match {match.id} needs at least one table and one episode per table, "
            f"got tables={match.tables}, episodes_per_table={match.episodes_per_table}"
        )
    for side in match.sides:
        _check_side(match, side, seats_per_team, roster)


def _check_side(match: Match, side: Side, seats_per_team: tuple[int, ...], roster: Roster) -> None:
    # Sides rotate through the teams, so a line-up must fit all of them.
    seats = set(seats_per_team)
    sizes = {1} | seats if len(seats) == 1 else {1}
    if len(side.players) not in sizes:
        raise ValueError(
            f"match {match.id}: line-up {side.players} has {len(side.players)} players; "
            f"for teams of {seats_per_team} seats it may have {' or '.join(map(str, sorted(sizes)))}"
        )
    for player in side.players:
        if match.purpose == "human" and player not in roster.players:
            check_player_id(player)
        elif player not in roster:
            raise ValueError(f"match {match.id}: {unknown('player', player, roster.candidates)}")
    for player in side.trainees:
        if match.purpose != "training" or player not in roster.standings or player not in side.players:
            raise ValueError(
                f"match {match.id}: {player!r} cannot train in it; only learning players that sit on the "
                f"side train, in matches of purpose 'training', and this is {match.purpose!r}"
            )
    if side.captain is not None and side.captain not in side.players:
        raise ValueError(f"match {match.id}: {side.captain!r} is not in its line-up {side.players}")
