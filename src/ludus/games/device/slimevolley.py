"""SlimeVolley in torch, as functions of tensors [tables, ...].

Written from the rules of slimevolleygym 0.1, which is needed only for the game on the CPU. Numbers are float64 and
computed in the order of that game, so that on a CPU both play the same episodes bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ludus.games.adapters.slimevolley import LIVES, MOVES, SCALE
from ludus.games.device.tensor_game import START, TensorState, TensorStep, TensorTwin

# The court: x is 0 at the net, y is 0 below the ground. Times are in seconds.
_FRAME = 1 / 30.0
_HALF_WIDTH, _HEIGHT, _GROUND = 24.0, 48, 1.5
_NET_HALF_WIDTH, _NET_HEIGHT = 0.5, 3.5
_GRAVITY = -9.8 * 2 * 1.5
_NUDGE = 0.1
"""By which things are moved apart, and away from walls in a frame."""
_APART = _NUDGE * _FRAME

_SLIME, _BALL, _POST = 1.5, 0.5, 0.5
"""Radii of a slime, of the ball, and of the round top of the net."""
_WALKS, _JUMPS, _FASTEST_BALL = 10 * 1.75, 10 * 1.35, 15 * 1.5
_WAIT = 30
"""Frames for which the ball hangs in the air before a serve."""

_SERVES = 2 * LIVES - 1
_NUMBERS = 2 * _SERVES
"""Random numbers of an episode: the speed of every serve across and up."""
_PARTS = 3
_PART = 2.0**24
"""A random number of the numpy game has 53 bits: it is drawn as three float32 numbers of at most 24 bits."""


_SPLIT = 2.0**27 + 1
"""Cuts a number into halves of 26 bits, whose products are exact."""


class _Ball(NamedTuple):
    """[tables] float64."""

    x: Tensor
    y: Tensor
    vx: Tensor
    vy: Tensor


@dataclass(frozen=True)
class TensorSlimeVolley(TensorTwin):
    """The state: `slimes` [rows, seats, 3] (x away from the net, y, speed upwards), `ball` [rows, 4] (x, y and its
    speeds), `court` [rows, 12] float32 (what seat 0 sees), `serves` [rows, serves, 2] (speeds of the ball), `wait`
    (frames until the ball falls), `lives` [rows, seats] and `frames`."""

    simultaneous: ClassVar[bool] = True
    start_draws: ClassVar[int] = _NUMBERS * _PARTS
    seen: ClassVar[tuple[str, ...]] = ("court",)

    def draws(self, seeds: NDArray[np.uint64], step: int) -> NDArray[np.float32]:
        if step != START:
            return np.zeros((len(seeds), 0), np.float32)
        scaled = np.stack([np.random.default_rng(seed).random(_NUMBERS) for seed in seeds.tolist()])
        parts = []
        for _ in range(_PARTS):
            scaled = scaled * _PART
            parts.append(np.floor(scaled))
            scaled = scaled - parts[-1]
        return (np.stack(parts, 2) / _PART).reshape(len(seeds), self.start_draws).astype(np.float32)

    def start(self, draws: Tensor) -> TensorState:
        rows, device = len(draws), draws.device
        parts = draws.double().view(rows, _SERVES, 2, _PARTS)
        numbers = parts[..., 0] + parts[..., 1] / _PART + parts[..., 2] / _PART**2
        serves = torch.stack((-20.0 + 40.0 * numbers[..., 0], 10.0 + 15.0 * numbers[..., 1]), 2)
        still = torch.zeros(rows, 2, dtype=torch.float64, device=device)
        x, y, ball = still + _HALF_WIDTH / 2, still + _GROUND, _served(serves[:, 0])
        return {
            "slimes": torch.stack((x, y, still), 2),
            "ball": torch.stack(ball, 1),
            "court": _seen(x, y, still, still, ball),
            "serves": serves,
            "wait": torch.full((rows,), _WAIT, dtype=torch.int8, device=device),
            "lives": torch.full((rows, 2), LIVES, dtype=torch.int8, device=device),
            "frames": torch.zeros(rows, dtype=torch.int32, device=device),
        }

    def to_act(self, state: TensorState) -> Tensor:
        court = state["court"]
        return torch.ones(len(court), 2, dtype=torch.bool, device=court.device)

    def observe(self, state: TensorState, seats: Tensor) -> dict[str, Tensor]:
        own, ball, other = torch.split(state["court"], 4, 1)
        turned = torch.stack((-ball[:, 0], ball[:, 1], -ball[:, 2], ball[:, 3]), 1)
        is_right = (seats == 0).unsqueeze(1)
        return {"court": torch.where(is_right, state["court"], torch.cat((other, turned, own), 1))}

    def legal(self, state: TensorState, seats: Tensor) -> dict[str, Tensor]:
        return {}

    def step(self, state: TensorState, actions: Tensor, draws: Tensor) -> TensorStep:
        x, y, vx, vy = _moved(state["slimes"], actions)
        waits = state["wait"] > 0
        before = _Ball(*state["ball"].unbind(1))
        ball = _where(waits, before, _flown(before))
        for seat, sign in ((1, -1.0), (0, 1.0)):
            ball = _bounced(ball, sign * x[:, seat], y[:, seat], sign * vx[:, seat], vy[:, seat], _BALL + _SLIME)
        still = torch.zeros_like(ball.x)
        ball = _bounced(ball, still, still + _NET_HEIGHT, still, still, _BALL + _POST)
        ball, falls = _off_walls(ball, before.x)
        on_left = ball.x <= 0
        lost = torch.stack((falls & ~on_left, falls & on_left), 1)
        lives = state["lives"] - lost.to(torch.int8)
        frames = state["frames"] + 1
        number = (2 * LIVES - lives.sum(1)).clamp(max=_SERVES - 1)
        serve = state["serves"].gather(1, number.view(-1, 1, 1).expand(-1, 1, 2)).squeeze(1)
        after = {
            "slimes": torch.stack((x, y, vy), 2),
            "ball": torch.stack(_where(falls, _served(serve), ball), 1),
            # In the frame of a point the game shows what it showed before.
            "court": torch.where(falls.unsqueeze(1), state["court"], _seen(x, y, vx, vy, ball)),
            "serves": state["serves"],
            "wait": torch.where(falls, _WAIT, (state["wait"] - 1).clamp(min=0)).to(torch.int8),
            "lives": lives,
            "frames": frames,
        }
        right = lost[:, 1].float() - lost[:, 0].float()
        lost_all = (lives == 0).any(1)
        cut = ~lost_all & (frames >= self.spec.max_length)
        return TensorStep(after, torch.stack((right, -right), 1), lost_all | cut, truncated=cut)


def _moved(slimes: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The slimes after a frame: x away from the net, y and the speeds, [tables, seats]."""
    x, y, vy = slimes.unbind(2)
    forward, backward, jumps = (_is_any(actions, button) for button in range(3))
    vx = (backward.to(x.dtype) - forward.to(x.dtype)) * _WALKS
    vy = torch.where(y <= _GROUND + _APART, jumps.to(y.dtype) * _JUMPS, vy + _GRAVITY * _FRAME)
    x, y = x + vx * _FRAME, y + vy * _FRAME
    lands = y <= _GROUND
    y, vy = torch.where(lands, _GROUND, y), torch.where(lands, 0.0, vy)
    least, most = _NET_HALF_WIDTH + _SLIME, _HALF_WIDTH - _SLIME
    stops = (x <= least) | (x >= most)
    return x.clamp(least, most), y, torch.where(stops, 0.0, vx), vy


