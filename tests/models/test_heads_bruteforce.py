"""Heads of all networks against an enumeration of every joint action, and drawn a million times."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from batches import inputs, play

from ludus.algorithms.losses import kl_by_head, kl_of_heads
from ludus.data.specs import (
    ActionSpec,
    Choice,
    Entities,
    ObservationSpec,
    Planes,
    Point,
    Pointer,
    SeatKind,
    Vector,
    When,
)
from ludus.models.alphastar import AlphaStar
from ludus.models.alphastar_encoder import Scatter
from ludus.models.fully_conv import FullyConv
from ludus.models.network_policy import ActorCritic

MOST_UNITS = 4
KIND = SeatKind(
    name="small",
    observation=ObservationSpec(
        parts={
            "scalars": Vector(size=3),
            "units": Entities(maximum=MOST_UNITS, features=3, types=3),
            "map": Planes(channels=2, height=3, width=4),
        }
    ),
    action=ActionSpec(
        heads={
            "type": Choice(num=5),
            "delay": Choice(num=2, masked=False),
            "group": Pointer(into="units", picks=3, when=When(head="type", values=(1, 2))),
            "queued": Choice(num=2, when=When(head="type", values=(2, 3))),
            "target": Pointer(into="units", when=When(head="queued", values=(1,))),
            "place": Point(height=3, width=4, when=When(head="type", values=(4, 2)), masked=True),
        }
    ),
)
NETWORKS = {
    "actor_critic": ActorCritic(hidden=(8,), channels=(3,), entity_size=4),
    "fully_conv": FullyConv(hidden=(8,), channels=(3, 4), stride=2, entity_size=4),
    "alphastar": AlphaStar(
        scatter=(Scatter(entities="units", onto="map", x=1, y=2),),
        temperatures={"type": 0.8, "group": 0.5, "place": 1.5},
        scalar_size=4,
        entity_size=4,
        entity_hidden=4,
        scatter_channels=2,
        map_channels=4,
        down=(4,),
        spatial_size=4,
        hidden=(8,),
        memory=6,
        memory_layers=2,
        action_size=8,
        head_hidden=8,
        key_size=4,
        embedding_size=8,
        value_size=8,
    ),
}


def build(name, seed=0):
    """A policy whose heads are far from uniform: their last layers start small."""
    policy = NETWORKS[name].build(KIND, seed)
    with torch.no_grad():
        for parameter in policy.heads.parameters():
            if parameter.abs().max() < 0.1:
                parameter.mul_(100.0)
    return policy


def in_use(spec, action):
    if spec.when is None:
        return True
    return action[spec.when.head] in spec.when.values and in_use(KIND.action.heads[spec.when.head], action)


def options(name, legal, length):
    """Everything that a head can do where it counts."""
    head = KIND.action.heads[name]
    mask = legal.get(name, np.ones(KIND.num_options(name), bool)).copy()
    if isinstance(head, Pointer):
        mask[length:] = False
    allowed = np.flatnonzero(mask).tolist()
    if not isinstance(head, Pointer) or head.picks == 1:
        return allowed
    return [
        tuple(chosen) + (-1,) * (head.picks - number)
        for number in range(1, head.picks + 1)
        for chosen in itertools.permutations(allowed, number)
    ]


def joint_actions(legal, length):
    """Every possible action: a value for each head, 0 (or no picks) where the head does not count."""
    found = [{}]
    for name, head in KIND.action.heads.items():
        nothing = (-1,) * head.picks if isinstance(head, Pointer) and head.picks > 1 else 0
        found = [
            {**action, name: value}
            for action in found
            for value in (options(name, legal, length) if in_use(head, action) else [nothing])
        ]
    return found


def one_state(seed, policy):
    """Observation, masks and memory of one state in which every head can count, as batch of one column."""
    rng = np.random.default_rng(seed)
    batch = play(policy, rng, num_steps=1, num_columns=1)
    batch.observation["units_length"][:] = length = 3
    units = batch.observation["units"]
    units[..., :length, 0] = rng.integers(0, 3, length)
    units[..., :length, 1:] = rng.random((length, 2))
    units[..., length:, :] = np.nan
    batch.legal["type"][:] = [True, True, True, False, True] if seed % 2 else True
    for name in ("group", "target"):
        batch.legal[name][:] = [True, seed % 3 > 0, True, False]
    batch.legal["queued"][:] = True
    batch.legal["place"][0, 0, 1:] = rng.random(11) < 0.4
    return batch


def with_actions(batch, actions):
    number = len(actions)

    def repeated(array):
        return np.repeat(array, number, 1)

    columns = {name: np.array([action[name] for action in actions], np.int32)[None] for name in KIND.action.heads}
    return replace(
        batch,
        observation={name: repeated(array) for name, array in batch.observation.items()},
        legal={name: repeated(array) for name, array in batch.legal.items()},
        state={name: np.repeat(array, number, 0) for name, array in batch.state.items()},
        action=columns,
        valid=repeated(batch.valid),
        first=repeated(batch.first),
    )


def marginals(log_prob, actions):
    """Per head, and per action, the log-probability of all that is decided up to that head."""
    names = list(KIND.action.heads)
    found = []
    for last in range(1, len(names) + 1):
        prefixes = [tuple(action[name] for name in names[:last]) for action in actions]
        total = {}
        for prefix, value in zip(prefixes, log_prob, strict=True):
            total[prefix] = total.get(prefix, 0.0) + np.exp(value)
        found.append(np.log([total[prefix] for prefix in prefixes]))
    return np.stack(found, -1)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", NETWORKS)
def test_log_probability_entropy_and_kl_are_those_of_the_enumerated_distribution(name, seed):
    policy, other = build(name), build(name, seed=7)
    batch = one_state(seed, policy)
    actions = joint_actions({key: mask[0, 0] for key, mask in batch.legal.items()}, 3)
    assert len(actions) > 500
    batch = with_actions(batch, actions)
    with torch.no_grad():
        unrolled, others = policy.unroll(batch), other.unroll(batch)
    log_p, log_q = (found.log_prob[0].double().sum(-1).numpy() for found in (unrolled, others))
    p = np.exp(log_p)
    np.testing.assert_allclose(p.sum(), 1.0, atol=1e-5)
    assert np.ptp(log_p) > 1.0

    # By the chain rule a head's share is what it adds to the distribution of all heads before it.
    up_to_p, up_to_q = marginals(log_p, actions), marginals(log_q, actions)
    added = np.diff(up_to_p, axis=1, prepend=0.0)
    np.testing.assert_allclose(unrolled.log_prob[0].numpy(), added, atol=1e-4)
    entropy = (p[:, None] * unrolled.entropy[0].numpy()).sum(0)
    np.testing.assert_allclose(entropy, -(p[:, None] * added).sum(0), atol=1e-4)
    expected = np.diff((p[:, None] * (up_to_p - up_to_q)).sum(0), prepend=0.0)
    taken = {head: torch.from_numpy(action) for head, action in batch.action.items()}
    heads = list(KIND.action.heads)
    by_head = kl_by_head(unrolled.log_probs, others.log_probs, unrolled.in_use, heads, taken)
    for index, head in enumerate(heads):
        np.testing.assert_allclose((p * by_head[head][0].numpy()).sum(), expected[index], atol=1e-4)
    kl = kl_of_heads(unrolled, others.log_probs, heads, taken)[0].numpy()
    np.testing.assert_allclose((p * kl).sum(), (p * (log_p - log_q)).sum(), atol=1e-4)
    assert (p * kl).sum() > 0.05


@pytest.mark.parametrize("name", NETWORKS)
def test_acting_draws_from_the_enumerated_distribution(name):
    policy = build(name)
    batch = one_state(1, policy)
    batch.first[:] = False
    actions = joint_actions({key: mask[0, 0] for key, mask in batch.legal.items()}, 3)
    log_prob = policy.unroll(with_actions(batch, actions)).log_prob[0].detach().sum(-1).double()
    number = 20_000
    acted = policy.act(
        {key: np.repeat(array[0], number, 0) for key, array in batch.observation.items()},
        {key: np.repeat(array[0], number, 0) for key, array in batch.legal.items()},
        {key: np.repeat(array, number, 0) for key, array in batch.state.items()},
        np.random.default_rng(5).random((number, policy.num_draws), np.float32),
    )
    place = {tuple(action.values()): index for index, action in enumerate(actions)}
    columns = [acted.action[head].tolist() for head in KIND.action.heads]
    drawn = [
        place[tuple(tuple(value) if isinstance(value, list) else value for value in row)]
        for row in zip(*columns, strict=True)
    ]
    counts = np.bincount(drawn, minlength=len(actions))
    expected = log_prob.exp().numpy() * number
    assert (np.abs(counts - expected) < 6.0 * np.sqrt(expected + 1.0)).all()
    np.testing.assert_allclose(acted.log_prob.sum(-1), log_prob.numpy()[drawn], atol=1e-4)


def impossible(observation, legal, action):
    """Rows whose action breaks a rule."""
    used, wrong = {}, np.zeros(len(action["type"]), bool)
    rows = np.arange(len(wrong))
    for name, head in KIND.action.heads.items():
        counts = np.ones(len(wrong), bool)
        if head.when is not None:
            counts = used[head.when.head] & np.isin(action[head.when.head], head.when.values)
        used[name] = counts
        mask = legal.get(name, np.ones((len(wrong), KIND.num_options(name)), bool))
        if isinstance(head, Pointer):
            mask = mask & (np.arange(MOST_UNITS) < observation["units_length"][:, None])
        picks = action[name].reshape(len(wrong), -1)
        several = picks.shape[1] > 1
        wrong |= ~counts & (picks != (-1 if several else 0)).any(1)
        made = picks >= 0
        wrong |= counts & ~made[:, 0]
        wrong |= (made[:, 1:] & ~made[:, :-1]).any(1)
        allowed = mask[rows[:, None], np.where(made, picks, 0)]
        wrong |= counts & (made & ~allowed).any(1)
        ordered = np.sort(picks, axis=1)
        wrong |= ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(1)
    return wrong


@pytest.mark.parametrize(
    "num_draws", [pytest.param(20_000, id="quick"), pytest.param(1_000_000, id="million", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", NETWORKS)
def test_impossible_actions_are_never_drawn(name, num_draws):
    policy = build(name)
    rng = np.random.default_rng(11)
    rows = 20_000
    seen = {head: set() for head in KIND.action.heads}
    for _ in range(num_draws // rows):
        observation, legal, state, uniforms = inputs(policy, rng, (rows,))
        observation["units"][..., 0] = rng.integers(0, 3, (rows, MOST_UNITS))
        legal["type"][: rows // 4] = np.eye(5, dtype=bool)[rng.integers(0, 5, rows // 4)]  # one is left
        uniforms[::7] = 0.0
        uniforms[3::7] = np.nextafter(np.float32(1.0), np.float32(0.0))
        action = policy.act(observation, legal, state, uniforms).action
        assert not impossible(observation, legal, action).any()
        for head, values in action.items():
            seen[head] |= set(np.unique(values).tolist())
    assert {head: len(values) for head, values in seen.items()} == {
        "type": 5,
        "delay": 2,
        "group": 4,  # three units, since inputs leave the last one out, and the end
        "queued": 2,
        "target": 3,
        "place": 12,
    }
