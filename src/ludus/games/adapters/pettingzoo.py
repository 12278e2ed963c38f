"""PettingZoo environments as games: one seat per possible agent.

`pettingzoo:classic.connect_four_v3`, `pettingzoo:mpe2.simple_tag_v3`, `pettingzoo:my_file.py:env`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from ludus.data.specs import ActionSpec, GameSpec, ObservationSpec, SeatKind
from ludus.data.tree_game import TreeState
from ludus.games.adapters.pettingzoo_library import ParallelEnv, close_env, make_env, quiet
from ludus.games.adapters.pettingzoo_tables import MASK, AgentForm, Agents, ParallelTable
from ludus.games.adapters.pettingzoo_teams import ZERO_SUM, base_name, group_name, team_of_each
from ludus.games.adapters.pettingzoo_turns import TurnBatch
from ludus.games.bots import RandomBot
from ludus.games.game import Bot, GameBatch
from ludus.games.lift import LiftedBatch

DEFAULT_MAX_LENGTH = 10_000
"""Cuts off episodes of environments that set no limit of their own."""


@dataclass(frozen=True, kw_only=True)
class PettingZoo:
    """An environment by family and name, or by the address of the function or class that makes it."""

    env_name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Passed on to the environment."""
    api: Literal["auto", "aec", "parallel"] = "auto"
    """`aec`: agents act in turn; `parallel`: all at once; `auto`: at once where the environment offers it."""
    bins: int | None = None
    """For continuous actions: each number becomes a choice among so many, evenly spread."""
    teams: tuple[tuple[str, ...], ...] = ()
    """Per team, names or patterns (`red_*`) of its agents; default: as known for the game, or by names."""
    zero_sum: bool | None = None
    """Whether the teams' totals add up to zero; default: only for games that are known to."""
    max_length: int | None = None
    """Cuts off longer episodes, counted in our steps; default: the environment's own `max_cycles`."""

    @cached_property
    def spec(self) -> GameSpec:
        env = self._make()
        kinds, kind_of_seat = _kinds(self._forms(env))
        zero_sum = base_name(self.env_name) in ZERO_SUM if self.zero_sum is None else self.zero_sum
        spec = GameSpec(
            name=self.env_name,
            kinds=kinds,
            seats=kind_of_seat,
            teams=team_of_each(self.env_name, env.possible_agents, self.teams),
            max_length=self._limit(env),
            zero_sum=zero_sum,
        )
        close_env(env)
        return spec

    def tables(self, num_tables: int) -> GameBatch:
        envs = [self._make() for _ in range(num_tables)]
        agents = Agents(self._forms(envs[0]))
        if isinstance(envs[0], ParallelEnv):
            return LiftedBatch(self.spec, [ParallelTable(self.spec, env, agents) for env in envs])
        return TurnBatch(self.spec, envs, agents)

    def bots(self) -> Mapping[str, Bot]:
        return {"random": RandomBot()}

    def tree(self) -> TreeState | None:
        return None

    def _make(self) -> Any:
        return make_env(self.env_name, self.api, {**self._drawing, **self.options})

    @cached_property
    def _drawing(self) -> dict[str, str]:
        """Asks for pictures where the environment can draw them; they are drawn only when looked at."""
        env = make_env(self.env_name, self.api, self.options)
        modes = env.metadata.get("render_modes", ())
        able = "rgb_array" in modes and hasattr(env, "render_mode") and ":" not in self.env_name
        close_env(env)
        return {"render_mode": "rgb_array"} if able else {}

    def _forms(self, env: Any) -> dict[str, AgentForm]:
        """What each agent sees and does. Whether masks come in the info, only a reset can tell."""
        with quiet():
            started = env.reset(seed=0)
            infos = started[1] if isinstance(env, ParallelEnv) else env.infos
            in_info = any(MASK in info for info in infos.values())
            forms: dict[str, AgentForm] = {}
            for agent in env.possible_agents:
                alike = (other for other in forms if _same_spaces(env, agent, other))
                other = next(alike, None)
                forms[agent] = forms[other] if other else AgentForm.of(env, agent, in_info, self.bins)
            return forms

    def _limit(self, env: Any) -> int:
        own = getattr(env.unwrapped, "max_cycles", None)
        if isinstance(own, int):
            own = own if isinstance(env, ParallelEnv) else own * len(env.possible_agents)
        limits = [limit for limit in (self.max_length, own) if isinstance(limit, int)]
        return min(limits, default=DEFAULT_MAX_LENGTH)


def _same_spaces(env: Any, one: str, other: str) -> bool:
    same_view: bool = env.observation_space(one) == env.observation_space(other)
    return same_view and bool(env.action_space(one) == env.action_space(other))


def _kinds(forms: Mapping[str, AgentForm]) -> tuple[tuple[SeatKind, ...], tuple[int, ...]]:
    """Agents that see and do alike are one kind; also, per agent, its kind."""
    shapes: list[tuple[ObservationSpec, ActionSpec]] = []
    first: list[str] = []
    kind_of_seat: list[int] = []
    for agent, form in forms.items():
        shape = form.observation_spec, form.action_spec
        if shape not in shapes:
            shapes.append(shape)
            first.append(agent)
        kind_of_seat.append(shapes.index(shape))
    names = ["player"] if len(first) == 1 else [group_name(agent) for agent in first]
    if len(set(names)) < len(names):
        names = first
    kinds = [
        SeatKind(name=name, observation=observation, action=action)
        for name, (observation, action) in zip(names, shapes, strict=True)
    ]
    return tuple(kinds), tuple(kind_of_seat)
