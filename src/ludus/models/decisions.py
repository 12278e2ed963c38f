"""Decisions from logits: masking, sampling at uniform numbers that the caller provides, and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ludus.data.specs import Box, Head, Pointer
from ludus.data.trees import Tree, under
from ludus.models.continuous import Numbers
from ludus.models.operators import LOWEST
from ludus.models.policy import Acted, Unrolled
from ludus.models.tensors import DeferredChecks, to_host

_FEW_VALUES = 16


class Decision(NamedTuple):
    """The decision of one head, per row. The last two fields are None while acting."""

    action: Tensor
    """[...] int64, [..., picks] with -1 after the end, or [..., numbers] float32."""
    log_prob: Tensor
    """[...]: 0 where the head is not in use."""
    log_probs: Tensor | None
    """[..., options], or [..., picks, options] with the end token as the last option; the parameters of `Numbers`."""
    entropy: Tensor | None
    """[...]: 0 where the head is not in use."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions of all heads, in order."""

    by_head: Mapping[str, Decision]
    in_use: Mapping[str, Tensor | None]
    """None for a head that always counts."""

    def acted(self, value: Tensor | None, state: Mapping[str, Tensor]) -> Acted:
        """The result of `Policy.act`, on the host; a missing value becomes zeros."""
        return acted_of(to_host(self.columns(value, state)))

    def columns(self, value: Tensor | None, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What `acted_of` needs, on the device."""
        log_probs = [decision.log_prob for decision in self.by_head.values()]
        joined = log_probs[0].unsqueeze(-1) if len(log_probs) == 1 else torch.stack(log_probs, -1)
        columns = {
            f"action.{name}": decision.action if decision.action.is_floating_point() else decision.action.int()
            for name, decision in self.by_head.items()
        }
        columns |= {f"state.{name}": tensor for name, tensor in state.items()}
        columns["log_prob"] = joined
        if value is not None:
            columns["value"] = value
        return columns

    def unrolled(self, values: Tensor, leading: tuple[int, ...], *, rewards: int = 0) -> Unrolled:
        """The result of `Policy.unroll`, reshaped from flat rows to the `leading` axes of the batch. `values`, in the
        last axis: of the main reward, of the further `rewards`, and how much better each option of the only head is."""
        value, further, better = values[..., 0], values[..., 1 : 1 + rewards], values[..., 1 + rewards :]
        always = torch.ones_like(value, dtype=torch.bool)
        in_use = [always if used is None else used for used in self.in_use.values()]
        log_prob, entropy, log_probs = [], [], {}
        for name, decision in self.by_head.items():
            assert decision.log_probs is not None
            assert decision.entropy is not None
            log_prob.append(decision.log_prob)
            entropy.append(decision.entropy)
            log_probs[name] = decision.log_probs.reshape(*leading, *decision.log_probs.shape[value.dim() :])
        return Unrolled(
            log_prob=torch.stack(log_prob, -1).reshape(*leading, -1),
            entropy=torch.stack(entropy, -1).reshape(*leading, -1),
            value=value.reshape(leading),
            log_probs=log_probs,
            in_use=torch.stack(in_use, -1).reshape(*leading, -1),
            values=further.reshape(*leading, -1) if further.shape[-1] else None,
            action_values=_action_values(value, better, self.by_head).reshape(*leading, -1)
            if better.shape[-1]
            else None,
        )


def _action_values(value: Tensor, better: Tensor, by_head: Mapping[str, Decision]) -> Tensor:
    """[..., options], centred so that their expectation under the policy is `value`."""
    (decision,) = by_head.values()
    assert decision.log_probs is not None
    probs = decision.log_probs.detach().exp()
    return value.unsqueeze(-1) + better - (probs * better).sum(-1, keepdim=True)


def acted_of(arrays: Tree) -> Acted:
    """The result of `Policy.act` from the arrays of `Decisions.columns`."""
    log_prob = arrays["log_prob"]
    return Acted(
        action=under("action.", arrays),
        log_prob=log_prob,
        value=arrays["value"] if "value" in arrays else np.zeros(log_prob.shape[:-1], np.float32),
        state=under("state.", arrays),
    )


class Chooser:
    """Chooses actions: at random, greedily, or from a recording."""

    evaluates = False
    """Whether it needs all picks of a pointer, including those after the end."""

    def choose(self, head: str, logits: Tensor, pick: int | None) -> Decision:
        """One option per row; illegal ones have the lowest logit. `pick` counts the picks of a pointer."""
        raise NotImplementedError

    def choose_numbers(self, head: str, numbers: Numbers, parameters: Tensor) -> Tensor:
        """Numbers within their bounds, [..., numbers], from the parameters of their distribution."""
        raise NotImplementedError

    def counts(self, wrong: Tensor) -> Tensor:
        """Which of the rows with an illegal action are errors."""
        return wrong

    def at(self, rows: Tensor) -> Chooser:
        """The chooser of some of the rows."""
        return self

    def skip(self, choices: int) -> None:
        """Skip the random numbers of choices that are not made."""


class Drawn(Chooser):
    """Samples from the distribution, with one column of `uniforms` [..., draws] per choice."""

    def __init__(self, uniforms: Tensor) -> None:
        self._uniforms = uniforms
        self._column = 0

    def choose(self, head: str, logits: Tensor, pick: int | None) -> Decision:
        if logits.is_cuda:  # an index out of range does not raise there but breaks the whole process
            _require_finite(head, logits)
        uniforms = self._uniforms[..., self._column]
        self._column += 1
        try:
            action, log_prob = draw(logits, uniforms)
        except RuntimeError:  # the index is out of range, as it is if logits are not finite
            _require_finite(head, logits)
            raise
        return Decision(action, log_prob, None, None)

    def choose_numbers(self, head: str, numbers: Numbers, parameters: Tensor) -> Tensor:
        _require_finite(head, parameters.flatten(-2))
        first, self._column = self._column, self._column + numbers.size
        return numbers.draw(parameters, self._uniforms[..., first : self._column])

    def at(self, rows: Tensor) -> Drawn:
        return Drawn(self._uniforms[rows, self._column :])

    def skip(self, choices: int) -> None:
        self._column += choices


class DrawnOnDevice(Chooser):
    """Samples without waiting for the device, from one column of `uniforms` [..., draws] per choice. In float32, so an
    option is drawn with its probability up to about 1e-6."""

    def __init__(self, uniforms: Tensor) -> None:
        self._uniforms = uniforms
        self._column = 0

    def choose(self, head: str, logits: Tensor, pick: int | None) -> Decision:
        log_probs = functional.log_softmax(logits.float(), -1)
        cumulative = log_probs.exp().cumsum(-1)
        total = cumulative[..., -1:]
        # Below the total, so that an option of probability 0 is never the first to exceed it.
        threshold = torch.minimum(self._uniforms[..., self._column, None] * total, total * (1.0 - 2.0**-23))
        self._column += 1
        action = (cumulative <= threshold).sum(-1)
        return Decision(action, _at(log_probs, action), None, None)


class Greedy(Chooser):
    """Takes the most likely option."""

    def choose(self, head: str, logits: Tensor, pick: int | None) -> Decision:
        best, action = logits.max(-1)
        return Decision(action, best - logits.logsumexp(-1), None, None)

    def choose_numbers(self, head: str, numbers: Numbers, parameters: Tensor) -> Tensor:
        _require_finite(head, parameters.flatten(-2))
        return numbers.mode(parameters)


class Recorded(Chooser):
    """Repeats recorded actions to evaluate them. Rows that are `valid` must hold legal ones."""

    evaluates = True

    def __init__(self, actions: Mapping[str, Tensor], valid: Tensor) -> None:
        self._actions = actions
        self._valid = valid

    def choose(self, head: str, logits: Tensor, pick: int | None) -> Decision:
        log_probs = functional.log_softmax(logits.float(), -1)
        if pick is None:
            action = self._actions[head].long()
        else:
            action = self._actions[head][..., pick].long()
            action = torch.where(action < 0, logits.shape[-1] - 1, action)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return Decision(action, _at(log_probs, action), log_probs, entropy)

    def choose_numbers(self, head: str, numbers: Numbers, parameters: Tensor) -> Tensor:
        return self._actions[head].to(parameters.dtype)

    def counts(self, wrong: Tensor) -> Tensor:
        return wrong & self._valid

    def at(self, rows: Tensor) -> Recorded:
        return Recorded({head: action[rows] for head, action in self._actions.items()}, self._valid[rows])


def draw(logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """The option whose share of [0, 1) contains the uniform number, and its log-probability. In float64 the threshold
    stays below the total, and an option of probability 0 is never the first to exceed it."""
    shifted = logits - logits.amax(-1, keepdim=True)
    cumulative = shifted.exp().cumsum(-1, dtype=torch.float64)
    total = cumulative[..., -1:]
    threshold = (uniforms.unsqueeze(-1) * total).contiguous()
    action = torch.searchsorted(cumulative, threshold, right=True)
    if DeferredChecks.active():  # logits that are not finite are found later, but must not break the process now
        action = action.clamp(max=logits.shape[-1] - 1)
    log_prob = shifted.gather(-1, action) - total.log().float()
    return action.squeeze(-1), log_prob.squeeze(-1)


def decide(name: str, logits: Tensor, legal: Tensor | None, in_use: Tensor | None, chooser: Chooser) -> Decision:
    """One option per row. Rows that do not use the head get action 0, log-probability 0 and entropy 0."""
    if legal is None:
        decision = chooser.choose(name, logits, None)
    else:
        decision = chooser.choose(name, torch.where(legal, logits, LOWEST), None)
        decision = _require_legal(name, decision, legal, in_use, chooser)
    if in_use is None:
        return decision
    return decision._replace(
        action=decision.action * in_use,
        log_prob=torch.where(in_use, decision.log_prob, 0.0),
        entropy=None if decision.entropy is None else torch.where(in_use, decision.entropy, 0.0),
    )


def decide_several(
    name: str,
    logits_given: Callable[[Tensor], Tensor],
    picks: int,
    legal: Tensor,
    in_use: Tensor | None,
    chooser: Chooser,
) -> Decision:
    """One to `picks` different options per row, in order. `logits_given(chosen)` maps the options chosen so far, a bool
    mask [..., options], to logits [..., options + 1], the end token last. The entropy is the sum over the picks."""
    end = legal.shape[-1]
    going = torch.ones_like(legal[..., 0]) if in_use is None else in_use
    chosen = torch.zeros_like(legal)
    may_end = torch.zeros_like(legal[..., :1])  # not before the first pick
    decisions: list[Decision] = []
    for pick in range(picks):
        allowed = torch.cat((legal & ~chosen, may_end), -1)
        logits = torch.where(allowed, logits_given(chosen), LOWEST)
        decision = chooser.choose(name, logits, pick)
        decision = _require_legal(name, decision, allowed, going, chooser)
        picked = going & (decision.action != end)
        index = torch.where(picked, decision.action, end)
        decisions.append(
            decision._replace(
                action=torch.where(picked, decision.action, -1),
                log_prob=torch.where(going, decision.log_prob, 0.0),
                entropy=None if decision.entropy is None else torch.where(going, decision.entropy, 0.0),
            )
        )
        chosen = chosen | functional.one_hot(index, end + 1)[..., :end].bool()
        may_end = torch.ones_like(may_end)
        going = picked
        if not chooser.evaluates and not DeferredChecks.active() and not bool(going.any()):
            chooser.skip(picks - len(decisions))
            break
    actions, log_prob, log_probs, entropy = zip(*decisions, strict=True)
    evaluated = log_probs[0] is not None
    return Decision(
        functional.pad(torch.stack(actions, -1), (0, picks - len(decisions)), value=-1),
        torch.stack(log_prob).sum(0),
        torch.stack(log_probs, -2) if evaluated else None,
        torch.stack(entropy).sum(0) if evaluated else None,
    )


def decide_numbers(
    name: str, numbers: Numbers, parameters: Tensor, in_use: Tensor | None, chooser: Chooser
) -> Decision:
    """Numbers within their bounds, per row. Rows that do not use the head get the numbers nearest to 0,
    log-probability 0 and entropy 0. The log-probability is that of the rounded action, as in a later evaluation."""
    action = chooser.choose_numbers(name, numbers, parameters)
    if chooser.evaluates:
        _require_inside(name, numbers, action, in_use, chooser)
    log_prob = numbers.log_prob(parameters, action)
    evaluated = (parameters, numbers.entropy(parameters)) if chooser.evaluates else (None, None)
    decision = Decision(action, log_prob, *evaluated)
    if in_use is None:
        return decision
    return decision._replace(
        action=torch.where(in_use.unsqueeze(-1), action, numbers.rest(action.device)),
        log_prob=torch.where(in_use, log_prob, 0.0),
        entropy=None if decision.entropy is None else torch.where(in_use, decision.entropy, 0.0),
    )


def _require_inside(name: str, numbers: Numbers, action: Tensor, in_use: Tensor | None, chooser: Chooser) -> None:
    """Raise for numbers beyond their bounds in rows that count."""
    checks = DeferredChecks.active()
    if checks is not None and not checks.collects:
        return
    outside = ~numbers.inside(action)
    wrong = chooser.counts(outside if in_use is None else outside & in_use)
    if checks is not None:
        checks.add(wrong)
    elif bool(wrong.any()):
        row = _first(wrong)
        raise ValueError(f"head {name!r}, {_place(row)}: action {action[row].tolist()} is not within the bounds")


def num_draws(specs: Mapping[str, Head]) -> int:
    """One uniform number for each pick of a pointer, each number of a box, and each other head."""
    return sum(map(draws_of, specs.values()))


def nothing_chosen(head: Head, rows: int, device: torch.device) -> Tensor:
    """The actions of rows that do not use the head."""
    if isinstance(head, Box):
        return Numbers(head).rest(device).expand(rows, -1)
    several = isinstance(head, Pointer) and head.picks > 1
    return torch.full((rows, draws_of(head)) if several else (rows,), -1 if several else 0, device=device)


def draws_of(head: Head) -> int:
    if isinstance(head, Box):
        return head.size
    return head.picks if isinstance(head, Pointer) else 1


def head_in_use(spec: Head, decided: Mapping[str, Decision], in_use: Mapping[str, Tensor | None]) -> Tensor | None:
    """The rows in which the head counts, given the heads before it; None: all."""
    if spec.when is None:
        return None
    condition = decided[spec.when.head].action
    values = spec.when.values
    if len(values) <= _FEW_VALUES:  # without a constant tensor, which a compiled function would have to send
        used = torch.stack([condition == value for value in values]).any(0)
    else:
        used = (condition.unsqueeze(-1) == _numbers(tuple(values), condition.device)).any(-1)
    before = in_use[spec.when.head]
    return used if before is None else used & before


@lru_cache(maxsize=1024)
def _numbers(values: tuple[int, ...], device: torch.device) -> Tensor:
    """On the device already, since sending them there would wait for it."""
    return torch.tensor(values, device=device)


def _at(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(-1, index.unsqueeze(-1)).squeeze(-1)


def _require_legal(name: str, decision: Decision, legal: Tensor, in_use: Tensor | None, chooser: Chooser) -> Decision:
    """Raise for illegal actions and empty masks in rows that count; elsewhere the log-probability becomes 0."""
    checks = DeferredChecks.active()
    if checks is not None and not checks.collects:
        return decision
    allowed = _at(legal, decision.action)
    if checks is None and bool(allowed.all()):
        return decision
    wrong = chooser.counts(~allowed if in_use is None else ~allowed & in_use)
    if checks is not None:
        checks.add(wrong)
    elif bool(wrong.any()):
        row = _first(wrong)
        if not bool(legal[row].any()):
            raise ValueError(f"head {name!r}, {_place(row)}: no option is legal")
        raise ValueError(f"head {name!r}, {_place(row)}: action {int(decision.action[row])} is not legal")
    return decision._replace(log_prob=torch.where(allowed, decision.log_prob, 0.0))


def _require_finite(head: str, logits: Tensor) -> None:
    broken = ~logits.isfinite().all(-1)
    if checks := DeferredChecks.active():
        checks.add(broken)
    elif bool(broken.any()):
        raise ValueError(f"head {head!r}, {_place(_first(broken))}: logits are not finite")


def _first(rows: Tensor) -> tuple[int, ...]:
    return tuple(rows.nonzero()[0].tolist())


def _place(row: tuple[int, ...]) -> str:
    return f"row {row[0]}" if len(row) == 1 else f"model {row[0]}, row {row[1]}"
