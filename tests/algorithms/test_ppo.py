from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tabular_policy import TabularPolicy, random_batch

from ludus.algorithms.ppo import PPO, mappo
from ludus.data.schedules import Linear
from ludus.data.specs import Choice, When

HEADS = {"move": Choice(num=3), "aim": Choice(num=4, when=When(head="move", values=(1, 2)))}


def trained_policy(seed: int = 0, *, heads: dict[str, Choice] = HEADS) -> TabularPolicy:
    policy = TabularPolicy(5, heads, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return policy


def test_before_the_first_step_the_loss_is_the_mean_advantage() -> None:
    policy = trained_policy()
    algorithm = PPO(normalise_advantage=False)
    batch = algorithm.prepare(policy, {}, random_batch(policy, 8, 4))
    statistics = algorithm.loss(policy, batch).measured()
    expected = -batch.extra["advantage"][batch.valid].mean()
    torch.testing.assert_close(statistics["policy_loss"], expected)
    assert statistics["kl"].item() == pytest.approx(0.0, abs=1e-12)
    assert statistics["clip_fraction"].item() == 0.0


def test_gradient_is_that_of_the_policy_gradient_before_the_first_step() -> None:
    policy = trained_policy()
    algorithm = PPO(entropy=0.0, value_weight=0.0)
    batch = algorithm.prepare(policy, {}, random_batch(policy, 8, 4))
    parameters = list(policy.logits.values())
    found = torch.autograd.grad(algorithm.loss(policy, batch).total, parameters)
    log_prob = policy.unroll(batch).log_prob.sum(-1)
    plain = -(log_prob * batch.extra["advantage"])[batch.valid].mean()
    for one, other in zip(found, torch.autograd.grad(plain, parameters), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("ratio", ["joint", "per_head"])
def test_surrogate_by_hand_after_the_policy_moved(ratio: str) -> None:
    actor, learner = trained_policy(0), trained_policy(1)
    algorithm = PPO(ratio=ratio, clip=0.2, dual_clip=3.0)  # type: ignore[arg-type]
    batch = algorithm.prepare(learner, {}, random_batch(actor, 8, 4))
    unrolled = learner.unroll(batch)
    total, clipped, terms = 0.0, 0, 0
    for t, b in batch.valid.nonzero().tolist():
        heads = [h for h in range(2) if unrolled.in_use[t, b, h]]
        advantage = batch.extra["advantage"][t, b].item()
        differences = [(unrolled.log_prob[t, b, h] - batch.log_prob[t, b, h]).item() for h in heads]
        for difference in [sum(differences)] if ratio == "joint" else differences:
            r = torch.tensor(difference).double().exp().item()
            surrogate = min(r * advantage, min(max(r, 0.8), 1.2) * advantage)
            total += max(surrogate, 3.0 * advantage) if advantage < 0 else surrogate
            clipped += abs(r - 1.0) > 0.2
            terms += 1
    statistics = algorithm.loss(learner, batch).measured()
    assert statistics["policy_loss"].item() == pytest.approx(-total / int(batch.valid.sum()), rel=1e-5)
    assert statistics["clip_fraction"].item() == pytest.approx(clipped / terms)


def test_one_head_has_the_same_loss_joint_and_per_head() -> None:
    heads = {"move": Choice(num=3)}
    actor, learner = trained_policy(0, heads=heads), trained_policy(1, heads=heads)
    batch = PPO().prepare(learner, {}, random_batch(actor, 8, 4))
    joint, per_head = PPO(ratio="joint").loss(learner, batch), PPO(ratio="per_head").loss(learner, batch)
    torch.testing.assert_close(joint.total, per_head.total)


def test_rows_give_the_same_loss_as_the_trajectories_they_come_from() -> None:
    actor, learner = trained_policy(0), trained_policy(1)
    batch = PPO().prepare(learner, {}, random_batch(actor, 8, 4))
    rows = batch.rows(batch.valid.flatten().nonzero()[:, 0])
    torch.testing.assert_close(PPO().loss(learner, rows).total, PPO().loss(learner, batch).total)


def test_garbage_in_rows_that_do_not_count_is_harmless() -> None:
    policy = trained_policy()
    batch = PPO().prepare(policy, {}, random_batch(policy, 8, 4))
    clean = PPO().loss(policy, batch)
    garbage = torch.where(batch.valid[..., None], batch.log_prob, -1e6)
    dirty = PPO().loss(policy, replace(batch, log_prob=garbage))
    torch.testing.assert_close(clean.total, dirty.total)
    gradients = torch.autograd.grad(dirty.total, list(policy.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_recomputed_values_are_those_of_the_live_weights() -> None:
    actor, learner = trained_policy(0), trained_policy(1)
    batch = random_batch(actor, 8, 4)
    stored = PPO(normalise_advantage=False).prepare(learner, {}, batch)
    recomputed = PPO(normalise_advantage=False, recompute_values=True).prepare(learner, {}, batch)
    torch.testing.assert_close(stored.value, batch.value)
    torch.testing.assert_close(recomputed.value, learner.unroll(batch).value.detach())
    by_hand = recomputed.extra["target"] - recomputed.value
    torch.testing.assert_close(recomputed.extra["advantage"], by_hand)
    assert not recomputed.extra["target"].requires_grad
    assert not torch.equal(stored.extra["target"], recomputed.extra["target"])


def test_entropy_weight_follows_its_schedule() -> None:
    policy = trained_policy()
    algorithm = PPO(entropy=Linear(start=0.2, end=0.0))
    batch = algorithm.prepare(policy, {}, random_batch(policy, 8, 4))
    early, late = (algorithm.loss(policy, replace(batch, progress=progress)) for progress in (0.5, 1.0))
    torch.testing.assert_close(late.total - early.total, 0.1 * early.statistics["entropy"])


def test_entropy_counts_the_heads_in_use() -> None:
    policy = TabularPolicy(5, HEADS)
    batch = PPO().prepare(policy, {}, random_batch(policy, 8, 4))
    aiming = (batch.action["move"] > 0)[batch.valid].float()
    expected = torch.tensor(3.0).log() + (aiming * torch.tensor(4.0).log()).mean()
    torch.testing.assert_close(PPO().loss(policy, batch).measured()["entropy"], expected)


def test_mappo_has_the_published_constants_and_takes_overrides() -> None:
    published = mappo()
    assert (published.gamma, published.lambda_, published.clip) == (0.99, 0.95, 0.2)
    assert (published.entropy, published.huber, published.value_clip) == (0.01, 10.0, 0.2)
    assert mappo(clip=0.1) == replace(published, clip=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dual_clip": 0.9}, r"PPO\.dual_clip must be above 1, got 0\.9"),
        ({"gamma": 1.1}, r"PPO\.gamma must be from 0 to 1, got 1\.1"),
        ({"lambda_": -0.1}, r"PPO\.lambda_ must be from 0 to 1"),
        ({"clip": 0.0}, r"PPO\.clip must be above 0"),
        ({"ratio": "per_haed"}, r"PPO\.ratio is 'per_haed'.*did you mean 'per_head'\?"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mappo(**settings)
