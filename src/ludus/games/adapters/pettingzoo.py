"""PettingZoo environments as games: one seat per possible agent.

`pettingzoo:classic.connect_four_v3`, `pettingzoo:mpe2.simple_tag_v3`, `pettingzoo:my_file.py:env`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import CRITIC_PREFIX, ActionSpec, Choice, GameSpec, ObservationSpec, SeatKind
from ludus.data.trees import Array, IntArray, Tree, allocate
from ludus.games.adapters.gymnasium_spaces import ActionCodec, Leaf, array_leaf, observation_leaves, observation_spec
from ludus.games.adapters.pettingzoo_library import (
    HIDDEN_INFORMATION,
    ZERO_SUM,
    ParallelEnv,
    base_name,
    close_env,
    group_name,
    make_env,
    quiet,
    team_of_each,
)
from ludus.games.game import Action, Actions, GameBatch, Observation, Seat, TableView, Turn
from ludus.games.lift import LiftedBatch
from ludus.games.seat_rows import GameError, SeatRows, nearest
from ludus.games.tables import ArrayTables, GameDefaults

MASK = "action_mask"
"""Key of the mask of legal moves, in the observation or in the info."""

MOST_STATE = 2**20
"""Largest state that critics are shown: four megabytes for every seat of every table."""

NOBODY = -1
ALL = slice(None)

DEFAULT_MAX_LENGTH = 10_000
"""Steps after which episodes are cut off if the environment has no limit of its own."""


@dataclass(frozen=True, kw_only=True)
class PettingZoo(GameDefaults):
    """An environment by family and name, or by the address of a function or class that makes it."""

    env_name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment."""
    api: Literal["auto", "aec", "parallel"] = "auto"
    """`aec`: agents act in turn; `parallel`: all at once; `auto`: all at once if the environment offers it."""
    bins: int | None = None
    """Options per number of continuous actions, evenly spread; None: they are real numbers."""
    teams: tuple[tuple[str, ...], ...] = ()
    """Per team, names or patterns (`red_*`) of its agents; default: as known for the game, else by names."""
    zero_sum: bool | None = None
    """Whether the teams' totals add up to zero; default: as known for the game, else no."""
    max_length: int | None = None
    """Steps after which an episode is cut off; default: the environment's own `max_cycles`."""
    critic_state: bool = False
    """Show the environment's `state()` to critics (`model.central_critic`). Off by default: reading it takes time, and
    in some environments it is a large picture."""
    critic_observations: bool = False
    """Show critics the observations of all other agents: first those of the same kind from the next seat on, so that
    critics of alike agents see alike, then the others in order; zeros for agents that are not there."""

    @cached_property
    def spec(self) -> GameSpec:
        env = self._make()
        kinds, kind_of_seat = _kinds(self._agents(env))
        zero_sum = base_name(self.env_name) in ZERO_SUM if self.zero_sum is None else self.zero_sum
        spec = GameSpec(
            name=self.env_name,
            kinds=kinds,
            seats=kind_of_seat,
            teams=team_of_each(self.env_name, env.possible_agents, self.teams),
            max_length=self._limit(env),
            zero_sum=zero_sum,
            hidden_information=base_name(self.env_name) in HIDDEN_INFORMATION or None,
        )
        close_env(env)
        return spec

    def tables(self, num_tables: int) -> GameBatch:
        envs = [self._make() for _ in range(num_tables)]
        agents = self._agents(envs[0])
        if isinstance(envs[0], ParallelEnv):
            return LiftedBatch(self.spec, [ParallelTable(self.spec, env, agents) for env in envs])
        return TurnTables(self.spec, envs, agents)

    def _make(self) -> Any:
        return make_env(self.env_name, self.api, {**self._drawing, **self.options})

    @cached_property
    def _drawing(self) -> dict[str, str]:
        """The option for pictures, if the environment can draw them; they are drawn on demand only."""
        env = make_env(self.env_name, self.api, self.options)
        modes = env.metadata.get("render_modes", ())
        able = "rgb_array" in modes and hasattr(env, "render_mode") and ":" not in self.env_name
        close_env(env)
        return {"render_mode": "rgb_array"} if able else {}

    def _agents(self, env: Any) -> Agents:
        """The agents with their forms. Only a reset shows whether masks come in the info."""
        with quiet():
            started = env.reset(seed=0)
            infos = started[1] if isinstance(env, ParallelEnv) else env.infos
            in_info = any(MASK in info for info in infos.values())
            forms: dict[str, AgentForm] = {}
            made: list[tuple[AgentForm, Any]] = []
            for agent in env.possible_agents:
                spaces = env.observation_space(agent), env.action_space(agent)
                alike = (form for form, known in made if known == spaces)
                forms[agent] = next(alike, None) or AgentForm.of(env, agent, in_info, self.bins)
                made.append((forms[agent], spaces))
            state = _state_leaves(env, self.env_name) if self.critic_state else ()
            return Agents(forms, state, others=self.critic_observations)

    def _limit(self, env: Any) -> int:
        own = getattr(env.unwrapped, "max_cycles", None)
        if isinstance(own, int):
            own = own if isinstance(env, ParallelEnv) else own * len(env.possible_agents)
        limits = [limit for limit in (self.max_length, own) if isinstance(limit, int)]
        return min(limits, default=DEFAULT_MAX_LENGTH)


