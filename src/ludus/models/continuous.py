"""Distributions of `Box` heads: independent numbers within bounds, drawn at uniform numbers that the caller provides.

The network gives two raw parameters for each number, [..., numbers, 2]; 0 and 0 is the distribution of a fresh policy.
Densities and entropies are those of a number's place x, from -1 at its lower bound to 1 at its upper one. Everything is
made of plain operations, so that it can be compiled, stacked and written as an ONNX graph.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, Protocol, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ludus.data.specs import Box

BoxDistribution = Literal["clipped", "squashed", "beta"]
"""`clipped`: a normal distribution whose tails lie on the bounds, which so are taken with a probability of their own;
`squashed`: the hyperbolic tangent of a normal one; `beta`: a beta distribution with one peak."""
LEVELS = 256
"""The entropy of a number is that of its value rounded to this many levels: 0 if it is always the same, and of the size
of a choice's."""
_LOG_LEVEL = math.log(2.0 / LEVELS)
_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


class Family(Protocol):
    """A family of distributions of a place x in [-1, 1]. Parameters are [..., numbers, 2], everything else
    [..., numbers]."""

    def draw(self, parameters: Tensor, uniforms: Tensor) -> Tensor: ...
    def mode(self, parameters: Tensor) -> Tensor:
        """The place that a greedy player takes."""

    def log_prob(self, parameters: Tensor, x: Tensor) -> Tensor: ...
    def entropy(self, parameters: Tensor) -> Tensor:
        """Of x in levels."""

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        """KL(p || q)."""


class Numbers:
    """The distribution of the numbers of a `Box` head, in units of the game."""

    def __init__(self, box: Box, family: BoxDistribution = "clipped") -> None:
        self.size = box.size
        self.most_entropy = box.size * math.log(LEVELS)
        self._low, self._high = box.bounds
        self._family = _FAMILIES[family]

    def draw(self, parameters: Tensor, uniforms: Tensor) -> Tensor:
        return self._at(self._family.draw(parameters, uniforms))

    def mode(self, parameters: Tensor) -> Tensor:
        return self._at(self._family.mode(parameters))

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """[...]: of the whole action. Numbers beyond a bound count as being on it."""
        return self._family.log_prob(parameters, self.place(action)).sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """[...]: of all numbers together, in levels."""
        return self._family.entropy(parameters).sum(-1)

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        """[...]: KL(p || q) of all numbers together."""
        return self._family.divergence(p, q).sum(-1)

    def inside(self, action: Tensor) -> Tensor:
        """[...]: whether every number lies within its bounds; NaN does not."""
        low, high = self._bounds(action.device)
        return ((action >= low) & (action <= high)).all(-1)

    def rest(self, device: torch.device) -> Tensor:
        """[numbers]: the action of rows that do not use the head, the numbers nearest to 0."""
        low, high = self._bounds(device)
        return torch.zeros_like(low).clamp(low, high)

    def place(self, action: Tensor) -> Tensor:
        """x of each number: exactly -1 and 1 on the bounds."""
        low, high = self._bounds(action.device)
        return ((action - low) / (high - low) * 2.0 - 1.0).clamp(-1.0, 1.0)

    def _at(self, x: Tensor) -> Tensor:
        """The number at each place; rounding must neither leave the bounds nor miss them."""
        low, high = self._bounds(x.device)
        action = low + (x + 1.0) * (0.5 * (high - low))
        return torch.where(x >= 1.0, high, torch.where(x <= -1.0, low, action.clamp(low, high)))

    def _bounds(self, device: torch.device) -> tuple[Tensor, Tensor]:
        return _tensor(self._low, device), _tensor(self._high, device)


