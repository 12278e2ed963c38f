import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from batches import NUMBERS, PLAIN, RICH, inputs, play

from ludus.data.specs import ActionSpec, Box, Choice, SeatKind, When
from ludus.models.network_policy import ActorCritic, can_stack, stack_policies

SMALL = ActorCritic(hidden=(16, 16), channels=(4, 4), entity_size=8)
CONFIGS = {
    "plain": (PLAIN, SMALL),
    "shared critic": (PLAIN, replace(SMALL, separate_critic=False, value_normalisation=True)),
    "memory": (PLAIN, replace(SMALL, memory=7)),
    "action values": (PLAIN, replace(SMALL, action_values=True, central_critic=True)),
    "numbers": (NUMBERS, SMALL),
    "squashed numbers": (NUMBERS, replace(SMALL, memory=7, box_distribution="squashed")),
    "beta numbers": (NUMBERS, replace(SMALL, activation="relu", box_distribution="beta")),
    "rich": (RICH, replace(SMALL, activation="relu")),
    "rich with residual blocks": (RICH, replace(SMALL, activation="relu", residual_blocks=2)),
    "rich with memory": (RICH, replace(SMALL, memory=7, central_critic=True)),
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
    if policy.value_scale is not None:
        policy.value_scale.update(torch.tensor([3.0, 9.0]))
    batch = play(policy, np.random.default_rng(1), num_steps=6, num_columns=5)
    unrolled = policy.unroll(batch)
    np.testing.assert_allclose(unrolled.log_prob.detach().numpy(), batch.log_prob, atol=1e-5)
    np.testing.assert_allclose(unrolled.value.detach().numpy(), batch.value, atol=1e-5)
    assert unrolled.entropy.shape == unrolled.log_prob.shape == unrolled.in_use.shape
    assert not unrolled.log_prob[~unrolled.in_use].any()
    assert not unrolled.entropy[~unrolled.in_use].any()
    for head, log_probs in unrolled.log_probs.items():
        if isinstance(policy.kind.action.heads[head], Box):
            assert log_probs.shape == (6, 5, policy.kind.action.heads[head].size, 2)
            continue
        options = policy.kind.num_options(head)
        several = policy.kind.action.arrays[head].shape
        assert log_probs.shape == (6, 5, *several, options + bool(several))
        torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(log_probs.shape[:-1]))
    loss = unrolled.log_prob.sum() + unrolled.entropy.sum() + unrolled.value.sum()
    loss.backward()
    for parameter_name, parameter in policy.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name


@pytest.mark.parametrize("name", ["plain", "rich"])
def test_unroll_of_single_rows(name):
    policy = build(name)
    batch = play(policy, np.random.default_rng(1), num_steps=4, num_columns=5)
    index = np.array([3, 0, 17, 8])
    rows = policy.unroll(batch.rows(index))
    np.testing.assert_allclose(rows.log_prob.detach().numpy(), batch.log_prob.reshape(20, -1)[index], atol=1e-5)


def test_memory_refuses_single_rows():
    policy = build("memory")
    batch = play(policy, np.random.default_rng(1), num_steps=2, num_columns=3)
    with pytest.raises(ValueError, match=r"unrolls trajectories \[T\+1, B\], got leading axes \(2,\)"):
        policy.unroll(batch.rows(np.array([0, 1])))


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize(
    ("name", "count"), [*((name, 16) for name in CONFIGS), ("rich", 1), ("rich with residual blocks", 1)]
)
def test_stacked_models_are_as_many_single_calls(name, count, greedy):
    policies = [build(name, seed) for seed in range(count)]
    arrays = inputs(policies[0], np.random.default_rng(2), (count, 5))
    together = stack_policies(policies).act(*arrays, greedy=greedy)
    for index, policy in enumerate(policies):
        observation, legal, state = ({key: array[index] for key, array in tree.items()} for tree in arrays[:3])
        alone = policy.act(observation, legal, state, arrays[3][index], greedy=greedy)
        for head, action in alone.action.items():
            np.testing.assert_allclose(together.action[head][index], action, atol=1e-5 * (action.dtype == np.float32))
        np.testing.assert_allclose(together.log_prob[index], alone.log_prob, atol=1e-4 if "numbers" in name else 1e-5)
        np.testing.assert_allclose(together.value[index], alone.value, atol=1e-5)
        assert together.state.keys() == alone.state.keys() == policy.state_arrays.keys()
        for key, array in alone.state.items():
            np.testing.assert_allclose(together.state[key][index], array, atol=1e-5)


def test_stack_unrolls_with_a_leading_model_axis():
    policies = [build("rich with memory", seed) for seed in range(3)]
    batches = [play(policy, np.random.default_rng(3), num_steps=3, num_columns=2) for policy in policies]
    joint = stack_policies(policies).unroll(_stacked(batches))
    for index, batch in enumerate(batches):
        np.testing.assert_allclose(joint.log_prob[index].detach().numpy(), batch.log_prob, atol=1e-5)
        np.testing.assert_allclose(joint.value[index].detach().numpy(), batch.value, atol=1e-5)


def _stacked(batches):
    stacked = {}
    for field in ("observation", "legal", "action", "state"):
        trees = [getattr(batch, field) for batch in batches]
        stacked[field] = {name: np.stack([tree[name] for tree in trees]) for name in trees[0]}
    for field in ("first", "valid"):
        stacked[field] = np.stack([getattr(batch, field) for batch in batches])
    return replace(batches[0], **stacked)


