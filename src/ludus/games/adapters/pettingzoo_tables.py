"""What PettingZoo's agents see and do in our terms, and one table at which all act at once (parallel)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
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


@dataclass(frozen=True, slots=True, eq=False)
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
            raise ValueError(f"{where}: a mask for the action space {env.action_space(agent)} is not supported")
        return cls(shown, codec, in_observation, masked)

    @property
    def observation_spec(self) -> ObservationSpec:
        return observation_spec(list(self.leaves))

    @property
    def action_spec(self) -> ActionSpec:
        if not self.masked:
            return self.codec.spec
        return ActionSpec(heads={name: replace(head, masked=True) for name, head in self.codec.spec.heads.items()})

    def observe(self, observation: Any) -> Observation:
        leaves = self.leaves
        if len(leaves) == 1:
            return leaves[0].read(observation)
        return {leaf.name: leaf.read(observation) for leaf in leaves}

    def masks(self, observations: Sequence[Any], infos: Sequence[Mapping[str, Any]]) -> list[Any]:
        """As the environment gives them; None where it gives none."""
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


class Agents:
    """The seats of the agents, by their names."""

    def __init__(self, forms: Mapping[str, AgentForm]) -> None:
        self.names = tuple(forms)
        self.forms = tuple(forms.values())
        self.seats = {name: seat for seat, name in enumerate(forms)}

    def seat(self, agent: str) -> int:
        try:
            return self.seats[agent]
        except KeyError:
            close = difflib.get_close_matches(str(agent), self.names, n=1)
            known = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(self.names)}"
            raise GameError(f"agent {agent!r} is not one of possible_agents; {known}") from None

    def observe(self, agent: str, observation: Any) -> Observation:
        return self.forms[self.seat(agent)].observe(observation)

    def keep(self, agent: str, observation: Any) -> Observation:
        """A copy of what an agent sees at its end: a table that is cut off later needs it."""
        seen = self.observe(agent, observation)
        if isinstance(seen, Mapping):
            return {name: np.array(part) for name, part in seen.items()}
        return np.array(seen)


class ParallelTable:
    """A parallel environment: every agent that is there acts at each step."""

    def __init__(self, spec: GameSpec, env: Any, agents: Agents) -> None:
        self.spec = spec
        self._env = env
        self._agents = agents
        self._steps = 0
        self._left: dict[int, Observation] = {}
        """What agents that are gone saw last."""
        if getattr(env, "render_mode", None) == "rgb_array":
            self.render = self._render  # with this, and only then, tables have pictures

    def reset(self, seed: int) -> Turn:
        self._steps = 0
        self._left = {}
        observations, infos = self._env.reset(seed=small(seed))
        return self._turn(observations, infos, {}, self._env.agents)

    def step(self, actions: Mapping[int, Action]) -> Turn:
        agents = self._agents
        moves = {agents.names[seat]: agents.forms[seat].move(action) for seat, action in actions.items()}
        observations, rewards, terminations, truncations, infos = self._env.step(moves)
        self._steps += 1
        # Some environments leave agents that were cut off in their list.
        here = [agent for agent in self._env.agents if not (terminations.get(agent) or truncations.get(agent))]
        reward = {agents.seat(agent): paid for agent, paid in rewards.items()}
        for agent in observations.keys() - set(here):
            self._left[agents.seat(agent)] = agents.keep(agent, observations[agent])
        if not here:
            if any(cut and not terminations.get(agent) for agent, cut in truncations.items()):
                return Turn(observations=self._left, reward=reward, truncated=True)
            return Turn(observations={}, reward=reward, over=True)
        return self._turn(observations, infos, reward, here)

    def close(self) -> None:
        close_env(self._env)

    def _render(self, seat: int | None) -> NDArray[np.uint8]:
        return np.asarray(self._env.render(), np.uint8)

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
            seat = self._agents.seat(agent)
            form, observation = self._agents.forms[seat], observations[agent]
            seen[seat] = form.observe(observation)
            mask = form.mask(observation, infos.get(agent, {})) if form.masked else None
            if mask is not None:
                legal[seat] = mask
        if self._steps >= self.spec.max_length:
            return Turn(observations={**self._left, **seen}, reward=reward, truncated=True)
        return Turn(observations=seen, legal=legal, reward=reward)


def small(seed: int) -> int:
    """A seed that environments written in C take too: 31 bits."""
    return seed & (2**31 - 1)