def _kinds(all_agents: Agents) -> tuple[tuple[SeatKind, ...], tuple[int, ...]]:
    """One kind for all agents of the same specs, and the kind of each agent."""
    agents, forms = all_agents.names, all_agents.forms
    shapes = [(all_agents.observation_spec(seat), form.action_spec) for seat, form in enumerate(forms)]
    alike = [shapes.index(shape) for shape in shapes]
    first = sorted(set(alike))
    names = ["player"] if len(first) == 1 else [group_name(agents[place]) for place in first]
    if len(set(names)) < len(names):
        names = [agents[place] for place in first]
    kinds = [
        SeatKind(name=name, observation=shapes[place][0], action=shapes[place][1])
        for name, place in zip(names, first, strict=True)
    ]
    return tuple(kinds), tuple(first.index(place) for place in alike)


def _state_leaves(env: Any, name: str) -> tuple[Leaf, ...]:
    """The parts of the state of an environment that has been reset, for critics."""
    try:
        state = env.state()
    except (AttributeError, NotImplementedError) as error:
        raise GameError(f"critic_state: {name} cannot tell its state(): {error or type(error).__name__}") from None
    space = getattr(env, "state_space", None)
    leaves = [array_leaf(np.asarray(state))] if space is None else observation_leaves(space)
    size = sum(array.size for leaf in leaves for array in _nothing(leaf).values())
    if size > MOST_STATE:
        raise GameError(f"critic_state: the state of {name} has {size:,} numbers; the limit is {MOST_STATE:,}")
    return tuple(replace(leaf, name="_".join(("state", *map(str, leaf.path)))) for leaf in leaves)


def _nothing(leaf: Leaf) -> Tree:
    return allocate(leaf.part.arrays(leaf.name), ())


