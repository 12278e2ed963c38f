from dataclasses import replace

import numpy as np
import pytest
import torch
from alphastar_policies import BATTLE, ONLY_MAP, ONTO_SCREEN, SMALL, a_batch
from batches import PLAIN, RICH
from starcraft import CONTEXT, SCATTER, STARCRAFT

from ludus.experiment import Experiment
from ludus.games.builtin.skirmish import Skirmish
from ludus.models.alphastar import AlphaStar

FULL = replace(AlphaStar.full(), context=CONTEXT, scatter=SCATTER, central_critic=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"entity_size": 10, "entity_heads": 3}, r"entity_size \(10\) must be a multiple"),
        ({"down": (8, 0)}, "down must be at least 1, got 0"),
        ({"memory_layers": -1}, "memory_layers must be at least 0, got -1"),
        ({"key_size": 0}, "key_size must be at least 1, got 0"),
        ({"temperatures": {"type": 0.0}}, "temperatures: 'type' must be above 0, got 0.0"),
        ({"bounded_value": True, "value_normalisation": True}, "exclude each other"),
    ],
)
def test_impossible_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        AlphaStar(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parts": {"minmap": False}}, "parts: unknown name 'minmap'; did you mean 'minimap'?"),
        ({"parts": {"units": False}}, "parts: 'units' must be on, because head 'group' points into it"),
        ({"context": ("clok",)}, "context: unknown name 'clok'; did you mean 'clock'?"),
        ({"temperatures": {"typo": 0.5}}, "temperatures: unknown name 'typo'; did you mean 'type'?"),
        ({"scatter": (replace(ONTO_SCREEN, onto="scren"),)}, "scatter.onto: unknown name 'scren'; did you"),
        ({"scatter": (replace(ONTO_SCREEN, x=4),)}, "column 4 is beyond the 4 features of 'units'"),
        ({"entity_types": (0, 6)}, "entity_types must be numbers from 0 to 5, got 6"),
        ({"entity_types": ()}, "entity_types is empty"),
        ({"actions": (1, 1)}, "actions names 1 twice"),
    ],
)
def test_what_does_not_fit_the_game_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **settings).build(BATTLE, 0)


def test_what_a_game_lacks_is_named():
    with pytest.raises(ValueError, match="parts: nothing is left on of what kind 'plain' sees"):
        replace(SMALL, parts={"scalars": False}).build(PLAIN, 0)
    with pytest.raises(ValueError, match="entity_types: kind 'rich' reads no entities with types"):
        replace(SMALL, entity_types=(1,)).build(RICH, 0)
    with pytest.raises(ValueError, match="central_critic: kind 'only map' has no critic-only parts"):
        replace(SMALL, central_critic=True).build(ONLY_MAP, 0)


def test_an_experiment_refuses_a_network_that_does_not_fit_its_game():
    with pytest.raises(ValueError, match="parts: unknown name 'minmap'; did you mean 'minimap'"):
        Experiment(name="x", game=Skirmish(), budget=1, model=AlphaStar(parts={"minmap": False}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"part_sizes": {"clok": 8}}, "part_sizes: unknown name 'clok'; did you mean 'clock'"),
        ({"part_sizes": {"units": 8}}, "set entity_size for 'units', because head 'group' points into it"),
        ({"part_sizes": {"critic.enemies": 7}}, "'critic.enemies' must be a multiple of entity_heads=2, got 7"),
        ({"part_sizes": {"clock": 0}}, "part_sizes must be at least 1, got 0"),
        ({"context": ("screen",)}, "context: unknown name 'screen'"),
    ],
)
def test_sizes_and_contexts_that_do_not_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(AlphaStar(), **changes).check(BATTLE)


def num_weights(policy, *, to_act=False):
    return sum(
        parameter.numel()
        for name, parameter in policy.named_parameters()
        if not (to_act and name.startswith("critic."))
    )


def test_the_full_network_has_about_139_million_weights_55_of_them_to_act(monkeypatch):
    """As published. The weights are not filled here: that takes a minute."""
    monkeypatch.setattr("ludus.models.operators._orthogonal", lambda *shape, gain: _empty(shape))
    with torch.device("meta"):
        policy = FULL.build(STARCRAFT, 0)
    assert num_weights(policy) == pytest.approx(139e6, rel=0.05)
    assert num_weights(policy, to_act=True) == pytest.approx(55e6, rel=0.1)
    assert 2e5 < num_weights(AlphaStar.mini().build(BATTLE, 0)) < 2e6


def _empty(shape):
    return torch.nn.Parameter(torch.empty(shape))


@pytest.mark.slow
def test_the_full_network_acts_and_learns():
    policy = FULL.build(STARCRAFT, 0)
    batch = a_batch(policy, num_steps=1, num_columns=2)
    unrolled = policy.unroll(batch)
    np.testing.assert_allclose(unrolled.log_prob.detach().numpy(), batch.log_prob, atol=1e-5)
    (unrolled.log_prob.sum() + unrolled.value.sum() + unrolled.values.sum()).backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
