"""Who plays with whom in PettingZoo's games, which do not say so themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from ludus.games.seat_rows import GameError

Teams = Sequence[Sequence[str]]
"""Per team, patterns of the names of its agents."""

TOGETHER: Teams = (("*",),)
PAIRS: Teams = (("first_0", "third_0"), ("second_0", "fourth_0"))

KNOWN_TEAMS: Mapping[str, Teams] = {
    "collect_treasure": TOGETHER,
    "cooperative_pong": TOGETHER,
    "entombed_cooperative": TOGETHER,
    "hanabi": TOGETHER,
    "knights_archers_zombies": TOGETHER,
    "multiwalker": TOGETHER,
    "pistonball": TOGETHER,
    "pursuit": TOGETHER,
    "simple_crypto": (("eve_*",), ("alice_*", "bob_*")),
    "simple_formation": TOGETHER,
    "simple_line": TOGETHER,
    "simple_reference": TOGETHER,
    "simple_speaker_listener": TOGETHER,
    "simple_spread": TOGETHER,
    "simple_world_comm": (("leadadversary_*", "adversary_*"), ("agent_*",)),
    **dict.fromkeys(("basketball_pong", "foozpong", "pong", "quadrapong", "volleyball_pong"), PAIRS),
}
"""Games whose teams the names of the agents do not tell. With two players, pairs are one against one."""

ZERO_SUM = frozenset(
    {
        "boxing",
        "chess",
        "combat_plane",
        "combat_tank",
        "connect_four",
        "entombed_competitive",
        "go",
        "leduc_holdem",
        "rps",
        "space_war",
        "surround",
        "texas_holdem",
        "texas_holdem_no_limit",
        "tictactoe",
    }
)
"""Games in which one side always wins what the others lose. Pong and its kin are not among them, as their
documentation says: whoever does not serve in time loses a point that nobody wins."""


def base_name(game: str) -> str:
    """`connect_four` of `classic.connect_four_v3`."""
    return re.sub(r"_v\d+$", "", game.rpartition(".")[2])


def group_name(agent: str) -> str:
    """`adversary` of `adversary_0`."""
    return re.sub(r"_?\d+$", "", agent)


def team_of_each(game: str, agents: Sequence[str], teams: Teams = ()) -> tuple[int, ...]:
    """The team of each agent: by the given patterns, or as known for the game, or by the names.

    By the names: `adversary_0`, `adversary_1` and `agent_0` are two teams, named by what stands before the
    number; if that is the same for all (`player_0`, `player_1`), each agent is a team of its own.
    """
    patterns = teams or KNOWN_TEAMS.get(base_name(game), ())
    if patterns:
        found = [_matching(game, agent, patterns) for agent in agents]
    else:
        names = [group_name(agent) for agent in agents]
        found = list(range(len(agents))) if len(set(names)) == 1 else _in_order(names)
    return tuple(_in_order(found))


def _matching(game: str, agent: str, teams: Teams) -> int:
    of = [
        team
        for team, patterns in enumerate(teams)
        if any(fnmatchcase(agent, pattern) for pattern in patterns)
    ]
    if len(of) != 1:
        where = f"in {len(of)} of the teams" if of else "in none of the teams"
        shown = " | ".join(" ".join(patterns) for patterns in teams)
        raise GameError(f"{game}: agent {agent!r} is {where} {shown}; each agent needs one")
    return of[0]


def _in_order(names: Iterable[str | int]) -> list[int]:
    """Numbered from 0 in the order of their first appearance, so that there are no gaps."""
    numbers: dict[str | int, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]
