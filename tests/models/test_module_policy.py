import numpy as np
import pytest
import torch
from batches import NUMBERS, PLAIN, RICH, inputs, play
from torch import nn

from ludus.data.specs import ArraySpec
from ludus.models.module_policy import ModulePolicy
from ludus.models.network_policy import can_stack, stack_policies
from ludus.models.policy import replace_weights, weights_of


class Plain(nn.Module):
    """What a user writes."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Linear(6, 5)
        self.value = nn.Linear(6, 1)

    def forward(self, observation):
        return self.logits(observation["scalars"]), self.value(observation["scalars"])


class Rich(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict(
            {f"to_{name}": nn.Linear(4, RICH.num_options(name) + (name == "group")) for name in RICH.action.heads}
        )

    def forward(self, observation):
        scalars = observation["scalars"]
        return {name: self.heads[f"to_{name}"](scalars) for name in RICH.action.heads}, scalars[:, 0]


class Pushing(nn.Module):
    """The parameters of numbers in either form: with an axis for the two of each number, and flat."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 3 + 4 + 2 + 2)

    def forward(self, observation):
        kind, push, turn, more = self.out(observation["scalars"]).split((3, 4, 2, 2), -1)
        return {"type": kind, "push": push.reshape(-1, 2, 2), "turn": turn, "more": more}, push[:, 0]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(6, 4)
        self.logits = nn.Linear(4, 5)

    def forward(self, observation, state):
        memory = self.cell(observation["scalars"], state["memory"])
        return self.logits(memory), memory.sum(-1), {"memory": memory}


def recurrent():
    arrays = {"memory": ArraySpec(shape=(4,), dtype=np.dtype("float32"))}
    return ModulePolicy(PLAIN, Recurrent(), state_arrays=arrays)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ModulePolicy(PLAIN, Plain()),
        lambda: ModulePolicy(RICH, Rich()),
        lambda: ModulePolicy(NUMBERS, Pushing(), box_distribution="beta"),
        recurrent,
    ],
)
def test_unroll_repeats_what_act_decided(make):
    policy = make()
    batch = play(policy, np.random.default_rng(1), num_steps=5, num_columns=4)
    unrolled = policy.unroll(batch)
    np.testing.assert_allclose(unrolled.log_prob.detach().numpy(), batch.log_prob, atol=1e-5)
    np.testing.assert_allclose(unrolled.value.detach().numpy(), batch.value, atol=1e-5)
    (unrolled.log_prob.sum() + unrolled.entropy.sum() + unrolled.value.sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in policy.parameters())


def test_wrong_logits_are_named():
    class Short(Plain):
        def forward(self, observation):
            logits, value = super().forward(observation)
            return logits[:, :3], value

    policy = ModulePolicy(PLAIN, Short())
    with pytest.raises(ValueError, match=r"Short must return logits \[rows, 5\] for head 'move', got \(2, 3\)"):
        policy.act(*inputs(policy, np.random.default_rng(0), (2,)))


def test_weights_round_trip_and_no_stacking():
    policy, other = ModulePolicy(PLAIN, Plain()), ModulePolicy(PLAIN, Plain())
    replace_weights(other, weights_of(policy))
    arrays = inputs(policy, np.random.default_rng(0), (3,))
    np.testing.assert_array_equal(policy.act(*arrays).value, other.act(*arrays).value)
    assert not can_stack(policy)
    with pytest.raises(ValueError, match="policy 0 is a ModulePolicy"):
        stack_policies([policy, other])


def test_memory_refuses_single_rows():
    policy = recurrent()
    batch = play(policy, np.random.default_rng(1), num_steps=2, num_columns=3)
    with pytest.raises(ValueError, match="policy with memory"):
        policy.unroll(batch.rows(torch.tensor([0, 1])))
