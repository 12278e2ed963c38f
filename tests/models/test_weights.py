import re

import numpy as np
import pytest
from batches import PLAIN, RICH, inputs

from ludus.models.network_policy import ActorCritic, stack_policies
from ludus.models.policy import architecture_digest, replace_weights, weights_of

CONFIG = ActorCritic(hidden=(8,), value_normalisation=True)


def test_weights_go_from_one_policy_to_another():
    source, target = CONFIG.build(PLAIN, 0), CONFIG.build(PLAIN, 1)
    weights = weights_of(source)
    assert all(array.dtype == np.float32 and array.flags.c_contiguous for array in weights.values())
    replace_weights(target, weights)
    arrays = inputs(source, np.random.default_rng(0), (6,))
    np.testing.assert_array_equal(source.act(*arrays).log_prob, target.act(*arrays).log_prob)
    weights["trunk.layers.0.weight"][:] = 0
    assert weights_of(source)["trunk.layers.0.weight"].any()


def test_one_model_of_a_stack_is_replaced():
    first, second, third = (CONFIG.build(PLAIN, seed) for seed in range(3))
    stack = stack_policies([first, second])
    replace_weights(stack, weights_of(third), model=1)
    expected = weights_of(stack_policies([first, third]))
    assert all(np.array_equal(array, expected[name]) for name, array in weights_of(stack).items())


def test_wrong_weights_are_named_and_change_nothing():
    policy = CONFIG.build(PLAIN, 0)
    before = weights_of(policy)
    other = weights_of(CONFIG.build(PLAIN, 1))
    renamed = {name.replace("trunk", "trunc", 1): array for name, array in other.items()}
    with pytest.raises(ValueError, match=r"'trunk\.layers\.0\.weight' is missing; .* 'trunc\.layers"):
        replace_weights(policy, renamed)
    with pytest.raises(ValueError, match=r"'value_scale\.means' is not one of .* 'value_scale\.mean'"):
        replace_weights(policy, {**other, "value_scale.means": np.zeros(())})
    message = re.escape("weight 'critic.value.bias' has shape (2,), the policy needs (1,)")
    with pytest.raises(ValueError, match=message):
        replace_weights(policy, {**other, "critic.value.bias": np.zeros(2, np.float32)})
    assert all(np.array_equal(array, before[name]) for name, array in weights_of(policy).items())


def test_digest_tells_architectures_apart():
    assert architecture_digest(CONFIG.build(PLAIN, 0)) == architecture_digest(CONFIG.build(PLAIN, 1))
    relu = ActorCritic(hidden=(8,), value_normalisation=True, activation="relu")
    digests = {architecture_digest(config.build(kind, 0)) for config in (CONFIG, relu) for kind in (PLAIN, RICH)}
    assert len(digests) == 4


def test_a_network_without_residual_blocks_is_called_as_before_there_were_any():
    """Models of then can be loaded."""
    signature = (
        "ActorCritic(hidden=(8,), activation='tanh', memory=0, separate_critic=True, central_critic=False, "
        "value_normalisation=False, action_values=False, channels=(32, 32), entity_size=64, entity_heads=2, "
        "box_distribution='clipped')"
    )
    assert ActorCritic(hidden=(8,)).build(RICH, 0).signature == signature
    assert ActorCritic(hidden=(8,), residual_blocks=2).build(RICH, 0).signature != signature
