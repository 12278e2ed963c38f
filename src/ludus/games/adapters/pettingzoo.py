"""PettingZoo environments as games: one seat per possible agent.

`pettingzoo:classic.connect_four_v3`, `pettingzoo:mpe2.simple_tag_v3`, `pettingzoo:my_file.py:env`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ActionSpec, GameSpec, ObservationSpec, SeatKind
from ludus.data.tree import TreeState
from ludus.data.trees import IntArray
from ludus.games.adapters.pettingzoo_library import (
    ZERO_SUM,
    ParallelEnv,
    base_name,
    close_env,
    group_name,
    make_env,
    quiet,
    team_of_each,
)
from ludus.games.adapters.pettingzoo_tables import MASK, AgentForm, Agents, ParallelTable, small
from ludus.games.bots import RandomBot
from ludus.games.game import Actions, Bot, GameBatch, Observation, Seat, TableView
from ludus.games.lift import LiftedBatch
from ludus.games.seat_rows import GameError, SeatRows

NOBODY = -1
ALL = slice(None)


class TurnBatch:
    """A `GameBatch` over environments with turns.

    Rewards are those of `last()`: all that an agent was given since it acted last, when its turn comes.
    """

    def __init__(self, spec: GameSpec, envs: Sequence[Any], agents: Agents) -> None:
        self._spec = spec
        self._envs = envs
        self._agents = agents
        self._view = TableView.allocate(spec, len(envs))
        self._rows = [SeatRows.of_table(spec, self._view, table) for table in range(len(envs))]
        forms = list({id(form): form for form in agents.forms}.values())
        self._groups = [_Group(self._view, spec, form, agents.forms.index(form)) for form in forms]
        self._group_of_seat = np.array([forms.index(form) for form in agents.forms])
        self._column_of_seat = np.array(spec.column_of_seat)
        self._seat = np.full(len(envs), NOBODY)
        """[tables]: who acts."""
        self._steps = np.zeros(len(envs), np.int64)
        self._total = [[0.0] * spec.num_seats for _ in envs]
        self._left: list[dict[Seat, Observation]] = [{} for _ in envs]
        """Per table, what agents that are gone saw last."""
        if all(getattr(env, "render_mode", None) == "rgb_array" for env in envs):
            self.render = self._render  # with this, and only then, it is a `HasPicture`

    @property
    def spec(self) -> GameSpec:
        return self._spec

    @property
    def num_tables(self) -> int:
        return len(self._envs)

    @property
    def view(self) -> TableView:
        return self._view

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        view = self._view
        view.over[tables] = view.truncated[tables] = False
        view.score[tables] = 0.0
        self._steps[tables] = 0
        for table, seed in zip(tables.tolist(), seeds.tolist(), strict=True):
            self._left[table] = {}
            self._total[table] = [0.0] * self._spec.num_seats
            try:
                self._envs[table].reset(seed=small(seed))
            except Exception as error:
                self._note(error, table, f"reset({seed})")
                raise
        self._show(tables)
        paid = tables[view.reward[tables].any(axis=1)]
        if len(paid):
            raise GameError(f"{self._where(paid[0])}: a reward at reset, before anybody has acted")

    def step(self, actions: Actions) -> None:
        going = np.flatnonzero(self._seat != NOBODY)
        seats = self._seat[going]
        self._steps[going] += 1
        for group, rows in self._by_group(seats):
            tables = going[rows]
            moves = group.moves(actions, tables, self._column_of_seat[seats[rows]])
            for table, move in zip(tables.tolist(), moves, strict=True):
                try:
                    self._envs[table].step(move)
                except Exception as error:
                    self._note(error, table, f"step({move})")
                    raise
        self._show(going)

    def close(self) -> None:
        for env in self._envs:
            close_env(env)

    def _render(self, table: int, seat: Seat | None = None) -> NDArray[np.uint8]:
        return np.asarray(self._envs[table].render(), np.uint8)

    def _show(self, tables: IntArray) -> None:
        view, seat_of = self._view, self._agents.seats
        view.reward[tables] = 0.0
        view.to_act[tables] = False
        self._seat[tables] = NOBODY
        late = self._steps[tables] >= self._spec.max_length
        acting: list[int] = []
        seats: list[Seat] = []
        seen: list[Any] = []
        infos: list[Any] = []
        table = NOBODY
        try:
            for table, cut in zip(tables.tolist(), late.tolist(), strict=True):
                env = self._envs[table]
                agent = env.agent_selection
                if env.terminations.get(agent, True) or env.truncations[agent]:
                    if not self._take_leave(table):
                        continue
                    agent = env.agent_selection
                if cut:
                    self._end(table, cut)
                    continue
                observation, paid, _, _, info = env.last()
                acting.append(table)
                seats.append(seat_of[agent] if agent in seat_of else self._agents.seat(agent))
                seen.append(observation)
                infos.append(info)
                if paid:  # seldom, so that the call is worth saving
                    self._pay(table, agent, paid)
        except Exception as error:
            self._note(error, table, "the next turn")
            raise
        if acting:
            self._hand_over(np.array(acting), np.array(seats), seen, infos)

    def _hand_over(self, tables: IntArray, seats: IntArray, seen: list[Any], infos: list[Any]) -> None:
        """Write what the agents see and may do; from now on it is their turn."""
        for group, rows in self._by_group(seats):
            views, notes = seen, infos
            if rows is not ALL:
                views, notes = [seen[row] for row in rows], [infos[row] for row in rows]
            if not group.write(tables[rows], self._column_of_seat[seats[rows]], views, notes):
                self._write_each(group.form, tables[rows], seats[rows], views, notes)
        self._seat[tables] = seats
        self._view.to_act[tables, seats] = True

    def _write_each(
        self, form: AgentForm, tables: IntArray, seats: IntArray, seen: Sequence[Any], infos: Sequence[Any]
    ) -> None:
        """Row by row, so that what is wrong is named with its table and seat."""
        for table, seat, observation, info in zip(tables, seats, seen, infos, strict=True):
            row = self._rows[table][seat]
            row.write_observation(form.observe(observation))
            row.write_legal(form.mask(observation, info) if form.masked else None)

    def _by_group(self, seats: IntArray) -> Iterator[tuple[_Group, Any]]:
        """Which of these seats have the same spaces: an index, or `ALL`."""
        if len(self._groups) == 1:
            yield self._groups[0], ALL
            return
        groups = self._group_of_seat[seats]
        for number, group in enumerate(self._groups):
            rows = np.flatnonzero(groups == number)
            if len(rows):
                yield group, rows

    def _take_leave(self, table: int) -> bool:
        """Let agents go that are out, up to the next one that is not; False: the episode has ended."""
        env = self._envs[table]
        agent = env.agent_selection
        while env.terminations.get(agent, True) or env.truncations[agent]:
            if all(env.terminations[one] or env.truncations[one] for one in env.agents):
                cut = any(env.truncations[one] and not env.terminations[one] for one in env.agents)
                self._end(table, cut)
                return False
            observation, paid, *_ = env.last()
            self._pay(table, agent, paid)
            self._left[table][self._agents.seat(agent)] = self._agents.keep(agent, observation)
            env.step(None)
            agent = env.agent_selection
        return True

    def _end(self, table: int, cut: bool) -> None:
        env, view, spec = self._envs[table], self._view, self._spec
        for agent, paid in env._cumulative_rewards.items():
            if agent in env.agents or self._agents.seat(agent) not in self._left[table]:
                self._pay(table, agent, paid)  # the others were paid when they left
        if cut:
            here = {self._agents.seat(agent): agent for agent in env.agents}
            seen = {seat: self._agents.observe(agent, env.observe(agent)) for seat, agent in here.items()}
            for seat, observation in {**self._left[table], **seen}.items():
                self._rows[table][seat].write_observation(observation)
        total = self._total[table]
        view.score[table] = [sum(total[seat] for seat in seats) / len(seats) for seats in spec.seats_of_team]
        view.over[table], view.truncated[table] = not cut, cut

    def _pay(self, table: int, agent: str, paid: float) -> None:
        if paid:
            seat = self._agents.seat(agent)
            self._view.reward[table, seat] = paid
            self._total[table][seat] += paid

    def _where(self, table: int) -> str:
        return f"{self._spec.name}, table {table}"

    def _note(self, error: Exception, table: int, when: str) -> None:
        error.add_note(f"raised by {self._where(table)}, in {when}")


class _Group:
    """Agents with the same spaces: what they do is read, and what they see is written, in one go."""

    def __init__(self, view: TableView, spec: GameSpec, form: AgentForm, seat: Seat) -> None:
        self.form = form
        self._kind = spec.seats[seat]
        self._parts = [(leaf, view.observation[self._kind][leaf.name]) for leaf in form.leaves]
        self._legal = next(iter(view.legal[self._kind].values()), None)

    def moves(self, actions: Actions, tables: IntArray, columns: IntArray) -> Sequence[Any]:
        """What the environments at these tables are given."""
        heads = {name: array[tables, columns, None] for name, array in actions[self._kind].items()}
        moves = self.form.codec.decode(heads)
        return moves.tolist() if self.form.codec.single else list(moves)

    def write(self, tables: IntArray, columns: IntArray, seen: list[Any], infos: list[Any]) -> bool:
        """False: nothing was written, since something is missing or does not fit; row by row, all else is."""
        legal = self._legal
        try:
            arrays = [leaf.read_all(seen) for leaf, _ in self._parts]
            masks = None if legal is None else np.array(self.form.masks(seen, infos)).astype(np.bool_)
        except (IndexError, KeyError, TypeError, ValueError):
            return False
        parts = [part for _, part in self._parts]
        for part, array in zip(parts, arrays, strict=True):
            if array.shape[1:] != part.shape[2:] or not np.can_cast(array.dtype, part.dtype, "same_kind"):
                return False
        if legal is not None and masks is not None:
            if masks.shape[1:] != legal.shape[2:] or not masks.any(axis=1).all():
                return False
            legal[tables, columns] = masks
        for part, array in zip(parts, arrays, strict=True):
            part[tables, columns] = array
        return True


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
