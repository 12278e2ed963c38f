import pytest
import torch
from torch import nn

from ludus.models.memory import LSTM
from ludus.models.operators import (
    Attention,
    Conv2d,
    ConvTranspose2d,
    Embedding,
    GatedLinear,
    LayerNorm,
    Linear,
    ResidualConv,
    ResidualTower,
    stack_modules,
    tanh,
)


def close(left, right, tolerance=1e-5):
    torch.testing.assert_close(left, right, atol=tolerance, rtol=tolerance)


def test_linear_is_torch_linear():
    ours, theirs = Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    inputs = torch.randn(7, 5)
    close(ours(inputs), theirs(inputs))


def test_orthogonal_weights_have_the_gain():
    weight = Linear(8, 4, gain=0.5).weight
    close(weight @ weight.T, 0.25 * torch.eye(4))


def test_layer_norm_is_torch_layer_norm():
    ours, theirs = LayerNorm(6), nn.LayerNorm(6)
    nn.init.normal_(ours.weight)
    nn.init.normal_(ours.bias)
    theirs.load_state_dict(ours.state_dict())
    inputs = torch.randn(4, 3, 6)
    close(ours(inputs), theirs(inputs))


def test_lstm_is_torch_lstm_cell():
    ours, theirs = LSTM(5, 4), nn.LSTMCell(5, 4)
    with torch.no_grad():
        theirs.weight_ih.copy_(ours.inputs.weight)
        theirs.bias_ih.copy_(ours.inputs.bias)
        theirs.weight_hh.copy_(ours.recurrent.weight)
        theirs.bias_hh.zero_()
    inputs, hidden, cell = torch.randn(3, 5), torch.randn(3, 4), torch.randn(3, 4)
    for ours_part, theirs_part in zip(
        ours.step(ours.project(inputs), hidden, cell), theirs(inputs, (hidden, cell)), strict=True
    ):
        close(ours_part, theirs_part)


@pytest.mark.parametrize("stride", [1, 2])
def test_conv_is_torch_conv(stride):
    ours, theirs = Conv2d(2, 3, stride=stride), nn.Conv2d(2, 3, 3, stride=stride, padding=1)
    theirs.load_state_dict(ours.state_dict())
    planes = torch.randn(4, 2, 6, 5)
    close(ours(planes), theirs(planes))
    close(ours(planes.contiguous(memory_format=torch.channels_last)), theirs(planes))


def test_transposed_conv_is_torch_transposed_conv():
    ours, theirs = ConvTranspose2d(2, 3), nn.ConvTranspose2d(2, 3, 4, stride=2, padding=1)
    theirs.load_state_dict(ours.state_dict())
    planes = torch.randn(4, 2, 6, 5)
    assert ours(planes).shape == (4, 3, 12, 10)
    close(ours(planes), theirs(planes))


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (3, 2, 1), (4, 2, 1), (1, 1, 0), (8, 4, 0)])
def test_stacked_conv_on_a_gpu_is_the_grouped_one(kernel, stride, padding):
    """The ways of a GPU, tried on the CPU."""
    models = [Conv2d(2, 3, kernel=kernel, stride=stride, padding=padding) for _ in range(4)]
    for model in models:
        nn.init.normal_(model.bias)
    check_ways_of_a_gpu(stack_modules(models), torch.randn(4, 5, 2, 12, 9))


def test_stacked_transposed_conv_on_a_gpu_is_the_grouped_one():
    models = [ConvTranspose2d(2, 3) for _ in range(4)]
    for model in models:
        nn.init.normal_(model.bias)
    check_ways_of_a_gpu(stack_modules(models), torch.randn(4, 5, 2, 6, 5))


def check_ways_of_a_gpu(stack, planes):
    weights = torch.randn_like(stack(planes))
    wanted = torch.autograd.grad((stack(planes) * weights).sum(), list(stack.parameters()))
    for way in (stack.one_by_one, stack.as_products):
        close(way(planes), stack(planes))
        found = torch.autograd.grad((way(planes) * weights).sum(), list(stack.parameters()))
        for one, other in zip(found, wanted, strict=True):
            close(one, other, 1e-4)


def test_normalised_lstm_does_not_mind_the_scale_of_its_inputs():
    lstm = LSTM(5, 4, layer_norm=True)
    inputs, hidden, cell = torch.randn(3, 5), torch.randn(3, 4), torch.randn(3, 4)
    for small, large in zip(
        lstm.step(lstm.project(inputs), hidden, cell),
        lstm.step(lstm.project(1000.0 * inputs), 1000.0 * hidden, cell),
        strict=True,
    ):
        close(small, large, 1e-3)
        assert small.shape == (3, 4)


def test_very_long_rows_are_random_and_as_good_as_orthogonal():
    weight = Linear(1 << 17, 16, gain=2.0).weight
    close(weight @ weight.T, 4.0 * torch.eye(16), 0.1)