def test_stack_refuses_other_architectures_and_stacks():
    plain, memory = build("plain"), build("memory")
    with pytest.raises(ValueError, match="policy 1 has another architecture"):
        stack_policies([plain, memory])
    stack = stack_policies([plain, plain])
    assert can_stack(plain)
    assert not can_stack(stack)
    with pytest.raises(ValueError, match="policy 0 is a NetworkPolicy; only a single"):
        stack_policies([stack])


def test_heads_in_order_are_one_distribution():
    kind = SeatKind(
        name="ordered",
        observation=PLAIN.observation,
        action=ActionSpec(
            heads={
                "first": Choice(num=3),
                "second": Choice(num=2, when=When(head="first", values=(0, 2))),
                "third": Choice(num=4, when=When(head="second", values=(1,))),
            }
        ),
    )
    policy = SMALL.build(kind, 0)
    with torch.no_grad():
        for parameter in policy.heads.parameters():
            parameter.mul_(10.0)
    actions = [
        (first, second, third)
        for first, second, third in itertools.product(range(3), range(2), range(4))
        if (first != 1 or second == 0) and ((first != 1 and second == 1) or third == 0)
    ]
    batch = play(policy, np.random.default_rng(4), num_steps=1, num_columns=len(actions))
    one_row = {name: np.repeat(array[:, :1], len(actions), 1) for name, array in batch.observation.items()}
    legal = {name: np.ones_like(array) for name, array in batch.legal.items()}
    columns = np.array(actions, np.int32).T[:, None]
    batch = replace(batch, observation=one_row, legal=legal, action=dict(zip(kind.action.heads, columns, strict=True)))
    unrolled = policy.unroll(batch)
    log_prob = unrolled.log_prob.sum(-1)
    torch.testing.assert_close(log_prob.exp().sum(), torch.tensor(1.0))
    torch.testing.assert_close((log_prob.exp() * unrolled.entropy.sum(-1)).sum(), -(log_prob.exp() * log_prob).sum())
    # The second head's distribution changes with the first head's action.
    second = unrolled.log_probs["second"][0]
    assert (second[0] - second[-1]).abs().max() > 1e-3


def test_padding_without_legal_options_unrolls_to_finite_numbers():
    policy = build("rich")
    batch = play(policy, np.random.default_rng(1), num_steps=2, num_columns=3)
    for tree in (batch.observation, batch.legal, batch.action):
        for array in tree.values():
            array[1] = 0
    batch.valid[1] = False
    unrolled = policy.unroll(batch)
    assert unrolled.log_prob.isfinite().all()
    assert unrolled.entropy.isfinite().all()
    batch.valid[1] = True
    with pytest.raises(ValueError, match="head 'type', row 3: no option is legal"):
        policy.unroll(batch)


def test_value_is_zero_unless_wanted_and_critic_parts_are_then_not_needed():
    policy = build("rich with memory")
    observation, legal, state, uniforms = inputs(policy, np.random.default_rng(1), (4,))
    seen = {name: array for name, array in observation.items() if not name.startswith("critic.")}
    acted = policy.act(seen, legal, state, uniforms, want_value=False)
    assert not acted.value.any()
    np.testing.assert_array_equal(acted.action["type"], policy.act(observation, legal, state, uniforms).action["type"])


def test_only_the_central_critic_sees_critic_parts():
    rng = np.random.default_rng(1)
    for central in (False, True):
        policy = replace(SMALL, central_critic=central).build(PLAIN, 0)
        observation, legal, state, uniforms = inputs(policy, rng, (4,))
        before = policy.act(observation, legal, state, uniforms)
        observation["critic.hidden"] += 1
        after = policy.act(observation, legal, state, uniforms)
        np.testing.assert_array_equal(before.log_prob, after.log_prob)
        assert np.array_equal(before.value, after.value) is not central


@pytest.mark.parametrize("separate", [True, False])
def test_the_expectation_of_action_values_is_the_value(separate):
    policy = replace(SMALL, action_values=True, separate_critic=separate).build(PLAIN, 0)
    batch = play(policy, np.random.default_rng(1), num_steps=6, num_columns=5)
    unrolled = policy.unroll(batch)
    probs = unrolled.log_probs["move"].exp()
    assert unrolled.action_values.shape == (*unrolled.value.shape, 5)
    assert unrolled.values is None
    torch.testing.assert_close((probs * unrolled.action_values).sum(-1), unrolled.value)
    assert unrolled.action_values.std(-1).min() > 1e-3
    unrolled.action_values.sum().backward()
    heads = [parameter.grad for parameter in policy.heads.parameters()]
    assert all(grad is None or not grad.any() for grad in heads), "the critic's loss must not move the policy"


def test_action_values_need_one_choice_and_plain_values():
    with pytest.raises(ValueError, match="action_values need an action of one Choice; kind 'rich' has type, target"):
        replace(SMALL, action_values=True).build(RICH, 0)
    with pytest.raises(ValueError, match="turn off value_normalisation"):
        replace(SMALL, action_values=True, value_normalisation=True)


def test_actions_are_int32_and_memory_starts_at_zero():
    policy = build("rich with memory")
    assert {name: array.shape for name, array in policy.initial_state(3).items()} == {"h": (3, 7), "c": (3, 7)}
    assert not any(array.any() for array in policy.initial_state(3).values())
    acted = policy.act(*inputs(policy, np.random.default_rng(1), (4,)))
    specs = policy.kind.action.arrays
    assert {name: (array.shape[1:], array.dtype) for name, array in acted.action.items()} == {
        name: (spec.shape, spec.dtype) for name, spec in specs.items()
    }
