from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ludus.algorithms.losses import kl_categorical, kl_of_heads, uniform_log_probs
from ludus.models.operators import LOWEST
from ludus.models.policy import Unrolled


def masked(logits: Tensor, legal: Tensor, fill: float = LOWEST) -> Tensor:
    return torch.where(legal, torch.log_softmax(torch.where(legal, logits, LOWEST), -1), fill)


@pytest.mark.parametrize("fill", [LOWEST, -math.inf])
def test_illegal_options_add_nothing_and_get_no_gradient(fill: float) -> None:
    legal = torch.tensor([True, False, True])
    logits = torch.tensor([0.3, 7.0, -1.0], requires_grad=True)
    other = torch.tensor([1.0, 2.0, 0.5])
    kl = kl_categorical(masked(logits, legal, fill), masked(other, legal, fill))
    torch.autograd.backward(kl)
    p, q = torch.softmax(logits[legal], -1), torch.softmax(other[legal], -1)
    assert kl.item() == pytest.approx((p * (p.log() - q.log())).sum().item(), abs=1e-6)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[1].item() == 0.0


def test_kl_to_the_uniform_policy_is_the_missing_entropy() -> None:
    legal = torch.tensor([[True, False, True], [True, True, True], [False, True, False]])
    log_p = masked(torch.tensor([[0.3, 7.0, -1.0]] * 3), legal)
    entropy = -(log_p.exp() * log_p).sum(-1)
    expected = torch.tensor([2.0, 3.0, 1.0]).log() - entropy
    torch.testing.assert_close(kl_categorical(log_p, uniform_log_probs(log_p)), expected)


def test_kl_of_heads_counts_heads_and_picks_that_are_in_use() -> None:
    generator = torch.Generator().manual_seed(0)
    log_p = {
        "move": torch.log_softmax(torch.randn(3, 4, generator=generator), -1),
        "units": torch.log_softmax(torch.randn(3, 2, 5, generator=generator), -1),
    }
    log_q = {name: torch.log_softmax(torch.randn(x.shape, generator=generator), -1) for name, x in log_p.items()}
    in_use = torch.tensor([[True, True], [True, True], [True, False]])
    unrolled = Unrolled(
        log_prob=torch.zeros(3, 2), entropy=torch.zeros(3, 2), value=torch.zeros(3), log_probs=log_p, in_use=in_use
    )
    # Row 0 picks two units; row 1 ends at its second pick, which is a choice too; row 2 picks none.
    action = {"move": torch.zeros(3), "units": torch.tensor([[3, 1], [3, -1], [-1, -1]])}
    move, units = (kl_categorical(log_p[name], log_q[name]) for name in ("move", "units"))
    expected = torch.stack([move[0] + units[0].sum(), move[1] + units[1].sum(), move[2]])
    torch.testing.assert_close(kl_of_heads(unrolled, log_q, ("move", "units"), action), expected)


def test_picks_after_the_end_are_not_in_use() -> None:
    log_p = {"units": torch.log_softmax(torch.tensor([[[0.0, 1.0], [2.0, 0.0], [5.0, 0.0]]]), -1)}
    log_q = {"units": torch.log_softmax(torch.zeros(1, 3, 2), -1)}
    unrolled = Unrolled(
        log_prob=torch.zeros(1, 1),
        entropy=torch.zeros(1, 1),
        value=torch.zeros(1),
        log_probs=log_p,
        in_use=torch.ones(1, 1).bool(),
    )
    found = kl_of_heads(unrolled, log_q, ("units",), {"units": torch.tensor([[0, -1, -1]])})
    torch.testing.assert_close(found, kl_categorical(log_p["units"], log_q["units"])[:, :2].sum(-1))
