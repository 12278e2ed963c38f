"""The settings of a league: which players learn, whom they meet, when they are frozen and reset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from ludus.data.live import LiveField
from ludus.data.records import ModelId
from ludus.league.line_ups import SELF, LineUp, OpponentSeats, Trainees
from ludus.league.matchmaking import POOLS, Matchmaker, SelfPlay
from ludus.league.payoff import PayoffRules, PayoffView
from ludus.league.players import FROZEN, MAX_ID_LENGTH, SCRIPTED, check_player_id, unknown
from ludus.league.population import Population
from ludus.league.promotion import EVERYONE, Never, Promotion
from ludus.league.restarts import AfterReset, FromStart, Restart

_ROOM_FOR_NUMBER = 12
"""Characters of an id left for the number of a snapshot."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """What a number of learning players have in common."""

    count: int = 1
    """Players of this role."""
    matchmaking: LiveField[Matchmaker] = field(default_factory=SelfPlay)
    """Whom its players meet in training."""
    promotion: LiveField[Promotion] = field(default_factory=Never)
    """When a snapshot of one joins the league as a frozen player."""
    initial_snapshot: LiveField[bool] = True
    """Freeze each player once as soon as it has published weights, so that the pool is never empty."""
    reset_probability: LiveField[float] = 0.0
    """Chance that a player starts again after a snapshot that its promotion asked for."""
    restart: LiveField[Restart] = field(default_factory=FromStart)
    """What it then starts from."""
    after_reset: LiveField[AfterReset] = field(default_factory=AfterReset)
    start: str | None = None
    """The model its players start from, or where `ludus train` finds one; None: fresh weights."""
    value_only_at_start: int = 0
    """Decisions on which players with a `start` first train their value alone: a value that knows nothing yet
    would spoil what they can do already."""
    snapshot_weights: LiveField[Literal["live", "average"]] = "live"
    """Which of the learner's two sets of weights is frozen."""
    population: LiveField[Population | None] = None
    """Settings that its players search for together."""
    line_up: LiveField[LineUp] = field(default_factory=dict)
    """Who sits on the seats of its team; empty: the player itself on all of them."""
    opponents: LiveField[OpponentSeats] = "repeated"
    """An opponent's team: it sits on every seat, or is lined up by `line_up` with the opponent as "self"."""
    trains: LiveField[Trainees] = "self"
    """Who trains in its matches: the player alone, all learning players on its side, or all at the table."""

    def __post_init__(self) -> None:
        for name, allowed in (("opponents", get_args(OpponentSeats)), ("trains", get_args(Trainees))):
            if getattr(self, name) not in allowed:
                raise ValueError(unknown(f"Role.{name}", getattr(self, name), allowed))
        if not 0.0 <= self.reset_probability <= 1.0:
            raise ValueError(f"Role.reset_probability must be from 0 to 1, got {self.reset_probability}")
        if self.value_only_at_start < 0:
            raise ValueError(f"Role.value_only_at_start must be at least 0, got {self.value_only_at_start}")


@dataclass(frozen=True, kw_only=True, slots=True)
class LeagueRules:
    """Learning roles by name, scripted players, and how results become a payoff."""

    roles: Mapping[str, Role]
    bots: tuple[str, ...] = ()
    """Ids of scripted players."""
    external: Mapping[str, str] = field(default_factory=dict)
    """Frozen players from outside: id -> model of the run's model pool, or where `ludus train` finds one."""
    payoff: LiveField[PayoffRules] = field(default_factory=PayoffRules)
    decide_on: LiveField[PayoffView] = "training"
    """The payoff that matchmaking and promotion read."""
    capacity: LiveField[int | None] = None
    """Players that train at a time, in turns; None: all of them."""
    turn: LiveField[int] = 1_000_000
    """Decisions that a player trains before it hands its place on."""

    def __post_init__(self) -> None:
        if not self.roles:
            raise ValueError("LeagueRules.roles is empty: a league needs a learning role such as 'main'")
        if self.capacity is not None and self.capacity < 1:
            raise ValueError(f"LeagueRules.capacity must be at least 1, or null for all, got {self.capacity}")
        if self.turn < 1:
            raise ValueError(f"LeagueRules.turn must be at least 1 decision, got {self.turn}")
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
        if self.decide_on not in get_args(PayoffView):
            raise ValueError(unknown("payoff", self.decide_on, get_args(PayoffView)))

    def require_model_ids(self) -> None:
        """Refuse models that are not of the run's pool; until a run begins they may be addresses."""
        for player, model in self.external.items():
            _check_model(f"LeagueRules.external[{player!r}]", model)
        for name, role in self.roles.items():
            if role.start is not None:
                _check_model(f"Role.start of {name!r}", role.start)

    def players_of(self, role: str) -> list[str]:
        """Ids of a role's learning players: its own name, or numbered from 0 where there are several."""
        count = self.roles[role].count
        return [role] if count == 1 else [f"{role}_{index}" for index in range(count)]

    def _check_role(self, name: str, role: Role) -> None:
        reserved = (FROZEN, SCRIPTED, EVERYONE, SELF, *POOLS)
        if name in reserved:
            raise ValueError(f"role name {name!r} is reserved: {', '.join(dict.fromkeys(reserved))}")
        if "." in check_player_id(name):
            raise ValueError(f"role name {name!r} must not contain '.': snapshots are called PLAYER.NUMBER")
        if len(name) + len(str(role.count)) + 1 > MAX_ID_LENGTH - _ROOM_FOR_NUMBER:
            raise ValueError(f"role name {name!r} is too long to number its players and their snapshots")
        if role.count < 1:
            raise ValueError(f"role {name!r} has count={role.count}; a role needs at least one player")
        if role.population is not None:
            role.population.check_memory(self.payoff)


def _check_model(place: str, model: str) -> None:
    try:
        check_player_id(ModelId.parse(model).player)
    except ValueError:
        raise ValueError(f"{place} is no model id: write PLAYER:INCARNATION:STEP, got {model!r}") from None
