import numpy as np
import pytest
import torch
from batches import PLAIN

from ludus.data.specs import ObservationSpec, SeatKind, Vector
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import weights_of


def test_weights_depend_on_the_seed_only():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = weights_of(ActorCritic().build(PLAIN, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(3)
    again = weights_of(ActorCritic().build(PLAIN, 1))
    other = weights_of(ActorCritic().build(PLAIN, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["trunk.layers.0.weight"], other["trunk.layers.0.weight"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": (64, 0)}, "hidden must be sizes of at least 1, got 0"),
        ({"channels": (-1,)}, "channels must be sizes of at least 1, got -1"),
        ({"residual_blocks": -1}, "residual_blocks must be at least 0, got -1"),
        ({"channels": (), "residual_blocks": 1}, "residual_blocks need channels"),
        ({"activation": "tahn"}, "activation must be one of tanh, .*, got 'tahn'"),
        ({"memory": -1}, "memory must be at least 0, got -1"),
        ({"entity_size": 10, "entity_heads": 3}, r"entity_size \(10\) must be a multiple"),
        ({"separate_critic": False, "central_critic": True}, "central_critic needs separate_critic"),
    ],
)
def test_impossible_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        ActorCritic(**settings)


def test_central_critic_needs_critic_parts():
    kind = SeatKind(name="bare", observation=ObservationSpec(parts={"x": Vector(size=2)}), action=PLAIN.action)
    with pytest.raises(ValueError, match="kind 'bare' has no critic-only parts"):
        ActorCritic(central_critic=True).build(kind, 0)


def test_fresh_policy_is_close_to_uniform():
    policy = ActorCritic().build(PLAIN, 0)
    acted = policy.act(
        {"scalars": np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)},
        {},
        {},
        np.zeros((50, 1), np.float32),
        want_value=False,
    )
    np.testing.assert_allclose(acted.log_prob, np.log(1 / 5), atol=0.05)
