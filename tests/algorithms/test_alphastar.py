"""Each term of AlphaStar's loss against loops over plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from tabular_policy import TabularPolicy, random_batch
from torch import Tensor, nn

from ludus.algorithms.algorithm import Loss
from ludus.algorithms.alphastar import AlphaStarGradient, RewardWeights
from ludus.algorithms.teacher import EarlyGame, Teacher
from ludus.data.batch import Batch
from ludus.data.schedules import Linear
from ludus.data.specs import Choice, ObservationSpec, SeatKind, Vector, When
from ludus.models.policy import Unrolled

HEADS = {
    "order": Choice(num=4),
    "delay": Choice(num=3),
    "aim": Choice(num=4, when=When(head="order", values=(1, 2))),
    "queue": Choice(num=2, when=When(head="order", values=(2, 3))),
}
GROUPS = ((0,), (1,), (2, 3))
REWARDS = ("build_order", "wood")
GAMMA, STATES, T, B = 0.9, 6, 11, 7


class ManyValues(TabularPolicy):
    """Also has values of further rewards."""

    def __init__(self, seed: int) -> None:
        super().__init__(STATES, HEADS, dtype=torch.float64)
        self.further = nn.Parameter(torch.zeros(STATES, len(REWARDS), dtype=torch.float64))
        parts = {"state": Vector(size=1), "scalars": Vector(size=2), "z": Vector(size=3)}
        self.kind = replace(self.kind, observation=ObservationSpec(parts=parts), rewards=REWARDS)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))

    def unroll(self, batch: Batch) -> Unrolled:
        return replace(super().unroll(batch), values=self.further[batch.observation["state"][..., 0]])


def played(policy: ManyValues, seed: int = 0) -> Batch:
    """Ends, truncations, decisions that take longer than one unit of time, rows that do not count."""
    rng = np.random.default_rng(seed)
    legal = torch.from_numpy(rng.random((T + 1, B, 4)) < 0.6)
    legal[..., 1] = True
    legal[0] = torch.tensor([False, True, False, False])
    batch = random_batch(policy, T, B, seed, legal={"aim": legal})
    follows = ~batch.over & torch.from_numpy(rng.random((T + 1, B)) < 0.8)
    follows[-1] = False
    assert (batch.over[:-1] | follows[:-1]).logical_not().any(), "some rows are truncated"
    return replace(
        batch,
        observation={
            **batch.observation,
            "scalars": torch.from_numpy(rng.random((T + 1, B, 2))),
            "z": torch.from_numpy((rng.random((T + 1, B, 3)) < 0.5).astype(np.float64)),
        },
        rewards=torch.from_numpy(rng.normal(size=(T + 1, B, len(REWARDS)))),
        elapsed=torch.from_numpy(rng.integers(1, 5, (T + 1, B))),
        follows=follows,
    )


def off(**changes: object) -> AlphaStarGradient:
    """Nothing counts, but for what is changed."""
    nothing = RewardWeights(policy=0.0, value=0.0)
    settings: dict[str, object] = {
        "gamma": GAMMA,
        "main": nothing,
        "rewards": dict.fromkeys(REWARDS, nothing),
        "upgo": 0.0,
        "entropy": 0.0,
        "teacher": None,
    }
    return AlphaStarGradient(**{**settings, **changes})  # type: ignore[arg-type]


def measured(algorithm: AlphaStarGradient, policy: ManyValues, batch: Batch) -> tuple[Loss, dict[str, float]]:
    references = {name: ManyValues(5) for name in algorithm.references}
    loss = algorithm.loss(policy, algorithm.prepare(policy, references, batch))
    return loss, {name: value.item() for name, value in loss.measured().items()}


def mean_where(rows: Sequence[Sequence[float]], valid: Tensor) -> float:
    return float(np.mean([rows[t][b] for t in range(T) for b in range(B) if valid[t, b]]))


def naive(batch: Batch, values: Tensor, rewards: Tensor, ratios: Tensor, lambda_: float) -> list[list[float]]:
    """V-trace targets less values by recursion: how far the target of a row lies above its value."""
    found = [[0.0] * B for _ in range(T + 1)]
    for b in range(B):
        for t in range(T - 1, -1, -1):
            discount = 0.0 if batch.over[t, b] else GAMMA ** int(batch.elapsed[t, b])
            error = rewards[t, b] + discount * values[t + 1, b] - values[t, b]
            clipped = min(float(ratios[t, b]), 1.0)
            onwards = found[t + 1][b] if batch.follows[t, b] else 0.0
            found[t][b] = float(clipped * error + lambda_ * discount * clipped * onwards)
    return found


@pytest.mark.parametrize("reward", range(3))
def test_policy_gradient_is_vtrace_with_one_ratio_per_group(reward: int) -> None:
    actor, learner = ManyValues(0), ManyValues(1)
    batch = played(actor)
    unrolled = learner.unroll(batch)
    assert unrolled.values is not None
    values = [unrolled.value, *unrolled.values.unbind(-1)][reward].detach()
    rewards = [batch.reward, *batch.rewards.unbind(-1)][reward]
    expected = 0.0
    clipped = []
    for group in GROUPS:
        log_prob = unrolled.log_prob[..., list(group)].sum(-1).detach()
        ratio = (log_prob - batch.log_prob[..., list(group)].sum(-1)).exp()
        above = naive(batch, values, rewards, ratio, 1.0)
        terms = [[0.0] * B for _ in range(T)]
        for t in range(T):
            for b in range(B):
                discount = 0.0 if batch.over[t, b] else GAMMA ** int(batch.elapsed[t, b])
                onwards = above[t + 1][b] if batch.follows[t, b] else 0.0
                error = rewards[t, b] + discount * (values[t + 1, b] + onwards) - values[t, b]
                terms[t][b] = float(log_prob[t, b] * min(float(ratio[t, b]), 1.0) * error)
        expected -= mean_where(terms, batch.valid)
        clipped.append(mean_where((ratio > 1).double().tolist(), batch.valid))
    name = ("policy_loss", "policy_loss.build_order", "policy_loss.wood")[reward]
    _, found = measured(off(), learner, batch)
    assert found[name] == pytest.approx(expected)
    shares = [found[f"clip_fraction.{head}"] for head in ("order", "delay", "aim")]
    assert shares == pytest.approx(clipped)


def test_upgoing_returns_follow_the_main_reward_only() -> None:
    actor, learner = ManyValues(0), ManyValues(1)
    batch = played(actor)
    unrolled = learner.unroll(batch)
    value, reward = unrolled.value.detach(), batch.reward
    gained = [[0.0] * B for _ in range(T)]
    for b in range(B):
        for t in range(T - 1, -1, -1):
            discount = 0.0 if batch.over[t, b] else GAMMA ** int(batch.elapsed[t, b])
            onwards = value[t + 1, b]
            if t + 1 < T and batch.follows[t, b]:
                after = 0.0 if batch.over[t + 1, b] else GAMMA ** int(batch.elapsed[t + 1, b])
                if reward[t + 1, b] + after * value[t + 2, b] >= value[t + 1, b]:
                    onwards = gained[t + 1][b] + value[t + 1, b]
            gained[t][b] = float(reward[t, b] + discount * onwards - value[t, b])
    expected = 0.0
    for group in GROUPS:
        log_prob = unrolled.log_prob[..., list(group)].sum(-1).detach()
        rho = (log_prob - batch.log_prob[..., list(group)].sum(-1)).exp().clamp(max=1.0)
        terms = (log_prob * rho)[:-1] * torch.tensor(gained)
        expected -= mean_where(terms.tolist(), batch.valid)
    loss, found = measured(off(upgo=2.0), learner, batch)
    assert found["upgo_loss"] == pytest.approx(expected)
    assert loss.total.item() == pytest.approx(2.0 * expected)


def test_every_value_has_targets_of_its_own_reward_without_correction() -> None:
    actor, learner = ManyValues(0), ManyValues(1)
    batch = played(actor)
    unrolled = learner.unroll(batch)
    assert unrolled.values is not None
    values = [unrolled.value.detach(), *unrolled.values.detach().unbind(-1)]
    rewards = [batch.reward, *batch.rewards.unbind(-1)]
    _, found = measured(off(lambda_=0.8), learner, batch)
    for name, value, reward in zip(("", ".build_order", ".wood"), values, rewards, strict=True):
        error = torch.tensor(naive(batch, value, reward, torch.ones(T + 1, B), 0.8))
        expected = mean_where((0.5 * error.square()).tolist(), batch.valid)
        assert found["value_loss" + name] == pytest.approx(expected)
        target = (value[:-1] + error[:-1])[batch.valid[:-1]]
        left = (error[:-1])[batch.valid[:-1]]
        explained = 1 - left.var(correction=0) / target.var(correction=0)
        assert found["explained_variance" + name] == pytest.approx(explained.item())


def test_entropy_of_a_head_is_a_share_of_the_most_it_could_be() -> None:
    actor, learner = ManyValues(0), ManyValues(1)
    batch = played(actor)
    total, by_head = 0.0, {}
    for head, spec in HEADS.items():
        rows, used = np.zeros((T, B)), np.zeros((T, B), bool)
        for t in range(T):
            for b in range(B):
                order = int(batch.action["order"][t, b])
                used[t, b] = spec.when is None or order in spec.when.values
                legal = batch.legal[head][t, b] if head in batch.legal else torch.ones(spec.num).bool()
                logits = learner.logits[head][int(batch.observation["state"][t, b, 0])][legal]
                chances = torch.softmax(logits, -1).detach()
                if used[t, b] and len(chances) > 1:
                    rows[t, b] = float(-(chances * chances.log()).sum() / np.log(len(chances)))
        counts = batch.valid[:-1].numpy()
        total += rows[counts].mean()
        by_head[head] = rows[counts & used].mean()
    loss, found = measured(off(entropy=3.0), learner, batch)
    assert found["entropy"] == pytest.approx(total)
    assert loss.total.item() == pytest.approx(-3.0 * total)
    assert {head: found[f"entropy.{head}"] for head in HEADS} == pytest.approx(by_head)


def divergence(teacher: ManyValues, learner: ManyValues, batch: Batch, head: str, rows: Tensor | None = None) -> float:
    """Mean over the valid rows of sum p log(p / q) with the teacher as p; 0 where `rows` is False."""
    terms = torch.zeros(T, B, dtype=torch.float64)
    when = HEADS[head].when
    for t in range(T):
        for b in range(B):
            if when is not None and int(batch.action["order"][t, b]) not in when.values:
                continue
            legal = batch.legal[head][t, b] if head in batch.legal else torch.ones(HEADS[head].num).bool()
            state = int(batch.observation["state"][t, b, 0])
            p, q = (torch.softmax(one.logits[head][state][legal], -1) for one in (teacher, learner))
            terms[t, b] = (p * (p / q).log()).sum().detach()
    if rows is not None:
        terms = torch.where(rows[:-1], terms, 0.0)
    return mean_where(terms.tolist(), batch.valid)


def test_teacher_pulls_each_head_with_its_own_weight() -> None:
    actor, learner, teacher = ManyValues(0), ManyValues(1), ManyValues(5)
    batch = replace(played(actor), progress=0.5)
    weights = {"order": 0.3, "delay": 0.3, "aim": 1.5, "queue": 0.0}
    algorithm = off(teacher=Teacher(weight=0.3, heads={"aim": Linear(start=1.0, end=2.0), "queue": 0.0}))
    loss, found = measured(algorithm, learner, batch)
    expected = sum(weights[head] * divergence(teacher, learner, batch, head) for head in HEADS)
    assert loss.total.item() == pytest.approx(expected)
    assert found["teacher_loss"] == pytest.approx(expected)
    used = batch.valid[:-1] & torch.isin(batch.action["order"][:-1], torch.tensor([1, 2]))
    share = used.sum() / batch.valid[:-1].sum()
    aim = divergence(teacher, learner, batch, "aim") / share
    assert found["teacher_kl.aim"] == pytest.approx(aim.item())


@pytest.mark.parametrize("strategy", ["z", None])
@pytest.mark.parametrize("bounds", [{"most": 0.4}, {"least": 0.4}], ids=str)
def test_early_in_the_game_the_first_head_is_pulled_more(bounds: Mapping[str, float], strategy: str | None) -> None:
    actor, learner, teacher = ManyValues(0), ManyValues(1), ManyValues(5)
    batch = played(actor)
    early = EarlyGame(part="scalars", feature=1, strategy=strategy, weight=0.7, **bounds)
    loss, _ = measured(off(teacher=Teacher(weight=0.0, early=early)), learner, batch)
    time = batch.observation["scalars"][..., 1]
    rows = time <= 0.4 if "most" in bounds else time >= 0.4
    if strategy is not None:
        rows = rows & (batch.observation["z"][..., 0] == 1)
    assert rows[batch.valid].any()
    assert not rows[batch.valid].all()
    expected = 0.7 * divergence(teacher, learner, batch, "order", rows)
    assert loss.total.item() == pytest.approx(expected)


def test_weights_follow_their_schedules() -> None:
    actor, learner = ManyValues(0), ManyValues(1)
    batch = played(actor)
    weights = {"wood": RewardWeights(policy=Linear(start=0.0, end=4.0), value=Linear(start=2.0, end=0.0))}
    algorithm = off(rewards={**weights, "build_order": RewardWeights(policy=0.0, value=0.0)})
    for progress in (0.0, 0.25, 1.0):
        loss, found = measured(algorithm, learner, replace(batch, progress=progress))
        expected = 4.0 * progress * found["policy_loss.wood"]
        expected += 2.0 * (1.0 - progress) * found["value_loss.wood"]
        assert loss.total.item() == pytest.approx(expected)


@pytest.mark.parametrize("reward", ["main", "build_order", "wood"])
def test_gradients_go_where_they_should(reward: str) -> None:
    actor, learner = ManyValues(0), ManyValues(1)
    batch = played(actor)

    def touched(policy: float = 0.0, value: float = 0.0, **more: object) -> set[str]:
        nothing = RewardWeights(policy=0.0, value=0.0)
        rewards = {"main": nothing} | dict.fromkeys(REWARDS, nothing)
        rewards[reward] = RewardWeights(policy=policy, value=value)
        algorithm = off(main=rewards.pop("main"), rewards=rewards, **more)
        loss, _ = measured(algorithm, learner, batch)
        learner.zero_grad()
        torch.autograd.backward(loss.total)
        found = set()
        for name, parameter in learner.named_parameters():
            assert parameter.grad is not None
            columns = parameter.grad.abs().sum(0)
            if name == "further":
                found |= {one for one, column in zip(REWARDS, columns, strict=True) if column > 0}
            elif columns.sum() > 0:
                found.add("main" if name == "values" else name)
        return found

    heads = {f"logits.{head}" for head in HEADS}
    assert touched(policy=1.0) == heads
    assert touched(value=1.0) == {reward}
    assert touched(upgo=1.0) == touched(entropy=1.0) == heads
    assert touched(teacher=Teacher()) == heads


def test_the_teacher_gets_no_gradient() -> None:
    learner, teacher = ManyValues(1), ManyValues(5)
    algorithm = off(teacher=Teacher(weight=1.0))
    batch = algorithm.prepare(learner, {"teacher": teacher}, played(ManyValues(0)))
    torch.autograd.backward(algorithm.loss(learner, batch).total)
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_rows_that_do_not_count_change_nothing() -> None:
    actor, learner = ManyValues(0), ManyValues(1)
    batch = played(actor)
    algorithm = AlphaStarGradient(teacher=Teacher(weight=1.0), entropy=0.1)
    counts = torch.zeros_like(batch.valid)
    counts[0] = True
    alone = replace(batch, valid=counts, follows=batch.follows & False)
    others = {**alone.observation, "state": alone.observation["state"].clone()}
    others["state"][2:] = (others["state"][2:] + 1) % STATES  # row 1 is the bootstrap of row 0
    first, _ = measured(algorithm, learner, alone)
    second, _ = measured(algorithm, learner, replace(alone, observation=others))
    assert first.total.item() == pytest.approx(second.total.item())


def kind(**changes: object) -> SeatKind:
    return replace(ManyValues(0).kind, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (AlphaStarGradient(rewards={"wod": RewardWeights()}), r"rewards: 'wod'.*did you mean 'wood'"),
        (AlphaStarGradient(teacher=Teacher(heads={"aims": 1.0})), r"Teacher\.heads: 'aims'.*'aim'"),
        (AlphaStarGradient(groups=(("order", "delai"),)), r"groups: 'delai'.*'delay'"),
        (AlphaStarGradient(groups=(("order", "delay", "aim"),)), r"'queue' of 'player'.*in 0"),
        (AlphaStarGradient(groups=(("order", "delay", "aim"), ("queue", "aim"))), r"'aim'.*is in 2"),
        (
            AlphaStarGradient(teacher=Teacher(early=EarlyGame(part="scalar", most=1.0))),
            r"EarlyGame\.part: 'scalar'.*'scalars'",
        ),
        (
            AlphaStarGradient(teacher=Teacher(early=EarlyGame(part="scalars", feature=2, most=1.0))),
            r"feature must be from 0 to 1.*got 2",
        ),
        (
            AlphaStarGradient(teacher=Teacher(early=EarlyGame(part="scalars", strategy="zz", most=1.0))),
            r"EarlyGame\.strategy: 'zz'",
        ),
    ],
)
def test_settings_that_do_not_fit_the_game_are_named(algorithm: AlphaStarGradient, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        algorithm.check([kind()])


def test_settings_that_fit_one_kind_of_seat_are_enough() -> None:
    other = kind(name="other", action=replace(kind().action, heads={"order": Choice(num=2)}), rewards=())
    algorithm = AlphaStarGradient(
        groups=(("order", "delay"), ("aim", "queue")),
        rewards={"wood": RewardWeights()},
        teacher=Teacher(heads={"queue": 1.0}),
    )
    algorithm.check([kind(), other])


def test_early_needs_an_end() -> None:
    with pytest.raises(ValueError, match="least or most"):
        EarlyGame(part="scalars")
