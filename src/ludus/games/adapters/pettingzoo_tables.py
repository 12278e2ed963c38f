"""One table of a PettingZoo environment: agents in turn (AEC) or all at once (parallel)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ActionSpec, GameSpec, ObservationSpec
from ludus.data.trees import Array
from ludus.games.adapters.gymnasium_spaces import ActionCodec, Leaf, observation_leaves, observation_spec
from ludus.games.adapters.pettingzoo_library import close_env
from ludus.games.game import Action, Observation, Turn
from ludus.games.seat_rows import GameError

MASK = "action_mask"
"""Where PettingZoo's games keep legal moves: in the observation, or in the info beside it."""


@dataclass(frozen=True, slots=True)
class AgentForm:
    """What one agent sees and does, in the environment's terms and in ours."""

    leaves: tuple[Leaf, ...]
    codec: ActionCodec
    mask_in_observation: bool
    masked: bool

    @classmethod
    def of(cls, env: Any, agent: str, mask_in_info: bool, bins: int | None) -> AgentForm:
        """`mask_in_info`: the environment gives masks beside its observations."""
        where = f"{env.metadata.get('name', type(env).__name__)}, agent {agent}"
        leaves = observation_leaves(env.observation_space(agent))
        shown = tuple(leaf for leaf in leaves if leaf.path[:1] != (MASK,))
        in_observation = len(shown) < len(leaves)
        codec = ActionCodec.of(env.action_space(agent), where, bins)
        masked = in_observation or mask_in_info
        if masked and not codec.single:
            raise ValueError(
                f"{where}: a mask for the action space {env.action_space(agent)} is not supported"
            )
        return cls(shown, codec, in_observation, masked)

    @property
    def observation_spec(self) -> ObservationSpec:
        return observation_spec(list(self.leaves))

    @property
    def action_spec(self) -> ActionSpec:
        if not self.masked:
            return self.codec.spec
        return ActionSpec(
            heads={name: replace(head, masked=True) for name, head in self.codec.spec.heads.items()}
        )

    def observe(self, observation: Any) -> Observation:
        leaves = self.leaves
        if len(leaves) == 1:
            return leaves[0].read(observation)
        return {leaf.name: leaf.read(observation) for leaf in leaves}

    def mask(self, observation: Any, info: Mapping[str, Any]) -> NDArray[np.bool_] | None:
        mask = observation[MASK] if self.mask_in_observation else info.get(MASK)
        return None if mask is None else np.asarray(mask).astype(np.bool_)

    def move(self, action: Action) -> Any:
        if self.codec.single:
            return action + int(self.codec.start[0])
        chosen = action if isinstance(action, Mapping) else dict.fromkeys(self.codec.spec.heads, action)
        return self.codec.decode({name: np.array([[number]]) for name, number in chosen.items()})[0]


class _Table:
    """What both APIs share: seats by the names of the agents, and what agents that have left last saw."""

    def __init__(self, spec: GameSpec, env: Any, forms: Mapping[str, AgentForm]) -> None:
        self.spec = spec
        self.env = env
        self.max_length = spec.max_length
        self.steps = 0
        self._names = tuple(forms)
        self._forms = tuple(forms.values())
        self._seats = {name: seat for seat, name in enumerate(forms)}
        self._left: dict[int, Observation] = {}
        if getattr(env, "render_mode", None) == "rgb_array":
            self.render = self._render  # with this, and only then, tables have pictures

    def close(self) -> None:
        close_env(self.env)

    def _render(self, seat: int | None) -> NDArray[np.uint8]:
        picture: NDArray[np.uint8] = np.asarray(self.env.render(), np.uint8)
        return picture

    def _begin(self) -> None:
        self.steps = 0
        self._left = {}

    def _seat(self, agent: str) -> int:
        try:
            return self._seats[agent]
        except KeyError:
            close = difflib.get_close_matches(str(agent), self._names, n=1)
            known = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(self._names)}"
            raise GameError(f"agent {agent!r} is not one of possible_agents; {known}") from None

    def _leave(self, agent: str, observation: Any) -> None:
        """Keep what an agent sees at its end: a table that is cut off later needs it."""
        seat = self._seat(agent)
        seen = self._forms[seat].observe(observation)
        copied = {name: np.array(part) for name, part in seen.items()} if isinstance(seen, Mapping) else None
        self._left[seat] = np.array(seen) if copied is None else copied

    def _cut_off(self, observations: Mapping[int, Observation], reward: Mapping[int, float]) -> Turn:
        return Turn(observations={**self._left, **observations}, reward=reward, truncated=True)


