"""The games that run in an engine's process: a scenario for one player, and one player of a duel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import vizdoom
from numpy.typing import NDArray

from ludus.data.specs import ActionSpec, Choice, GameSpec
from ludus.games.adapters.vizdoom import ViZDoom
from ludus.games.adapters.vizdoom_engine import (
    buttons_of,
    observation_spec,
    open_scenario,
    see,
    start,
    tics_of,
)
from ludus.games.game import Seat, Turn

REST, RUN, SHOW = range(3)
"""What a player of a duel does in a step: nothing, one tic, or one tic after which its screen is drawn."""
_CONNECT_S = 15
"""How long the engines of a duel wait for each other."""
_HOST = (
    "-host 2 -deathmatch +sv_forcerespawn 1 +sv_noautoaim 1 +sv_respawnprotect 1 +sv_spawnfarthest 1 "
    "+viz_respawn_delay 0"
)


class DoomTable:
    """A scenario for one player."""

    def __init__(self, **options: Any) -> None:
        self._source = ViZDoom(**options)
        self.spec: GameSpec = self._source.spec
        self._engine = open_scenario(self._source)
        self._tics = tics_of(self._source, self._engine)
        self._engine.set_episode_timeout(self._tics)
        self._buttons = buttons_of(self._engine)
        start(self._engine)
        self._steps = 0
        self._seen: dict[str, NDArray[Any]] = {}

    def reset(self, seed: int) -> Turn:
        self._engine.set_seed(seed % 2**31)
        self._engine.new_episode()
        self._steps = 0
        return self._turn(0.0)

    def step(self, actions: Mapping[Seat, Mapping[str, int] | int]) -> Turn:
        pressed = self._buttons.press(_by_head(self.spec, actions[0]))
        self._steps += 1
        return self._turn(self._engine.make_action(pressed, self._source.frame_skip))

    def close(self) -> None:
        self._engine.close()

    def _turn(self, reward: float) -> Turn:
        # The time that is left is seen, so that its end is an end by the rules.
        over = self._engine.is_episode_finished()
        if not over:
            passed = self._steps * self._source.frame_skip / self._tics
            self._seen = see(self._source, self._engine.get_state(), max(0.0, 1.0 - passed))
        return Turn(observations={0: self._seen}, reward={0: reward}, over=over)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a player of a duel meets the other one, and as whom. It travels inside the seed of a reset."""

    port: int
    hosts: bool

    def in_seed(self, seed: int) -> int:
        return (seed % 2**31) << 17 | self.port << 1 | self.hosts

    @classmethod
    def of_seed(cls, seed: int) -> Place:
        return cls(seed >> 1 & 0xFFFF, bool(seed & 1))


class DuelPlayer:
    """One player of a duel, tic by tic: the engines wait for each other's every tic, and one that is a few
    ahead and then asked for nothing would leave the other waiting for ever."""

    def __init__(self, **options: Any) -> None:
        self._source = ViZDoom(**options)
        duel = self._source.spec
        heads = {**duel.kinds[0].action.heads, "tic": Choice(num=3, masked=False)}
        self.spec = GameSpec.symmetric(
            name="player of a duel",
            num_seats=1,
            observation=observation_spec(self._source),
            action=ActionSpec(heads=heads),
            max_length=2**31,
            zero_sum=False,
        )
        self._place: Place | None = None
        self._engine: Any = None
        self._frags = 0.0
        self._seen: dict[str, NDArray[Any]] = {}

    def reset(self, seed: int) -> Turn:
        place = Place.of_seed(seed)
        if place != self._place:  # the first duel here, or the other player was lost
            self.close()
            self._start(place, seed >> 17)
        self._engine.new_episode()
        self._frags = self._engine.get_game_variable(vizdoom.GameVariable.FRAGCOUNT)
        self._seen = see(self._source, self._engine.get_state(), 1.0)
        return Turn(observations={0: self._seen})

    def step(self, actions: Mapping[Seat, Mapping[str, int]]) -> Turn:
        action = actions[0]
        if action["tic"] == REST:
            return Turn(observations={0: self._seen})
        self._engine.set_action(self._buttons.press(action))
        self._engine.advance_action(1, action["tic"] == SHOW)
        frags = self._engine.get_game_variable(vizdoom.GameVariable.FRAGCOUNT)
        gained, self._frags = frags - self._frags, frags
        if action["tic"] == SHOW and (state := self._engine.get_state()) is not None:
            self._seen = see(self._source, state, 1.0)
        return Turn(observations={0: self._seen}, reward={0: gained})

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _start(self, place: Place, seed: int) -> None:
        engine = open_scenario(self._source)
        engine.set_episode_timeout(0)
        engine.set_seed(seed)
        engine.add_game_args(_HOST if place.hosts else "-join 127.0.0.1")
        engine.add_game_args(f"-port {place.port} +viz_connect_timeout {_CONNECT_S}")
        engine.add_game_args(f"+name {'Host' if place.hosts else 'Guest'} +colorset {int(place.hosts)}")
        self._buttons = buttons_of(engine)
        start(engine)
        self._engine, self._place = engine, place


def _by_head(spec: GameSpec, action: Mapping[str, int] | int) -> Mapping[str, int]:
    """A game with a single head is given just its number."""
    if isinstance(action, Mapping):
        return action
    return {next(iter(spec.kinds[0].action.heads)): action}
