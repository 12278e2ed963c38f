"""Sumo: two discs on a round platform push each other, and whoever leaves it loses; actions are real numbers.

Both seats act at once, ten times a second. An action is a thrust, a vector of length 1 at most; a longer one is
shortened. Thrust accelerates a disc, drag slows it down, and the platform falls away from its middle, so that a disc is
drawn outwards, the more the further out it is. Discs that meet exchange momentum. A disc is out when its middle leaves
the platform, which has radius 1: the other seat scores 1, this one -1. If both leave it in the same instant, or nobody
within 200 decisions, the game is a draw. The seed draws places and velocities at the start, on opposite sides.
A seat sees everything in a frame of its own: it is in the origin, and the first axis points at the other disc. Thrust
is given in the same frame, so that (1, 0) runs at the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ActionSpec, Box, GameSpec, ObservationSpec, Vector
from ludus.data.trees import Array, IntArray, Tree
from ludus.games.bots import RandomBot, Rows
from ludus.games.game import Actions, Bot, GameBatch
from ludus.games.pictures import colour_of_team
from ludus.games.seeding import uniform
from ludus.games.tables import ArrayTables, GameDefaults

DISC = 0.15  # radius; that of the platform is 1
THRUST = 4.0  # acceleration by a thrust of length 1
DRAG = 1.0  # loss of speed, per second and unit of speed
SLOPE = 2.5  # acceleration outwards at the edge of the platform
BOUNCE = 0.8  # share of the speed at which discs meet with which they part
STEPS, SECONDS = 4, 0.1  # physical steps of a decision, and how long it lasts
NEAREST, FURTHEST = 0.3, 0.7  # from the middle of the platform, at the start
FASTEST = 1.0  # speed at the start
PICTURE, WIDTH = 384, 2.4  # pixels along a side of a picture, and what they show


@dataclass(frozen=True, kw_only=True)
class Sumo(GameDefaults):
    """Two wrestlers."""

    decisions: int = 200
    """Decisions after which an episode is a draw."""

    @cached_property
    def spec(self) -> GameSpec:
        return GameSpec.symmetric(
            name="sumo",
            num_seats=2,
            # own: vector to the middle of the platform, velocity, distance to the edge. other: distance between the
            # discs, velocity, its distance to the edge. time: the share of the decisions that is left.
            observation=ObservationSpec(parts={"own": Vector(size=5), "other": Vector(size=4), "time": Vector(size=1)}),
            action=ActionSpec(heads={"thrust": Box(size=2)}),
            max_length=self.decisions,
            hidden_information=False,
            chance=False,
        )

    def tables(self, num_tables: int) -> GameBatch:
        return SumoTables(self.spec, num_tables)

    def bots(self) -> Mapping[str, Bot]:
        return {"random": RandomBot(), "charger": Charger(), "matador": Matador()}


class SumoTables(ArrayTables):
    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        super().__init__(spec, num_tables)
        self._decisions = np.zeros(num_tables, np.int64)
        self._place = np.zeros((num_tables, 2, 2))
        """[tables, seats, (x, y)]"""
        self._velocity = np.zeros((num_tables, 2, 2))

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self._start_episodes(tables)
        self._decisions[tables] = 0
        turn = uniform(seeds, 0)
        for seat in range(2):
            draws = [uniform(seeds, 1 + 4 * seat + number) for number in range(4)]
            distance = NEAREST + (FURTHEST - NEAREST) * draws[0]
            self._place[tables, seat] = _vector(distance, turn + seat / 2 + (draws[1] - 0.5) / 4)
            self._velocity[tables, seat] = _vector(FASTEST * draws[2], draws[3])
        self._show(tables)

    def step(self, actions: Actions) -> None:
        self._require_within_bounds(actions)
        view = self.view
        tables = np.flatnonzero(~view.over)
        thrust = actions[0]["thrust"][tables].astype(np.float64)
        thrust /= np.maximum(_length(thrust), 1.0)[..., None]
        ahead, left = _axes(self._place[tables])
        push = THRUST * (thrust[..., :1] * ahead + thrust[..., 1:] * left)
        place, velocity = self._place[tables], self._velocity[tables]
        out: NDArray[np.bool_] = np.zeros((len(tables), 2), np.bool_)
        for _ in range(STEPS):
            new_place, new_velocity = _moved(place, velocity, push)
            inside = np.logical_not(out.any(axis=1))[:, None, None]  # the first to leave the platform ends the game
            place, velocity = np.where(inside, new_place, place), np.where(inside, new_velocity, velocity)
            out = out | (_length(place) > 1.0)
        self._place[tables], self._velocity[tables] = place, velocity
        self._decisions[tables] += 1

        view.reward[tables] = view.score[tables] = out[:, ::-1].astype(np.float32) - out
        over = out.any(axis=1) | (self._decisions[tables] == self.spec.max_length)
        view.over[tables] = over
        view.to_act[tables] = ~over[:, None]
        self._show(tables)

    def _show(self, tables: IntArray) -> None:
        place, velocity = self._place[tables], self._velocity[tables]
        axes = np.stack(_axes(place), axis=2)  # [tables, seats, axes, (x, y)]
        edge = 1.0 - _length(place)[..., None]
        own, others = (axes * vectors[:, :, None] for vectors in (velocity, velocity[:, ::-1]))
        middle = -(axes * place[:, :, None]).sum(axis=3)
        gap = np.broadcast_to(_length(place[:, 1:] - place[:, :1])[..., None], edge.shape)
        observation = self.view.observation[0]
        observation["own"][tables] = np.concatenate([middle, own.sum(axis=3), edge], axis=2)
        observation["other"][tables] = np.concatenate([gap, others.sum(axis=3), edge[:, ::-1]], axis=2)
        observation["time"][tables] = (1.0 - self._decisions[tables] / self.spec.max_length)[:, None, None]

    def render(self, table: int, seat: int | None = None) -> NDArray[np.uint8]:
        """[PICTURE, PICTURE, RGB]: the platform and the discs in the colours of their teams. Seats see everything."""
        across = (np.arange(PICTURE) + 0.5) * (WIDTH / PICTURE) - WIDTH / 2
        x, y = across[None, :], -across[:, None]
        picture = np.full((PICTURE, PICTURE, 3), (24, 26, 32), np.uint8)
        picture[np.hypot(x, y) <= 1.0] = (201, 178, 132)
        picture[np.abs(np.hypot(x, y) - 0.98) <= 0.02] = (240, 236, 224)
        for team, (own_x, own_y) in enumerate(self._place[table]):
            picture[np.hypot(x - own_x, y - own_y) <= DISC] = colour_of_team(team)
        return picture


def _moved(place: Array, velocity: Array, push: Array) -> tuple[Array, Array]:
    """Places and velocities after one physical step."""
    seconds = SECONDS / STEPS
    velocity = velocity + seconds * (push + SLOPE * place - DRAG * velocity)
    place = place + seconds * velocity
    between = place[:, 1] - place[:, 0]
    distance = _length(between)[:, None]
    normal = between / np.maximum(distance, 1e-9)
    overlap = np.maximum(2 * DISC - distance, 0.0)
    closing = ((velocity[:, 0] - velocity[:, 1]) * normal).sum(axis=1, keepdims=True)
    impulse = np.where(overlap > 0, np.maximum(closing, 0.0), 0.0) * (1 + BOUNCE) / 2
    apart = np.array([[-1.0], [1.0]])
    return place + apart * (overlap / 2 * normal)[:, None], velocity + apart * (impulse * normal)[:, None]


def _axes(place: Array) -> tuple[Array, Array]:
    """[tables, seats, (x, y)] each: the direction from a seat to the other one, and the one to its left."""
    ahead = place[:, ::-1] - place
    ahead = ahead / np.maximum(_length(ahead), 1e-9)[..., None]
    return ahead, np.stack([-ahead[..., 1], ahead[..., 0]], axis=-1)


def _vector(length: Array, turn: Array) -> Array:
    angle = 2 * np.pi * turn
    vector: Array = length[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return vector


def _length(vectors: Array) -> Array:
    lengths: Array = np.hypot(vectors[..., 0], vectors[..., 1])
    return lengths


@dataclass(frozen=True, kw_only=True)
class Charger:
    """Runs at the other disc with all its might."""

    lead: float = 0.2
    """Seconds ahead for which it aims."""

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        seen = Rows.of(game, tables, seats).observation
        ahead = np.stack([seen["other"][:, 0], np.zeros(len(tables), np.float32)], axis=1)
        return {"thrust": _full(ahead + self.lead * (seen["other"][:, 1:3] - seen["own"][:, 2:4]))}


def _full(direction: Array) -> NDArray[np.float32]:
    """Full thrust in a direction."""
    thrust: NDArray[np.float32] = (direction / np.maximum(_length(direction), 1e-6)[:, None]).astype(np.float32)
    return np.clip(thrust, -1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Matador:
    """Keeps between the other disc and the middle of the platform, steps aside when the other runs at it from
    further inside, and pushes when the other is further outside."""

    foresight: float = 0.3
    """Seconds ahead for which it looks at both discs."""

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        seen = Rows.of(game, tables, seats).observation
        middle, velocity = seen["own"][:, :2], seen["own"][:, 2:4]
        other = np.stack([seen["other"][:, 0], np.zeros(len(tables), np.float32)], axis=1)
        others_velocity = seen["other"][:, 1:3]
        own_soon, other_soon = self.foresight * velocity, other + self.foresight * others_velocity
        inside = _length(own_soon - middle) < _length(other_soon - middle)
        charge = other + 0.2 * (others_velocity - velocity)
        # Past the other disc on the side on which the middle is, and back to the middle behind it.
        side = np.where(middle[:, 1] < 0, -1.0, 1.0)
        aside = middle - own_soon + np.stack([np.zeros(len(tables)), side * 2.5 * DISC], axis=1)
        going = np.where(inside[:, None], charge, aside)
        going = np.where((_length(own_soon - middle) > 0.85)[:, None], middle - own_soon, going)
        return {"thrust": _full(going)}