def _is_any(actions: Tensor, button: int) -> Tensor:
    """Whether the moves press a button, [tables, seats]. Comparisons need no table on the device."""
    pressed = torch.zeros_like(actions, dtype=torch.bool)
    for move, buttons in enumerate(MOVES):
        if buttons[button]:
            pressed = pressed | (actions == move)
    return pressed


def _flown(ball: _Ball) -> _Ball:
    """The ball after a frame in the air."""
    vx, vy = ball.vx, ball.vy + _GRAVITY * _FRAME
    square = vx * vx + vy * vy
    speed, too_fast = _root(square), square > _FASTEST_BALL * _FASTEST_BALL
    vx = torch.where(too_fast, vx / speed * _FASTEST_BALL, vx)
    vy = torch.where(too_fast, vy / speed * _FASTEST_BALL, vy)
    return _Ball(ball.x + vx * _FRAME, ball.y + vy * _FRAME, vx, vy)


def _bounced(ball: _Ball, x: Tensor, y: Tensor, vx: Tensor, vy: Tensor, reach: float) -> _Ball:
    """The ball, where it is nearer than `reach` to something round: moved away in small steps, and thrown back."""
    off_x, off_y = ball.x - x, ball.y - y
    square = off_x * off_x + off_y * off_y
    distance, hits = _root(square), square < reach * reach
    normal_x, normal_y = off_x / distance, off_y / distance
    # The sums are those of one step after the other, of which the first that is far enough counts.
    count = round(reach / _NUDGE) + 1
    path_x, path_y = (
        torch.cat((start.unsqueeze(1), (normal * _NUDGE).unsqueeze(1).expand(-1, count)), 1).cumsum(1)
        for start, normal in ((ball.x, normal_x), (ball.y, normal_y))
    )
    off_x, off_y = x.unsqueeze(1) - path_x, y.unsqueeze(1) - path_y
    near = off_x * off_x + off_y * off_y < reach * reach
    place = near[:, :-1].sum(1, keepdim=True)
    across, up = ball.vx - vx, ball.vy - vy
    twice = (across * normal_x + up * normal_y) * 2.0
    thrown = _Ball(
        path_x.gather(1, place).squeeze(1),
        path_y.gather(1, place).squeeze(1),
        across - normal_x * twice + vx,
        up - normal_y * twice + vy,
    )
    return _where(hits, thrown, ball)