@dataclass(frozen=True, slots=True, eq=False)
class AgentForm:
    """The spaces of an agent as specs, and the conversion of its values."""

    leaves: tuple[Leaf, ...]
    codec: ActionCodec
    mask_in_observation: bool
    masked: bool

    @classmethod
    def of(cls, env: Any, agent: str, mask_in_info: bool, bins: int | None) -> AgentForm:
        where = f"{env.metadata.get('name', type(env).__name__)}, agent {agent}"
        leaves = observation_leaves(env.observation_space(agent))
        shown = tuple(leaf for leaf in leaves if leaf.path[:1] != (MASK,))
        in_observation = len(shown) < len(leaves)
        codec = ActionCodec.of(env.action_space(agent), where, bins)
        masked = in_observation or mask_in_info
        if masked and not codec.single:
            raise ValueError(f"{where}: a mask for the action space {env.action_space(agent)} is not supported")
        return cls(shown, codec, in_observation, masked)

    @property
    def observation_spec(self) -> ObservationSpec:
        return observation_spec(list(self.leaves))

    @property
    def action_spec(self) -> ActionSpec:
        if not self.masked:
            return self.codec.spec
        heads = self.codec.spec.heads.items()
        return ActionSpec(heads={name: replace(head, masked=True) for name, head in heads if isinstance(head, Choice)})

    def observe(self, observation: Any) -> Observation:
        leaves = self.leaves
        if len(leaves) == 1:
            return leaves[0].read(observation)
        return {leaf.name: leaf.read(observation) for leaf in leaves}

    def masks(self, observations: Sequence[Any], infos: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Masks as the environment gives them; None where it gives none."""
        if self.mask_in_observation:
            return [observation[MASK] for observation in observations]
        return [info.get(MASK) for info in infos]

    def mask(self, observation: Any, info: Mapping[str, Any]) -> NDArray[np.bool_] | None:
        (mask,) = self.masks([observation], [info])
        return None if mask is None else np.asarray(mask).astype(np.bool_)

    def move(self, action: Action) -> Any:
        if self.codec.single:
            return action + int(self.codec.start[0])
        chosen = action if isinstance(action, Mapping) else dict.fromkeys(self.codec.spec.heads, action)
        return self.codec.decode({name: np.array([[number]]) for name, number in chosen.items()})[0]


def _named(form: AgentForm, observation: Observation) -> dict[str, Array]:
    return dict(observation) if isinstance(observation, Mapping) else {form.leaves[0].name: observation}


class Agents:
    """The agents of an environment: names, forms, seats, and what their critics see of the environment."""

    def __init__(self, forms: Mapping[str, AgentForm], state: tuple[Leaf, ...] = (), *, others: bool = False) -> None:
        self.names = tuple(forms)
        self.forms = tuple(forms.values())
        self.seats = {name: seat for seat, name in enumerate(forms)}
        self.with_critic = bool(state) or others
        self._state = state
        self._others = [self._in_turn(seat) if others else () for seat in range(len(forms))]
        """Per seat, the others whose observations its critic sees."""

    def _in_turn(self, seat: Seat) -> tuple[Seat, ...]:
        """All other seats: those of the same form from the next one on, then the others in order."""
        number = len(self.forms)
        following = [(seat + step) % number for step in range(1, number)]
        alike = [other for other in following if self.forms[other] is self.forms[seat]]
        return (*alike, *sorted(set(following) - set(alike)))

    def observation_spec(self, seat: Seat) -> ObservationSpec:
        own = self.forms[seat].observation_spec
        state = {leaf.name: leaf.part for leaf in self._state}
        others = {name: leaf.part for name, leaf, _ in self._parts_of_others(seat)}
        return replace(own, critic={**state, **others}, common=tuple(state))

    def observe_all(self, env: Any, observations: Mapping[str, Any]) -> dict[str, Observation]:
        """The observations of these agents in arrays, with what critics see of the environment as it is now."""
        own = {agent: self.observe(agent, observation) for agent, observation in observations.items()}
        return own if not self.with_critic else self._with_critic(env, own, own)

    def observe_one(self, env: Any, agent: str, observation: Any) -> Observation:
        """The same for the agent whose turn it is."""
        own = {agent: self.observe(agent, observation)}
        if not self.with_critic:
            return own[agent]
        there = env.agents if any(self._others) else ()
        present = {other: self.observe(other, env.observe(other)) for other in there}
        return self._with_critic(env, own, present)[agent]

    def at_end(self, env: Any, left: Mapping[Seat, Observation], last: Mapping[str, Any]) -> dict[Seat, Observation]:
        """The last observations of agents that have left before; their critics see the end of the episode."""
        if not self.with_critic or not left:
            return dict(left)
        present = {agent: self.observe(agent, observation) for agent, observation in last.items()}
        own = {self.names[seat]: observation for seat, observation in left.items()}
        return {self.seats[agent]: seen for agent, seen in self._with_critic(env, own, present).items()}

    def _with_critic(
        self, env: Any, own: Mapping[str, Observation], present: Mapping[str, Observation]
    ) -> dict[str, Observation]:
        """`own` with the state, and with the observations of the agents that are present."""
        raw = env.state() if self._state else None  # once for all agents
        state = {CRITIC_PREFIX + leaf.name: leaf.read(raw) for leaf in self._state}
        seen: dict[str, Observation] = {}
        for agent, observation in own.items():
            parts = _named(self.forms[self.seat(agent)], observation)
            for name, leaf, other in self._parts_of_others(self.seat(agent)):
                there = present.get(self.names[other])
                shown = _nothing(leaf) if there is None else _named(self.forms[other], there)
                parts[CRITIC_PREFIX + name] = shown[leaf.name]
            seen[agent] = {**parts, **state}
        return seen

    def _parts_of_others(self, seat: Seat) -> Iterator[tuple[str, Leaf, Seat]]:
        """The name of each part that the critic of a seat sees of another one: `other1`, or `other1_NAME`."""
        for number, other in enumerate(self._others[seat], start=1):
            leaves = self.forms[other].leaves
            for leaf in leaves:
                yield f"other{number}" if len(leaves) == 1 else f"other{number}_{leaf.name}", leaf, other

    def seat(self, agent: str) -> int:
        try:
            return self.seats[agent]
        except KeyError:
            hint = nearest(str(agent), self.names)
            raise GameError(f"agent {agent!r} is not one of possible_agents{hint}") from None

    def observe(self, agent: str, observation: Any) -> Observation:
        return self.forms[self.seat(agent)].observe(observation)


class ParallelTable:
    """A `Game`: a parallel environment, in which every present agent acts at each step."""

    def __init__(self, spec: GameSpec, env: Any, agents: Agents) -> None:
        self.spec = spec
        self._env = env
        self._agents = agents
        self._steps = 0
        self._left: dict[int, Observation] = {}
        """Last observations of agents that have left."""
        if getattr(env, "render_mode", None) == "rgb_array":
            self.render = self._render  # with this, and only then, tables have pictures

    def reset(self, seed: int) -> Turn:
        self._steps = 0
        self._left = {}
        observations, infos = self._env.reset(seed=small(seed))
        seen = self._agents.observe_all(self._env, observations)
        return self._turn(observations, seen, infos, {}, self._env.agents)

    def step(self, actions: Mapping[int, Action]) -> Turn:
        agents = self._agents
        moves = {agents.names[seat]: agents.forms[seat].move(action) for seat, action in actions.items()}
        observations, rewards, terminations, truncations, infos = self._env.step(moves)
        self._steps += 1
        # Some environments keep truncated agents in their list.
        here = [agent for agent in self._env.agents if not (terminations.get(agent) or truncations.get(agent))]
        reward = {agents.seat(agent): paid for agent, paid in rewards.items()}
        seen = agents.observe_all(self._env, observations)
        for agent in observations.keys() - set(here):
            self._left[agents.seat(agent)] = deepcopy(seen[agent])
        if not here:
            if any(cut and not terminations.get(agent) for agent, cut in truncations.items()):
                return Turn(observations=self._at_end(observations), reward=reward, truncated=True)
            return Turn(observations={}, reward=reward, over=True)
        return self._turn(observations, seen, infos, reward, here)

    def close(self) -> None:
        close_env(self._env)

    def _render(self, seat: int | None) -> NDArray[np.uint8]:
        return np.asarray(self._env.render(), np.uint8)

    def _at_end(self, observations: Mapping[str, Any]) -> dict[Seat, Observation]:
        """Last observations of the agents that have left; critics of those that left before see the end, too."""
        before = {seat: seen for seat, seen in self._left.items() if self._agents.names[seat] not in observations}
        return {**self._left, **self._agents.at_end(self._env, before, observations)}

    def _turn(
        self,
        observations: Mapping[str, Any],
        observed: Mapping[str, Observation],
        infos: Mapping[str, Mapping[str, Any]],
        reward: Mapping[int, float],
        here: Iterable[str],
    ) -> Turn:
        seen: dict[int, Observation] = {}
        legal: dict[int, Array] = {}
        for agent in here:
            seat = self._agents.seat(agent)
            form, observation = self._agents.forms[seat], observations[agent]
            seen[seat] = observed[agent]
            mask = form.mask(observation, infos.get(agent, {})) if form.masked else None
            if mask is not None:
                legal[seat] = mask
        if self._steps >= self.spec.max_length:
            return Turn(observations={**self._at_end(observations), **seen}, reward=reward, truncated=True)
        return Turn(observations=seen, legal=legal, reward=reward)


class TurnTables(ArrayTables):
    """Environments with turns (AEC). The reward of an agent, when its turn comes, is that of `last()`: the sum
    since its previous action."""

    def __init__(self, spec: GameSpec, envs: Sequence[Any], agents: Agents) -> None:
        super().__init__(spec, len(envs))
        self._envs = envs
        self._agents = agents
        self._rows = [SeatRows.of_table(spec, self.view, table) for table in range(len(envs))]
        forms = list({id(form): form for form in agents.forms}.values())
        self._groups = [_Group(self.view, spec, form, agents.forms.index(form)) for form in forms]
        self._group_of_seat = np.array([forms.index(form) for form in agents.forms])
        self._column_of_seat = np.array(spec.column_of_seat)
        self._seat = np.full(len(envs), NOBODY)
        """[tables]: the seat to act."""
        self._steps = np.zeros(len(envs), np.int64)
        self._total = [[0.0] * spec.num_seats for _ in envs]
        self._left: list[dict[Seat, Observation]] = [{} for _ in envs]
        """Per table, the last observations of agents that have left."""
        if all(getattr(env, "render_mode", None) == "rgb_array" for env in envs):
            self.render = self._render  # with this, and only then, it is a `HasPicture`

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self._start_episodes(tables)
        self._steps[tables] = 0
        for table, seed in zip(tables.tolist(), seeds.tolist(), strict=True):
            self._left[table] = {}
            self._total[table] = [0.0] * self.spec.num_seats
            try:
                self._envs[table].reset(seed=small(seed))
            except Exception as error:
                self._note(error, table, f"reset({seed})")
                raise
        self._show(tables)
        paid = tables[self.view.reward[tables].any(axis=1)]
        if len(paid):
            raise GameError(f"{self._where(paid[0])}: a reward at reset, before any agent has acted")

    def step(self, actions: Actions) -> None:
        self._require_within_bounds(actions)
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
        view, seat_of = self.view, self._agents.seats
        view.reward[tables] = 0.0
        view.to_act[tables] = False
        self._seat[tables] = NOBODY
        late = self._steps[tables] >= self.spec.max_length
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
                if paid:  # rare, so that saving the call pays
                    self._pay(table, agent, paid)
        except Exception as error:
            self._note(error, table, "the next turn")
            raise
        if acting:
            self._hand_over(np.array(acting), np.array(seats), seen, infos)

    def _hand_over(self, tables: IntArray, seats: IntArray, seen: list[Any], infos: list[Any]) -> None:
        """Write observations and masks of the agents to act."""
        for group, rows in self._by_group(seats):
            views, notes = seen, infos
            if rows is not ALL:
                views, notes = [seen[row] for row in rows], [infos[row] for row in rows]
            # What critics see is written row by row.
            columns = self._column_of_seat[seats[rows]]
            if self._agents.with_critic or not group.write(tables[rows], columns, views, notes):
                self._write_each(group.form, tables[rows], seats[rows], views, notes)
        self._seat[tables] = seats
        self.view.to_act[tables, seats] = True

    def _write_each(
        self, form: AgentForm, tables: IntArray, seats: IntArray, seen: Sequence[Any], infos: Sequence[Any]
    ) -> None:
        """Write row by row, so that an error names its table and seat."""
        for table, seat, observation, info in zip(tables, seats, seen, infos, strict=True):
            row = self._rows[table][seat]
            row.write_observation(self._agents.observe_one(self._envs[table], self._agents.names[seat], observation))
            row.write_legal(form.mask(observation, info) if form.masked else None)

    def _by_group(self, seats: IntArray) -> Iterator[tuple[_Group, Any]]:
        """The seats by groups of equal spaces, as an index or `ALL`."""
        if len(self._groups) == 1:
            yield self._groups[0], ALL
            return
        groups = self._group_of_seat[seats]
        for number, group in enumerate(self._groups):
            rows = np.flatnonzero(groups == number)
            if len(rows):
                yield group, rows

    def _take_leave(self, table: int) -> bool:
        """Step agents that are terminated, up to the next one that is not; False: the episode has ended."""
        env = self._envs[table]
        agent = env.agent_selection
        while env.terminations.get(agent, True) or env.truncations[agent]:
            if all(env.terminations[one] or env.truncations[one] for one in env.agents):
                cut = any(env.truncations[one] and not env.terminations[one] for one in env.agents)
                self._end(table, cut)
                return False
            observation, paid, *_ = env.last()
            self._pay(table, agent, paid)
            seen = self._agents.observe_one(env, agent, observation)
            self._left[table][self._agents.seat(agent)] = deepcopy(seen)
            env.step(None)
            agent = env.agent_selection
        return True

    def _end(self, table: int, cut: bool) -> None:
        env, view, spec = self._envs[table], self.view, self.spec
        for agent, paid in env._cumulative_rewards.items():
            if agent in env.agents or self._agents.seat(agent) not in self._left[table]:
                self._pay(table, agent, paid)  # the others were paid when they left
        if cut:
            last = {agent: env.observe(agent) for agent in env.agents}
            seen = self._agents.at_end(env, self._left[table], last)
            seen |= {self._agents.seat(agent): one for agent, one in self._agents.observe_all(env, last).items()}
            for seat, observation in seen.items():
                self._rows[table][seat].write_observation(observation)
        total = self._total[table]
        view.score[table] = [sum(total[seat] for seat in seats) / len(seats) for seats in spec.seats_of_team]
        view.over[table], view.truncated[table] = not cut, cut

    def _pay(self, table: int, agent: str, paid: float) -> None:
        if paid:
            seat = self._agents.seat(agent)
            self.view.reward[table, seat] = paid
            self._total[table][seat] += paid

    def _where(self, table: int) -> str:
        return f"{self.spec.name}, table {table}"

    def _note(self, error: Exception, table: int, when: str) -> None:
        error.add_note(f"raised by {self._where(table)}, in {when}")


class _Group:
    """Agents with the same spaces, whose actions and observations are converted together."""

    def __init__(self, view: TableView, spec: GameSpec, form: AgentForm, seat: Seat) -> None:
        self.form = form
        self._kind = spec.seats[seat]
        self._parts = [(leaf, view.observation[self._kind][leaf.name]) for leaf in form.leaves]
        self._legal = next(iter(view.legal[self._kind].values()), None)

    def moves(self, actions: Actions, tables: IntArray, columns: IntArray) -> Sequence[Any]:
        """Actions for the environments at these tables."""
        heads = {name: array[tables, columns, None] for name, array in actions[self._kind].items()}
        moves = self.form.codec.decode(heads)
        return moves.tolist() if self.form.codec.single else list(moves)

    def write(self, tables: IntArray, columns: IntArray, seen: list[Any], infos: list[Any]) -> bool:
        """Write all rows; False if a value is missing or does not fit, and then nothing is written."""
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


def small(seed: int) -> int:
    """A seed of 31 bits, which environments written in C accept too."""
    return seed & (2**31 - 1)