def test_attention_is_torch_attention_where_valid():
    ours, theirs = Attention(8, 2), nn.MultiheadAttention(8, 2, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.inputs.weight)
        theirs.in_proj_bias.copy_(ours.inputs.bias)
        theirs.out_proj.weight.copy_(ours.outputs.weight)
        theirs.out_proj.bias.copy_(ours.outputs.bias)
    entities = torch.randn(3, 5, 8)
    valid = torch.arange(5) < torch.tensor([[1], [3], [5]])
    expected, _ = theirs(entities, entities, entities, key_padding_mask=~valid)
    close(ours(entities, valid), expected)


def test_attention_without_any_entity_is_finite():
    attention = Attention(8, 2)
    assert attention(torch.randn(2, 3, 8), torch.zeros(2, 3, dtype=torch.bool)).isfinite().all()


def test_tanh_is_torch_tanh_with_its_gradient():
    inputs = torch.linspace(-30, 30, 2001, requires_grad=True)
    close(tanh(inputs), torch.tanh(inputs), 1e-6)
    (ours,) = torch.autograd.grad(tanh(inputs).sum(), inputs)
    (theirs,) = torch.autograd.grad(torch.tanh(inputs).sum(), inputs)
    close(ours, theirs, 1e-6)


class Step(nn.Module):
    """An LSTM step with the state taken from the input."""

    def __init__(self):
        super().__init__()
        self.lstm = LSTM(5, 4)

    def forward(self, inputs):
        return torch.cat(self.lstm.step(self.lstm.project(inputs), inputs[..., :4], inputs[..., 1:]), -1)


class NormalisedStep(Step):
    def __init__(self):
        super().__init__()
        self.lstm = LSTM(5, 4, layer_norm=True)


class WithContext(nn.Module):
    """A module whose context is taken from its input."""

    def __init__(self, module, context_of):
        super().__init__()
        self.module = module
        self.context_of = context_of

    def forward(self, inputs):
        return self.module(inputs, self.context_of(inputs))


def first_three(inputs):
    return inputs[..., :3]


def mean_of_maps(inputs):
    return inputs.mean((-2, -1))


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(Conv2d(2, 3), nn.ReLU(), Conv2d(3, 4, stride=2), nn.Flatten(-3))

    def forward(self, planes):
        return self.layers(planes)


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = LayerNorm(8)
        self.attention = Attention(8, 2)

    def forward(self, entities):
        return self.attention(self.norm(entities), entities[..., 0] > 0)


STACKED = {
    "linear": (lambda: Linear(5, 3), torch.randn(4, 6, 5)),
    "linear on entities": (lambda: Linear(5, 3, bias=False), torch.randn(4, 6, 2, 5)),
    "norm": (lambda: LayerNorm(5), torch.randn(4, 6, 2, 5)),
    "embedding": (lambda: Embedding(9, 3), torch.randint(9, (4, 6))),
    "lstm": (Step, torch.randn(4, 6, 5)),
    "convolution": (Tower, torch.randn(4, 6, 2, 5, 4)),
    "normalised lstm": (NormalisedStep, torch.randn(4, 6, 5)),
    "transposed convolution": (lambda: ConvTranspose2d(2, 3), torch.randn(4, 6, 2, 5, 4)),
    "gated": (lambda: WithContext(GatedLinear(5, 3, 2), first_three), torch.randn(4, 6, 5)),
    "residual": (lambda: ResidualTower(5, 4, 2), torch.randn(4, 6, 5)),
    "residual convolution": (
        lambda: WithContext(ResidualConv(2, num_blocks=1, context_size=2), mean_of_maps),
        0.3 * torch.randn(4, 6, 2, 5, 4),
    ),
    "attention": (Attend, torch.randn(4, 6, 3, 8)),
}


@pytest.mark.parametrize("name", STACKED)
def test_stack_equals_its_models_with_gradient(name):
    make, inputs = STACKED[name]
    models = [make() for _ in range(4)]
    for model in models:
        for parameter in model.parameters():
            nn.init.normal_(parameter)
    stack = stack_modules(models)
    together = stack(inputs)
    alone = torch.stack([model(rows) for model, rows in zip(models, inputs, strict=True)])
    close(together, alone)
    together.square().sum().backward()
    alone.square().sum().backward()
    for index, model in enumerate(models):
        for ours, theirs in zip(stack.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(ours.grad[index], theirs.grad, atol=1e-3, rtol=1e-4)


def test_stack_leaves_its_models_alone():
    models = [Linear(3, 2), Linear(3, 2)]
    before = [model.weight.clone() for model in models]
    stack = stack_modules(models)
    with torch.no_grad():
        stack.weight.zero_()
    assert all(torch.equal(model.weight, old) for model, old in zip(models, before, strict=True))