def _off_walls(ball: _Ball, x_before: Tensor) -> tuple[_Ball, Tensor]:
    """The ball after walls, ceiling and net, and whether it has fallen to the ground."""
    x, y, vx, vy = ball
    left, most = x <= _BALL - _HALF_WIDTH, _HALF_WIDTH - _BALL
    x, vx = torch.where(left, _BALL - _HALF_WIDTH + _APART, x), torch.where(left, -vx, vx)
    right = x >= most
    x, vx = torch.where(right, most - _APART, x), torch.where(right, -vx, vx)
    falls, top = y <= _BALL + _GROUND, y >= _HEIGHT - _BALL
    y, vy = torch.where(top, _HEIGHT - _BALL - _APART, y), torch.where(top, -vy, vy)
    side = _NET_HALF_WIDTH + _BALL
    low = y <= _NET_HEIGHT
    from_right = (x <= side) & (x_before > side) & low
    x, vx = torch.where(from_right, side + _APART, x), torch.where(from_right, -vx, vx)
    from_left = (x >= -side) & (x_before < -side) & low
    x, vx = torch.where(from_left, -side - _APART, x), torch.where(from_left, -vx, vx)
    return _Ball(x, y, vx, vy), falls


def _root(square: Tensor) -> Tensor:
    """The nearest number to the square root. That of PyTorch on a CPU (MKL) may be the one beside it, so that it is
    corrected here by its error, which is computed without rounding."""
    root = square.sqrt()
    large = root * _SPLIT
    high = large - (large - root)
    low = root - high
    error = square - high * high - 2.0 * high * low - low * low
    return root + error / (2.0 * root)


def _served(speeds: Tensor) -> _Ball:
    """The ball above the net, with the speeds [tables, 2]."""
    vx, vy = speeds.unbind(1)
    still = torch.zeros_like(vx)
    return _Ball(still, still + _HEIGHT / 4, vx, vy)


def _seen(x: Tensor, y: Tensor, vx: Tensor, vy: Tensor, ball: _Ball) -> Tensor:
    """[tables, 12] float32: what seat 0 sees, of slimes [tables, seats] with x away from the net."""
    columns = [part[:, 0] for part in (x, y, vx, vy)]
    columns += [*ball, *(part[:, 1] for part in (x, y, vx, vy))]
    return (torch.stack(columns, 1) / SCALE).float()


def _where(where: Tensor, one: _Ball, other: _Ball) -> _Ball:
    return _Ball(*(torch.where(where, *pair) for pair in zip(one, other, strict=True)))
