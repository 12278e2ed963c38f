"""The settings of a league: which players learn, whom they meet, when they are frozen and reset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from ludus.data.records import ModelId
from ludus.league.matchmaking import POOLS, Matchmaker, SelfPlay
from ludus.league.payoff import PayoffRules, PayoffView
from ludus.league.players import FROZEN, MAX_ID_LENGTH, SCRIPTED, check_player_id, unknown
from ludus.league.promotion import EVERYONE, Never, Promotion
from ludus.league.restarts import AfterReset, FromStart, Restart

_ROOM_FOR_NUMBER = 12
"""Characters of an id left for the number of a snapshot."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """What a number of learning players have in common."""

    count: int = 1
    matchmaking: Matchmaker = field(default_factory=SelfPlay)
    promotion: Promotion = field(default_factory=Never)
    initial_snapshot: bool = True
    """Freeze each player once as soon as it has published weights, so that the pool is never empty."""
    reset_probability: float = 0.0
    """Chance that a player starts again after a snapshot that its promotion asked for."""
    restart: Restart = field(default_factory=FromStart)
    """What it then starts from."""
    after_reset: AfterReset = field(default_factory=AfterReset)
    start: str | None = None
    """The model its players start from; None: fresh weights."""
    snapshot_weights: Literal["live", "average"] = "live"
    """Which of the learner's two sets of weights is frozen."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.reset_probability <= 1.0:
            raise ValueError(f"Role.reset_probability must be from 0 to 1, got {self.reset_probability}")


@dataclass(frozen=True, kw_only=True, slots=True)
class LeagueRules:
    """Learning roles by name, scripted players, and how results become a payoff."""

    roles: Mapping[str, Role]
    bots: tuple[str, ...] = ()
    """Ids of scripted players."""
    external: Mapping[str, str] = field(default_factory=dict)
    """Frozen players from outside: id -> model of the run's model pool."""
    payoff: PayoffRules = field(default_factory=PayoffRules)
    decide_on: PayoffView = "training"
    """The payoff that matchmaking and promotion read."""

    def __post_init__(self) -> None:
        if not self.roles:
            raise ValueError("LeagueRules.roles is empty: a league needs a learning role such as 'main'")
        for name, role in self.roles.items():
            self._check_role(name, role)
        ids = [player for name in self.roles for player in self.players_of(name)]
        ids += [*self.bots, *self.external]
        for player in ids:
            check_player_id(player)
            if ids.count(player) > 1:
                raise ValueError(
                    f"player id {player!r} would be given twice by the roles, bots and external players"
                )
        for player, model in self.external.items():
            _check_model(f"LeagueRules.external[{player!r}]", model)
        if self.decide_on not in get_args(PayoffView):
            raise ValueError(unknown("payoff", self.decide_on, get_args(PayoffView)))

    def players_of(self, role: str) -> list[str]:
        """Ids of a role's learning players: its own name, or numbered from 0 where there are several."""
        count = self.roles[role].count
        return [role] if count == 1 else [f"{role}_{index}" for index in range(count)]

    def _check_role(self, name: str, role: Role) -> None:
        reserved = (FROZEN, SCRIPTED, EVERYONE, *POOLS)
        if name in reserved:
            raise ValueError(f"role name {name!r} is reserved: {', '.join(dict.fromkeys(reserved))}")
        if "." in check_player_id(name):
            raise ValueError(f"role name {name!r} must not contain '.': snapshots are called PLAYER.NUMBER")
        if len(name) + len(str(role.count)) + 1 > MAX_ID_LENGTH - _ROOM_FOR_NUMBER:
            raise ValueError(f"role name {name!r} is too long to number its players and their snapshots")
        if role.count < 1:
            raise ValueError(f"role {name!r} has count={role.count}; a role needs at least one player")


def _check_model(place: str, model: str) -> None:
    try:
        ModelId.parse(model)
    except ValueError:
        raise ValueError(f"{place} is no model id: write PLAYER:INCARNATION:STEP, got {model!r}") from None
