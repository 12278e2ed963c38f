import numpy as np
import pytest
import torch
from batches import PLAIN

from ludus.models.network_policy import ActorCritic
from ludus.models.policy import WeightAverage, weights_of

NAME = "trunk.layers.0.bias"


def make():
    return ActorCritic(hidden=(4,), value_normalisation=True).build(PLAIN, 0)


def set_bias(policy, value):
    with torch.no_grad():
        policy.trunk.layers[0].bias.fill_(value)


def test_average_is_the_weighted_mean_of_what_it_saw():
    policy = make()
    average = WeightAverage(policy, decay=0.8)
    seen = [3.0, -1.0, 4.0, 10.0]
    for value in seen:
        set_bias(policy, value)
        average.update()
    expected = np.average(seen, weights=[0.8**age for age in (3, 2, 1, 0)])
    np.testing.assert_allclose(average.weights()[NAME], expected, rtol=1e-5)
    assert average.weights().keys() == weights_of(policy).keys()


def test_first_update_copies():
    policy = make()
    average = WeightAverage(policy, decay=0.999)
    set_bias(policy, 7.0)
    policy.value_scale.update(torch.tensor([5.0]))
    average.update()
    live = weights_of(policy)
    assert all(np.array_equal(array, live[name]) for name, array in average.weights().items())


def test_saved_average_goes_on_as_if_nothing_happened():
    policy = make()
    average = WeightAverage(policy, decay=0.9)
    average.update()
    resumed = WeightAverage(policy, decay=0.9)
    resumed.load(average.state())
    set_bias(policy, 2.0)
    average.update()
    resumed.update()
    assert all(np.array_equal(array, average.weights()[name]) for name, array in resumed.weights().items())


def test_wrong_settings_and_states_are_named():
    with pytest.raises(ValueError, match=r"decay must be in \[0, 1\), got 1.0"):
        WeightAverage(make(), decay=1.0)
    average = WeightAverage(make())
    state = average.state()
    del state[f"average.{NAME}"]
    with pytest.raises(ValueError, match=f"lacks '{NAME}'"):
        average.load(state)
