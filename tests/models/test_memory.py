import pytest
import torch

from ludus.models.memory import Memory
from ludus.models.operators import stack_modules

each_kind = pytest.mark.parametrize(("num_models", "layer_norm"), [(None, False), (3, False), (None, True), (3, True)])


def close(left, right, tolerance=1e-9):
    torch.testing.assert_close(left, right, atol=tolerance, rtol=tolerance)


def memory(num_models, dtype=torch.float64, *, size=4, **options):
    models = [Memory(5, size, **options).to(dtype) for _ in range(num_models or 1)]
    network = models[0] if num_models is None else stack_modules(models)
    with torch.no_grad():  # norms at the start have no part in gradients of each other
        for parameter in network.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return network


def case(num_models, *, turns=6, rows=3, layers=1, size=4, dtype=torch.float64):
    """Inputs, firsts, hidden and cell. Some states are zeroed at the first turn, some later and some never."""
    lead = () if num_models is None else (num_models,)
    first = torch.rand(*lead, turns, rows) < 0.3
    first[..., 0, 0], first[..., -1, -1], first[..., 1] = True, True, False
    tensors = [torch.randn(*lead, turns, rows, 5), *(torch.randn(*lead, rows, layers * size) for _ in range(2))]
    inputs, hidden, cell = (tensor.to(dtype).requires_grad_() for tensor in tensors)
    return inputs, first, hidden, cell


def by_steps(network, inputs, first, state):
    """`Memory.unroll` as a loop, of which autograd finds the gradient."""
    states = zip(*(torch.split(state[name], network.size, -1) for name in ("h", "c")), strict=True)
    for lstm, (hidden, cell) in zip(network._layers, states, strict=True):
        projected, outputs = lstm.project(inputs), []
        for t in range(first.shape[-2]):
            keep = (~first).select(-2, t).unsqueeze(-1)
            hidden, cell = lstm.step(projected.select(-3, t), hidden * keep, cell * keep)
            outputs.append(hidden)
        inputs = torch.stack(outputs, -3)
    return inputs


def in_bfloat16(unroll):
    def unrolled(*given):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            return unroll(*given)

    return unrolled


def outputs_and_gradients(unroll, network, inputs, first, hidden, cell):
    outputs = unroll(network, inputs, first, {"h": hidden, "c": cell})
    weights = torch.linspace(-1.0, 1.0, outputs.numel(), dtype=outputs.dtype).view_as(outputs)
    gradients = torch.autograd.grad((weights * outputs).sum(), [inputs, hidden, cell, *network.parameters()])
    return outputs, *gradients


def arguments(network, inputs, first, hidden, cell, products=None):
    """Of the operator."""
    lstm = network.lstm
    weight = lstm.recurrent.weight.to(products or inputs.dtype)
    projected = lstm.project(inputs).detach().to(weight.dtype if lstm.cell_norm is None else inputs.dtype)
    norms = [] if lstm.cell_norm is None else [*lstm.recurrent_norm.parameters(), *lstm.cell_norm.parameters()]
    rest = [tensor.detach().requires_grad_() for tensor in (hidden, cell, weight, *norms)]
    return projected.requires_grad_(), (~first).unsqueeze(-1).to(inputs.dtype), *rest


def operator_of(network):
    return torch.ops.ludus.lstm if network.lstm.cell_norm is None else torch.ops.ludus.normed_lstm


@pytest.mark.parametrize("layers", [1, 3])
@each_kind
def test_unroll_is_step_after_step_with_gradient(num_models, layer_norm, layers):
    network, given = memory(num_models, layers=layers, layer_norm=layer_norm), case(num_models, layers=layers)
    found = outputs_and_gradients(Memory.unroll, network, *given)
    for one, other in zip(found, outputs_and_gradients(by_steps, network, *given), strict=True):
        close(one, other)


@each_kind
def test_unroll_computes_in_float32_what_steps_compute(num_models, layer_norm):
    network = memory(num_models, torch.float32, layers=2, layer_norm=layer_norm)
    inputs, first, hidden, cell = case(num_models, layers=2, dtype=torch.float32)
    with torch.no_grad():
        found, wanted = (
            unroll(network, inputs, first, {"h": hidden, "c": cell}) for unroll in (Memory.unroll, by_steps)
        )
    assert torch.equal(found, wanted)


@each_kind
def test_gradient_of_the_operator_is_that_of_differences(num_models, layer_norm):
    network = memory(num_models, layer_norm=layer_norm)
    given = arguments(network, *case(num_models, turns=3, rows=2))
    assert torch.autograd.gradcheck(lambda *given: operator_of(network)(*given)[0], given)


@pytest.mark.parametrize("products", [torch.float32, torch.bfloat16])
@each_kind
def test_operator_is_what_it_declares(num_models, layer_norm, products):
    network = memory(num_models, torch.float32, layer_norm=layer_norm)
    inputs, first, hidden, cell = case(num_models, layers=2, dtype=torch.float32)
    given = arguments(network, inputs, first, hidden.split(4, -1)[1], cell.split(4, -1)[1], products)
    operator, backward = (
        operator_of(network).default,
        getattr(torch.ops.ludus, operator_of(network).__name__ + "_backward"),
    )
    torch.library.opcheck(operator, given)
    detached = [tensor.detach() for tensor in given]
    outputs = operator(*detached)
    torch.library.opcheck(backward, (outputs[0], *outputs, *detached[1:]))


@pytest.mark.parametrize("low", [False, True])
@each_kind
def test_compiled_graph_does_not_grow_with_turns(num_models, layer_norm, low):
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    sizes = {}
    network = memory(num_models, torch.float32, layers=2, layer_norm=layer_norm)
    unroll = in_bfloat16(Memory.unroll) if low else Memory.unroll
    for turns in (2, 7):
        found = sizes.setdefault(turns, [])

        def compiler(graph, _, found=found):
            found.append(len(graph.graph.nodes))
            return make_boxed_func(graph.forward)

        backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler)
        compiled = torch.compile(unroll, backend=backend, fullgraph=True, dynamic=False)
        given = case(num_models, turns=turns, layers=2, dtype=torch.float32)
        wanted = outputs_and_gradients(unroll, network, *given)
        for one, other in zip(outputs_and_gradients(compiled, network, *given), wanted, strict=True):
            close(one, other, 1e-5)
        torch._dynamo.reset()
    assert len(sizes[2]) == 2
    assert sizes[2] == sizes[7]


@each_kind
def test_under_autocast_unroll_errs_no_more_than_steps(num_models, layer_norm):
    errors = {Memory.unroll: [], by_steps: []}
    for seed in range(12):  # errors of one network are chance
        torch.manual_seed(seed)
        network = memory(num_models, torch.float32, layers=2, layer_norm=layer_norm, size=16)
        given = case(num_models, layers=2, size=16, dtype=torch.float32)
        exact = outputs_and_gradients(by_steps, network, *given)
        for unroll, found in errors.items():
            low = outputs_and_gradients(in_bfloat16(unroll), network, *given)
            assert all(tensor.dtype == torch.float32 for tensor in low)
            error = [(one - other).norm() / other.norm() for one, other in zip(low, exact, strict=True)]
            found.append(torch.stack(error))
    ours, theirs = (torch.stack(found).median(0).values for found in errors.values())
    assert (ours > 1e-4).all()
    assert (ours < 1.3 * theirs).all()