@lru_cache(maxsize=1024)
def _tensor(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(mode=False):  # it is used with gradients too
        return torch.tensor(numbers, device=device)


_LEAST_LOG_DEVIATION, _MOST_LOG_DEVIATION = -5.0, 0.5
_FIRST_LOG_DEVIATION = math.log(0.5)
_FARTHEST_MEAN = 2.0
"""Of the clipped normal distribution: from there the way back to the other bound stays short."""


def _log_deviation(raw: Tensor) -> Tensor:
    span = _MOST_LOG_DEVIATION - _LEAST_LOG_DEVIATION
    first = (_FIRST_LOG_DEVIATION - _LEAST_LOG_DEVIATION) / span
    return _LEAST_LOG_DEVIATION + span * torch.sigmoid(raw + math.log(first / (1.0 - first)))


class _Clipped:
    """A normal distribution whose tails beyond the bounds lie on them (censored)."""

    def draw(self, parameters: Tensor, uniforms: Tensor) -> Tensor:
        mean, log_deviation = self._moments(parameters)
        return (mean + log_deviation.exp() * normal_quantile(uniforms)).clamp(-1.0, 1.0)

    def mode(self, parameters: Tensor) -> Tensor:
        return self._moments(parameters)[0].clamp(-1.0, 1.0)

    def log_prob(self, parameters: Tensor, x: Tensor) -> Tensor:
        mean, log_deviation = self._moments(parameters)
        scale = torch.exp(-log_deviation)
        z = (x - mean) * scale
        inside = -0.5 * z.square() - log_deviation - _HALF_LOG_TAU
        at_bounds = log_normal_cdf(torch.where(x < 0.0, z, -z))
        return torch.where(x.abs() < 1.0, inside, at_bounds)

    def entropy(self, parameters: Tensor) -> Tensor:
        _, log_deviation = self._moments(parameters)
        below, above, (weight, _, square), (log_below, log_above) = self._parts(parameters)
        inside = weight * (log_deviation + _HALF_LOG_TAU - _LOG_LEVEL) + 0.5 * square
        return inside - below * log_below - above * log_above

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        (mean_p, log_p), (mean_q, log_q) = self._moments(p), self._moments(q)
        below, above, (weight, first, square), logs_p = self._parts(p)
        *_, logs_q = self._parts(q)
        shift, deviation = mean_p - mean_q, log_p.exp()
        away = shift.square() * weight + 2.0 * shift * deviation * first + log_p.mul(2.0).exp() * square
        inside = weight * (log_q - log_p) + 0.5 * away * torch.exp(-2.0 * log_q) - 0.5 * square
        return inside + below * (logs_p[0] - logs_q[0]) + above * (logs_p[1] - logs_q[1])

    def _moments(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = parameters.unbind(-1)
        return _FARTHEST_MEAN * torch.tanh(mean / _FARTHEST_MEAN), _log_deviation(raw)

    def _parts(self, parameters: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Probabilities of the bounds; the integrals of 1, z and z^2 between them; log-probabilities of the bounds."""
        mean, log_deviation = self._moments(parameters)
        scale = torch.exp(-log_deviation)
        start, end = (-1.0 - mean) * scale, (1.0 - mean) * scale
        logs = log_normal_cdf(start), log_normal_cdf(-end)
        below, above = logs[0].exp(), logs[1].exp()
        density_at_start, density_at_end = _density(start), _density(end)
        weight = (1.0 - below - above).clamp(min=0.0)
        square = weight - (end * density_at_end - start * density_at_start)
        return below, above, (weight, density_at_start - density_at_end, square), logs


def _density(z: Tensor) -> Tensor:
    return torch.exp(-0.5 * z.square() - _HALF_LOG_TAU)


_NEAR_BOUND = 1.0 - 1e-6


class _Squashed:
    """The hyperbolic tangent of a normal distribution, which never reaches the bounds."""

    def draw(self, parameters: Tensor, uniforms: Tensor) -> Tensor:
        mean, log_deviation = self._moments(parameters)
        return torch.tanh(mean + log_deviation.exp() * normal_quantile(uniforms)).clamp(-_NEAR_BOUND, _NEAR_BOUND)

    def mode(self, parameters: Tensor) -> Tensor:
        return torch.tanh(self._moments(parameters)[0]).clamp(-_NEAR_BOUND, _NEAR_BOUND)

    def log_prob(self, parameters: Tensor, x: Tensor) -> Tensor:
        mean, log_deviation = self._moments(parameters)
        x = x.clamp(-_NEAR_BOUND, _NEAR_BOUND)
        before = 0.5 * (torch.log1p(x) - torch.log1p(-x))
        z = (before - mean) * torch.exp(-log_deviation)
        return -0.5 * z.square() - log_deviation - _HALF_LOG_TAU - torch.log1p(x) - torch.log1p(-x)

    def entropy(self, parameters: Tensor) -> Tensor:
        mean, log_deviation = self._moments(parameters)
        nodes, weights = (_tensor(column, parameters.device) for column in _quadrature())
        before = mean.unsqueeze(-1) + log_deviation.exp().unsqueeze(-1) * nodes
        log_slope = 2.0 * (math.log(2.0) - before - functional.softplus(-2.0 * before))
        return log_deviation + _HALF_LOG_TAU + 0.5 - _LOG_LEVEL + (weights * log_slope).sum(-1)

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        (mean_p, log_p), (mean_q, log_q) = self._moments(p), self._moments(q)
        away = (2.0 * log_p).exp() + (mean_p - mean_q).square()
        return log_q - log_p + 0.5 * away * torch.exp(-2.0 * log_q) - 0.5

    def _moments(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = parameters.unbind(-1)
        return mean, _log_deviation(raw)


@lru_cache(maxsize=1)
def _quadrature() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Nodes and weights of expectations under the standard normal distribution (Gauss-Hermite)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(15)
    return tuple(nodes.tolist()), tuple((weights / weights.sum()).tolist())


_MOST_CONCENTRATED = 255.0
_FIRST_CONCENTRATION = 0.7
_CELLS = 128
_REACH = 10.0


class _Beta:
    """A beta distribution whose two parameters are above 1, so that it has one peak. It is drawn from a piecewise
    constant approximation within 10 deviations of its mean."""

    def draw(self, parameters: Tensor, uniforms: Tensor) -> Tensor:
        alpha, beta = self._shape(parameters)
        total = alpha + beta
        mean = alpha / total
        reach = _REACH * torch.sqrt(mean * (1.0 - mean) / (total + 1.0))
        start, end = (mean - reach).clamp(min=0.0), (mean + reach).clamp(max=1.0)
        middles = _tensor(tuple((cell + 0.5) / _CELLS for cell in range(_CELLS)), parameters.device)
        width = ((end - start) / _CELLS).unsqueeze(-1)
        y = start.unsqueeze(-1) + width * (middles * _CELLS)
        log_density = (alpha.unsqueeze(-1) - 1.0) * y.log() + (beta.unsqueeze(-1) - 1.0) * torch.log1p(-y)
        cumulative = (log_density - log_density.amax(-1, keepdim=True)).exp().cumsum(-1)
        wanted = uniforms.unsqueeze(-1) * cumulative[..., -1:]
        # The cell in which the cumulative weight passes the wanted one, and how far into it.
        cell = (cumulative <= wanted).long().sum(-1, keepdim=True).clamp(max=_CELLS - 1)
        after = cumulative.gather(-1, cell)
        before = torch.where(cell > 0, cumulative.gather(-1, (cell - 1).clamp(min=0)), 0.0)
        within = (wanted - before) / (after - before).clamp(min=1e-30)
        place = start.unsqueeze(-1) + width * (cell + within)
        return (2.0 * place.squeeze(-1) - 1.0).clamp(-_NEAR_BOUND, _NEAR_BOUND)

    def mode(self, parameters: Tensor) -> Tensor:
        alpha, beta = self._shape(parameters)
        return (alpha - beta) / (alpha + beta - 2.0).clamp(min=1e-6)  # both may round to 1: the middle of all

    def log_prob(self, parameters: Tensor, x: Tensor) -> Tensor:
        alpha, beta = self._shape(parameters)
        x = x.clamp(-_NEAR_BOUND, _NEAR_BOUND)
        log_left, log_right = (torch.log1p(side) - math.log(2.0) for side in (x, -x))
        return (alpha - 1.0) * log_left + (beta - 1.0) * log_right - _log_beta(alpha, beta) - math.log(2.0)

    def entropy(self, parameters: Tensor) -> Tensor:
        alpha, beta = self._shape(parameters)
        expected = (alpha - 1.0) * torch.digamma(alpha) + (beta - 1.0) * torch.digamma(beta)
        expected = expected - (alpha + beta - 2.0) * torch.digamma(alpha + beta)
        return _log_beta(alpha, beta) - expected + math.log(2.0) - _LOG_LEVEL

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        (alpha_p, beta_p), (alpha_q, beta_q) = self._shape(p), self._shape(q)
        found = _log_beta(alpha_q, beta_q) - _log_beta(alpha_p, beta_p)
        found = found + (alpha_p - alpha_q) * torch.digamma(alpha_p) + (beta_p - beta_q) * torch.digamma(beta_p)
        return found + (alpha_q - alpha_p + beta_q - beta_p) * torch.digamma(alpha_p + beta_p)

    def _shape(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        first = math.log(_FIRST_CONCENTRATION / (_MOST_CONCENTRATED - _FIRST_CONCENTRATION))
        alpha, beta = (1.0 + _MOST_CONCENTRATED * torch.sigmoid(parameters + first)).unbind(-1)
        return alpha, beta


def _log_beta(alpha: Tensor, beta: Tensor) -> Tensor:
    return _log_gamma(alpha) + _log_gamma(beta) - _log_gamma(alpha + beta)


def _log_gamma(x: Tensor) -> Tensor:
    """For x of at least 1: Stirling's series at x + 4. ONNX has no operator for it."""
    shifted = x + 4.0
    inverse = 1.0 / shifted
    series = inverse * (1.0 / 12.0 - inverse.square() * (1.0 / 360.0 - inverse.square() / 1260.0))
    stirling = (shifted - 0.5) * shifted.log() - shifted + _HALF_LOG_TAU + series
    return stirling - (x * (x + 1.0) * (x + 2.0) * (x + 3.0)).log()


_FAMILIES: dict[str, Family] = {"clipped": _Clipped(), "squashed": _Squashed(), "beta": _Beta()}
assert tuple(_FAMILIES) == get_args(BoxDistribution)


def normal_quantile(uniforms: Tensor) -> Tensor:
    """The standard normal number below which the share `uniforms` lies, by Giles' approximation of the inverse error
    function in single precision (2010). 0 counts as 1e-7."""
    x = 2.0 * uniforms.clamp(1e-7, 1.0 - 1e-7) - 1.0
    w = -torch.log((1.0 - x) * (1.0 + x))
    near = _polynomial(w - 2.5, _NEAR)
    far = _polynomial(w.clamp(min=1e-6).sqrt() - 3.0, _FAR)
    return math.sqrt(2.0) * x * torch.where(w < 5.0, near, far)


_NEAR = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_FAR = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
    -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip


def _polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    found = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        found = found * x + coefficient
    return found


_FRACTION_BELOW = -2.5
_FRACTION_STEPS = 24


def log_normal_cdf(z: Tensor) -> Tensor:
    """The logarithm of the standard normal distribution function: by the error function, and far below 0 by the
    continued fraction of Mills' ratio, since the error function has no digits left there."""
    near = torch.log(0.5 + 0.5 * torch.erf(z.clamp(min=_FRACTION_BELOW) / math.sqrt(2.0)))
    distance = -z.clamp(max=_FRACTION_BELOW)
    fraction = distance
    for step in range(_FRACTION_STEPS, 0, -1):
        fraction = distance + step / fraction
    far = -0.5 * distance.square() - _HALF_LOG_TAU - fraction.log()
    return torch.where(z > _FRACTION_BELOW, near, far)