class TurnTable(_Table):
    """An AEC environment: one agent acts at a time.

    Rewards are those of `last()`: all that an agent was given since it acted last, when its turn comes.
    """

    def reset(self, seed: int) -> Turn:
        self._begin()
        self.env.reset(seed=small(seed))
        return self._turn()

    def step(self, actions: Mapping[int, Action]) -> Turn:
        ((seat, action),) = actions.items()
        self.env.step(self._forms[seat].move(action))
        self.steps += 1
        return self._turn()

    def _turn(self) -> Turn:
        env = self.env
        reward: dict[int, float] = {}
        agent = env.agent_selection
        while env.terminations.get(agent, True) or env.truncations[agent]:
            if all(env.terminations[one] or env.truncations[one] for one in env.agents):
                cut = any(env.truncations[one] and not env.terminations[one] for one in env.agents)
                return self._end(reward, cut)
            observation, paid, *_ = env.last()
            reward[self._seat(agent)] = paid
            self._leave(agent, observation)
            env.step(None)
            agent = env.agent_selection
        if self.steps >= self.max_length:
            return self._end(reward, cut=True)
        observation, paid, _, _, info = env.last()
        seat = self._seat(agent)
        reward[seat] = paid
        form = self._forms[seat]
        legal = form.mask(observation, info) if form.masked else None
        return Turn(
            observations={seat: form.observe(observation)},
            legal={} if legal is None else {seat: legal},
            reward=reward,
        )

    def _end(self, reward: dict[int, float], cut: bool) -> Turn:
        env = self.env
        for agent, paid in env._cumulative_rewards.items():
            reward[self._seat(agent)] = paid
        if not cut:
            return Turn(observations={}, reward=reward, over=True)
        seats = {self._seat(agent): agent for agent in env.agents}
        seen = {seat: self._forms[seat].observe(env.observe(agent)) for seat, agent in seats.items()}
        return self._cut_off(seen, reward)


class ParallelTable(_Table):
    """A parallel environment: every agent that is there acts at each step."""

    def reset(self, seed: int) -> Turn:
        self._begin()
        observations, infos = self.env.reset(seed=small(seed))
        return self._turn(observations, infos, {}, self.env.agents)

    def step(self, actions: Mapping[int, Action]) -> Turn:
        names, forms = self._names, self._forms
        moves = {names[seat]: forms[seat].move(action) for seat, action in actions.items()}
        observations, rewards, terminations, truncations, infos = self.env.step(moves)
        self.steps += 1
        # Some environments leave agents that were cut off in their list.
        here = [agent for agent in self.env.agents if not (terminations.get(agent) or truncations.get(agent))]
        reward = {self._seat(agent): paid for agent, paid in rewards.items()}
        for agent in observations.keys() - set(here):
            self._leave(agent, observations[agent])
        if not here:
            if any(cut and not terminations.get(agent) for agent, cut in truncations.items()):
                return self._cut_off({}, reward)
            return Turn(observations={}, reward=reward, over=True)
        return self._turn(observations, infos, reward, here)

    def _turn(
        self,
        observations: Mapping[str, Any],
        infos: Mapping[str, Mapping[str, Any]],
        reward: Mapping[int, float],
        here: Iterable[str],
    ) -> Turn:
        seen: dict[int, Observation] = {}
        legal: dict[int, Array] = {}
        for agent in here:
            seat = self._seat(agent)
            form, observation = self._forms[seat], observations[agent]
            seen[seat] = form.observe(observation)
            mask = form.mask(observation, infos.get(agent, {})) if form.masked else None
            if mask is not None:
                legal[seat] = mask
        if self.steps >= self.max_length:
            return self._cut_off(seen, reward)
        return Turn(observations=seen, legal=legal, reward=reward)


def small(seed: int) -> int:
    """A seed that environments written in C take too: 31 bits."""
    return seed & (2**31 - 1)
