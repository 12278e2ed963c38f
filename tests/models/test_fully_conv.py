from dataclasses import replace

import numpy as np
import pytest
import torch
from batches import PLAIN, RICH, inputs, play

from ludus.data.specs import ActionSpec, Choice, ObservationSpec, Planes, Point, SeatKind, Vector, When
from ludus.models.fully_conv import FullyConv
from ludus.models.network_policy import stack_policies

SCREEN = SeatKind(
    name="screen",
    observation=ObservationSpec(
        parts={
            "screen": Planes(channels=2, height=9, width=7, dtype="bool"),
            "height": Planes(channels=1, height=9, width=7),
            "minimap": Planes(channels=3, height=4, width=4, dtype="uint8"),
            "scalars": Vector(size=3),
        }
    ),
    action=ActionSpec(
        heads={
            "type": Choice(num=4),
            "near": Point(height=9, width=7, when=When(head="type", values=(1, 2)), masked=True),
            "far": Point(height=4, width=4, when=When(head="type", values=(3,))),
        }
    ),
)
ONLY_PLANES = SeatKind(
    name="only planes",
    observation=ObservationSpec(parts={"map": Planes(channels=1, height=8, width=8)}),
    action=ActionSpec(heads={"place": Point(height=8, width=8)}),
)
SMALL = FullyConv(channels=(4, 6), hidden=(16,), entity_size=8)
CONFIGS = {
    "screen": (SCREEN, SMALL),
    "strided": (SCREEN, replace(SMALL, stride=4, value_normalisation=True)),
    "memory": (SCREEN, replace(SMALL, stride=2, memory=7)),
    "rich": (RICH, replace(SMALL, stride=2)),
    "only planes": (ONLY_PLANES, SMALL),
}


def build(name, seed=0):
    """A policy whose heads are far from uniform: their last layers start small."""
    kind, config = CONFIGS[name]
    policy = config.build(kind, seed)
    with torch.no_grad():
        for parameter in policy.heads.parameters():
            if parameter.abs().max() < 0.1:
                parameter.mul_(50.0)
    return policy


@pytest.mark.parametrize("name", CONFIGS)
def test_unroll_repeats_what_act_decided(name):
    policy = build(name)
    batch = play(policy, np.random.default_rng(1), num_steps=6, num_columns=5)
    unrolled = policy.unroll(batch)
    np.testing.assert_allclose(unrolled.log_prob.detach().numpy(), batch.log_prob, atol=1e-5)
    np.testing.assert_allclose(unrolled.value.detach().numpy(), batch.value, atol=1e-5)
    for head, log_probs in unrolled.log_probs.items():
        several = policy.kind.action.arrays[head].shape
        assert log_probs.shape == (6, 5, *several, policy.kind.num_options(head) + bool(several))
    (unrolled.log_prob.sum() + unrolled.entropy.sum() + unrolled.value.sum()).backward()
    for parameter_name, parameter in policy.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name


@pytest.mark.parametrize("name", CONFIGS)
def test_sixteen_stacked_are_sixteen_single_calls(name):
    policies = [build(name, seed) for seed in range(16)]
    arrays = inputs(policies[0], np.random.default_rng(2), (16, 5))
    together = stack_policies(policies).act(*arrays)
    for index, policy in enumerate(policies):
        observation, legal, state = ({key: array[index] for key, array in tree.items()} for tree in arrays[:3])
        alone = policy.act(observation, legal, state, arrays[3][index])
        for head, action in alone.action.items():
            np.testing.assert_array_equal(together.action[head][index], action)
        np.testing.assert_allclose(together.log_prob[index], alone.log_prob, atol=1e-5)
        np.testing.assert_allclose(together.value[index], alone.value, atol=1e-5)


def test_only_legal_places_are_drawn_and_only_where_the_head_counts():
    policy = build("strided")
    observation, legal, state, uniforms = inputs(policy, np.random.default_rng(3), (2_000,))
    legal["near"][:, 31:] = False
    action = policy.act(observation, legal, state, uniforms).action
    used = np.isin(action["type"], (1, 2))
    assert used.any()
    assert legal["near"][np.arange(2_000), action["near"]][used].all()
    assert not action["near"][~used].any()
    assert not action["far"][action["type"] != 3].any()


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_a_place_is_scored_by_what_is_around_it(stride):
    """Far from a change the scores stay as they are, once the trunk, which sees all, is left out."""
    policy = replace(SMALL, stride=stride).build(ONLY_PLANES, 0)
    head = policy.heads.heads[0]
    with torch.no_grad():
        head.context.weight.zero_()
        for scores in (head.scores, head.within or head.scores):
            scores.weight.mul_(50.0)
    maps = np.zeros((2, 1, 8, 8), np.float32)
    maps[1, 0, 6, 0] = 1.0
    batch = play(policy, np.random.default_rng(1), num_steps=1, num_columns=2)
    log_probs = policy.unroll(replace(batch, observation={"map": maps[None]})).log_probs["place"][0]
    scores = (log_probs - log_probs[:, 7:8]).reshape(2, 8, 8)  # against the place furthest away
    rows, columns = torch.nonzero((scores[0] - scores[1]).abs() > 1e-4).unbind(-1)
    assert 0 < rows.min() <= 6 <= rows.max()
    assert columns.min() == 0
    assert columns.max() < 7


def test_the_resolution_is_kept_or_strided():
    for stride, cells in ((1, 63), (2, 20), (4, 6)):
        policy = replace(SMALL, stride=stride).build(SCREEN, 0)
        observation, *_ = inputs(policy, np.random.default_rng(0), (3,))
        encoded = policy.encoder({name: torch.from_numpy(array) for name, array in observation.items()})
        assert encoded.entities["cells of 9x7"].embedding.shape == (3, cells, 6)


def test_weights_depend_on_the_seed_only():
    first, again, other = (SMALL.build(SCREEN, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["encoder.towers.0.layers.0.weight"], other["encoder.towers.0.layers.0.weight"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": (0,)}, "hidden must be sizes of at least 1, got 0"),
        ({"activation": "rely"}, "activation must be one of tanh, .*, got 'rely'"),
        ({"stride": 3}, "stride must be a power of two up to 4, .* got 3"),
        ({"stride": 8}, "stride must be a power of two up to 4, .* 2 convolutions; got 8"),
        ({"memory": -1}, "memory must be at least 0, got -1"),
        ({"entity_size": 10, "entity_heads": 3}, r"entity_size \(10\) must be a multiple"),
    ],
)
def test_impossible_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        FullyConv(**settings)


def test_needs_a_map():
    with pytest.raises(ValueError, match="kind 'plain' has no Point head with planes of its size"):
        FullyConv().build(PLAIN, 0)
