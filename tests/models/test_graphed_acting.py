"""Acting in fixed shapes, as a CUDA graph does. What a graph itself does needs a GPU: the last tests."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from alphastar_policies import CONFIGS
from batches import inputs

from ludus.models.decisions import acted_of
from ludus.models.graphed_acting import GraphedActing, decide_at_once
from ludus.models.tensors import DeferredChecks

HOW = [{"greedy": False, "want_value": True}, {"greedy": True, "want_value": False}]
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def _exact(monkeypatch):
    """Convolutions round to 10 bits otherwise."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def policy_and_rows(name, rows=12, seed=0):
    kind, model = CONFIGS[name]
    policy = model.build(kind, seed)
    with torch.no_grad():  # far from uniform, so that a wrong input changes a decision
        for weight in policy.parameters():
            weight.mul_(1.5)
    return policy, inputs(policy, np.random.default_rng(seed), (rows,))


def at_once(policy, arrays, **how):
    observation, legal, state, uniforms = arrays
    named = {f"observation.{name}": array for name, array in observation.items()}
    named |= {f"legal.{name}": array for name, array in legal.items()}
    named |= {f"state.{name}": array for name, array in state.items()}
    tensors = {name: torch.from_numpy(array) for name, array in (named | {"uniforms": uniforms}).items()}
    with torch.inference_mode():
        found = {name: tensor.numpy() for name, tensor in decide_at_once(policy, tensors, **how).items()}
    return acted_of(found), bool(found["failed"])


def assert_same(one, other):
    for head, action in one.action.items():
        assert np.array_equal(action, other.action[head]), head
    assert np.allclose(one.log_prob, other.log_prob, atol=1e-4)
    assert np.allclose(one.value, other.value, atol=1e-4)
    for name, state in one.state.items():
        assert np.allclose(state, other.state[name], atol=1e-4)


@pytest.mark.parametrize("how", HOW, ids=["drawn", "greedy"])
@pytest.mark.parametrize("name", CONFIGS)
def test_fixed_shapes_decide_as_act_does(name, how):
    policy, arrays = policy_and_rows(name)
    acted, failed = at_once(policy, arrays, **how)
    assert not failed
    assert_same(policy.act(*arrays, **how), acted)


def test_an_empty_mask_and_broken_observations_are_collected():
    policy, (observation, legal, state, uniforms) = policy_and_rows("battle")
    nothing = {**legal, "type": np.zeros_like(legal["type"])}
    assert at_once(policy, (observation, nothing, state, uniforms), **HOW[0])[1]
    broken = {**observation, "scalars": np.full_like(observation["scalars"], np.nan)}
    assert at_once(policy, (broken, legal, state, uniforms), **HOW[0])[1]
    assert DeferredChecks.active() is None


def test_a_policy_on_a_cpu_acts_without_a_graph():
    policy, arrays = policy_and_rows("plain")
    graphs = GraphedActing()
    assert not graphs.covers(policy)
    assert_same(policy.act(*arrays), graphs.act(policy, *arrays))


@NEEDS_GPU
@pytest.mark.parametrize("how", HOW, ids=["drawn", "greedy"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_graph_decides_as_act_does_with_the_newest_weights_of_each_player(name, how):
    graphs = GraphedActing()
    for seed in (1, 2):
        policy, _ = policy_and_rows(name, seed=seed)
        policy.to("cuda")
        for rows in (9, 12, 40):
            arrays = inputs(policy, np.random.default_rng(rows), (rows,))
            assert_same(policy.act(*arrays, **how), graphs.act(policy, *arrays, **how))
        with torch.no_grad():
            for weight in policy.parameters():
                weight.mul_(0.7)
        assert_same(policy.act(*arrays, **how), graphs.act(policy, *arrays, **how))
        assert graphs.covers(policy)
    assert len(graphs._captured) == 2


@NEEDS_GPU
def test_a_graph_raises_what_act_raises_and_then_goes_on():
    policy, arrays = policy_and_rows("battle")
    policy.to("cuda")
    observation, legal, state, uniforms = arrays
    graphs = GraphedActing()
    graphs.act(policy, *arrays)
    with pytest.raises(ValueError, match="no option is legal"):
        graphs.act(policy, observation, {**legal, "type": np.zeros_like(legal["type"])}, state, uniforms)
    assert_same(policy.act(*arrays), graphs.act(policy, *arrays))
