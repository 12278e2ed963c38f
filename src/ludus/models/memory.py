"""Networks with memory: an LSTM cell, its unrolled steps as one operator, and `Memory`, layers of it for a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ludus.data.specs import ArraySpec
from ludus.models.operators import LayerNorm, Linear, layer_norm


def _lstm(
    projected: Tensor, keep: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, *norms: Tensor
) -> tuple[Tensor, ...]:
    """All turns of an LSTM as one operator, which a compiler does not look into: it would unroll the loop. `projected`
    [..., T, B, 4 size], `keep` [..., T, B, 1] is 0 where the state is zeroed before the turn, else 1. Products are in
    the precision of `weight`, which is that of autocast, and cells and sums in the precision of the states. `norms`:
    scale and shift of the recurrent inputs and of the cell. Returns the hidden states and the cells [..., T, B, size],
    and the gates [..., T, B, 4 size]."""
    hiddens, cells, gates = _empty_lstm(projected, keep, hidden, cell, weight)
    size = hidden.shape[-1]
    add_product = torch.addmm if weight.dim() == 2 else torch.baddbmm
    for t in range(projected.shape[-3]):
        kept, gate = keep.select(-3, t), gates.select(-3, t)
        inputs, before = projected.select(-3, t), (hidden * kept).to(weight.dtype)
        if norms:
            inputs = inputs + layer_norm(torch.matmul(before, weight.mT).to(cell.dtype), *norms[:2])
        else:
            inputs = add_product(inputs, before, weight.mT)
        enter, forget, new, leave = gate.chunk(4, -1)
        torch.sigmoid(inputs[..., : 2 * size], out=gate[..., : 2 * size])
        torch.tanh(inputs[..., 2 * size : 3 * size], out=new)
        torch.sigmoid(inputs[..., 3 * size :], out=leave)
        cell = torch.mul(forget, cell * kept, out=cells.select(-3, t)).addcmul_(enter, new)
        read = layer_norm(cell, *norms[2:]) if norms else cell
        hidden = torch.mul(leave, torch.tanh(read), out=hiddens.select(-3, t))
    return hiddens, cells, gates


def _empty_lstm(
    projected: Tensor, keep: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, *norms: Tensor
) -> tuple[Tensor, ...]:
    states = (*projected.shape[:-1], hidden.shape[-1])
    return cell.new_empty(states), cell.new_empty(states), projected.new_empty(projected.shape)


class _LayerNorm:
    """The backward pass of a layer norm of all turns, `inputs` [..., T, B, size]."""

    def __init__(self, inputs: Tensor, scale: Tensor, shift: Tensor) -> None:
        self.size, self.scale, self._shift = inputs.shape[-1:], scale.unsqueeze(-2), shift.unsqueeze(-2)
        self.normal, mean, deviation = torch.native_layer_norm(inputs, self.size, None, None, 1e-5)
        # Turns first, because the kernel reads what lies together.
        self._saved = [tensor.movedim(-3, 0).contiguous() for tensor in (inputs, mean, deviation)]

    def outputs(self) -> Tensor:
        return torch.addcmul(self._shift.unsqueeze(-3), self.normal, self.scale.unsqueeze(-3))

    def to_inputs(self, gradient: Tensor, t: int) -> Tensor:
        """The gradient of the inputs of a turn from that of its outputs."""
        inputs, mean, deviation = (tensor[t] for tensor in self._saved)
        backward = torch.ops.aten.native_layer_norm_backward
        parts = (gradient * self.scale, inputs, self.size, mean, deviation, None, None, (True, False, False))
        found: Tensor = backward(*parts)[0]
        return found

    def to_parameters(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        return (gradients * self.normal).sum((-3, -2)), gradients.sum((-3, -2))


def _lstm_backward(
    gradient: Tensor,
    hiddens: Tensor,
    cells: Tensor,
    gates: Tensor,
    keep: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weight: Tensor,
    *norms: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients of `projected`, `hidden`, `cell`, `weight` and `norms`. What does not depend on later turns is computed
    for all turns at once."""
    turns, size = gates.shape[-3], hidden.shape[-1]
    hiddens_before = torch.cat((hidden.unsqueeze(-3), hiddens[..., :-1, :, :]), -3).mul_(keep).to(weight.dtype)
    cells_before = torch.cat((cell.unsqueeze(-3), cells[..., :-1, :, :]), -3).mul_(keep)
    rows_before = hiddens_before.flatten(-3, -2)
    of_cell = of_recurrent = None
    if norms:
        of_recurrent = _LayerNorm(torch.matmul(rows_before, weight.mT).view(gates.shape).to(cell.dtype), *norms[:2])
        of_cell = _LayerNorm(cells, *norms[2:])
    read = torch.tanh(cells if of_cell is None else of_cell.outputs())

    enter, forget, new, leave = gates.chunk(4, -1)
    to_read, to_cell_before = torch.ops.aten.tanh_backward(leave, read), forget * keep
    slopes = cells.new_empty(gates.shape)  # from three gates to the cell, and from the last to the output
    of_enter, of_forget, of_new, of_leave = slopes.chunk(4, -1)
    torch.ops.aten.sigmoid_backward(new, enter, grad_input=of_enter)
    torch.ops.aten.sigmoid_backward(cells_before, forget, grad_input=of_forget)
    torch.ops.aten.tanh_backward(enter, new, grad_input=of_new)
    torch.ops.aten.sigmoid_backward(read, leave, grad_input=of_leave)
    by_gate = (*gates.shape[:-1], 3, size)
    of_three = slopes[..., : 3 * size].view(by_gate)

    to_inputs = slopes if gates.dtype == slopes.dtype else gates.new_empty(gates.shape)
    to_three, to_leave = to_inputs[..., : 3 * size].view(by_gate), to_inputs[..., 3 * size :]
    to_products = weight.new_empty(gates.shape) if norms else to_inputs
    to_reads = torch.empty_like(to_read) if norms else to_read
    to_hidden = to_next = cell.new_zeros(cell.shape)
    for t in reversed(range(turns)):
        to_hidden = gradient.select(-3, t) + to_hidden
        if of_cell is None:
            now = torch.addcmul(to_next, to_hidden, to_read.select(-3, t))
        else:
            to_normed = torch.mul(to_hidden, to_read.select(-3, t), out=to_reads.select(-3, t))
            now = to_next + of_cell.to_inputs(to_normed, t)
        torch.mul(of_three.select(-4, t), now.unsqueeze(-2), out=to_three.select(-4, t))
        torch.mul(of_leave.select(-3, t), to_hidden, out=to_leave.select(-3, t))
        if of_recurrent is not None:
            to_products.select(-3, t).copy_(of_recurrent.to_inputs(to_inputs.select(-3, t), t))
        to_hidden = torch.matmul(to_products.select(-3, t), weight) * keep.select(-3, t)
        to_next = now * to_cell_before.select(-3, t)
    to_weight = torch.matmul(to_products.flatten(-3, -2).mT, rows_before)
    found = (to_inputs, to_hidden.to(hidden.dtype), to_next, to_weight)
    if of_cell is None or of_recurrent is None:
        return found
    return *found, *of_recurrent.to_parameters(to_inputs), *of_cell.to_parameters(to_reads)


def _empty_lstm_backward(
    gradient: Tensor, hiddens: Tensor, cells: Tensor, gates: Tensor, keep: Tensor, *inputs: Tensor
) -> tuple[Tensor, ...]:
    return tuple(like.new_empty(like.shape) for like in (gates, *inputs))


def _register(name: str, *norms: str) -> Any:
    """The operator `torch.ops.ludus.NAME` and its backward pass."""
    # `torch.library.custom_op` would import the compiler, which takes seconds.
    inputs = ", ".join(f"Tensor {one}" for one in ("keep", "hidden", "cell", "weight", *norms))
    outputs = "Tensor hiddens, Tensor cells, Tensor gates"
    _LIBRARY.define(f"{name}(Tensor projected, {inputs}) -> ({outputs})", tags=(torch.Tag.pt2_compliant_tag,))
    gradients = ", ".join(["Tensor"] * (4 + len(norms)))
    _LIBRARY.define(
        f"{name}_backward(Tensor gradient, {outputs}, {inputs}) -> ({gradients})", tags=(torch.Tag.pt2_compliant_tag,)
    )
    _LIBRARY.impl(name, _lstm, "CompositeExplicitAutograd")
    _LIBRARY.impl(f"{name}_backward", _lstm_backward, "CompositeExplicitAutograd")
    operator, backward = getattr(torch.ops.ludus, name), getattr(torch.ops.ludus, f"{name}_backward")

    def save_for_backward(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # large zeros, for the outputs without gradient
        ctx.save_for_backward(*output, *inputs[1:])

    def gradients_of(ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if gradient is None:
            return (None,) * (5 + len(norms))
        to_projected, *others = backward(gradient, *ctx.saved_tensors)
        return to_projected, None, *others

    torch.library.register_fake(f"ludus::{name}", _empty_lstm, lib=_LIBRARY)
    torch.library.register_fake(f"ludus::{name}_backward", _empty_lstm_backward, lib=_LIBRARY)
    torch.library.register_autograd(f"ludus::{name}", gradients_of, setup_context=save_for_backward, lib=_LIBRARY)
    return operator


_LIBRARY: Any = torch.library.Library("ludus", "FRAGMENT")  # type: ignore[no-untyped-call]
_unroll = _register("lstm")
_unroll_normed = _register("normed_lstm", "recurrent_scale", "recurrent_shift", "cell_scale", "cell_shift")


class LSTM(nn.Module):
    """A long short-term memory cell; `step` takes inputs that `project` has projected. With `layer_norm`, the gates'
    inputs are normalised, and so is the cell before it is read."""

    def __init__(self, in_size: int, size: int, *, layer_norm: bool = False) -> None:
        super().__init__()
        self.inputs = Linear(in_size, 4 * size, gain=1.0, bias=not layer_norm)
        self.recurrent = Linear(size, 4 * size, gain=1.0, bias=False)
        self.inputs_norm = LayerNorm(4 * size) if layer_norm else None
        self.recurrent_norm = LayerNorm(4 * size) if layer_norm else None
        self.cell_norm = LayerNorm(size) if layer_norm else None
        bias = self.inputs.bias if self.inputs_norm is None else self.inputs_norm.bias
        assert bias is not None
        with torch.no_grad():  # an open forget gate at the start lets gradients reach far back
            bias[size : 2 * size] = 1.0

    def project(self, inputs: Tensor) -> Tensor:
        projected: Tensor = self.inputs(inputs)
        return projected if self.inputs_norm is None else self.inputs_norm(projected)

    def step(self, projected: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """The next (hidden, cell)."""
        if self.recurrent_norm is None:
            weight = self.recurrent.weight.transpose(-1, -2)
            gates = (torch.addmm if weight.dim() == 2 else torch.baddbmm)(projected, hidden, weight)
        else:
            gates = projected + self.recurrent_norm(self.recurrent(hidden))
        enter, keep, new, leave = gates.chunk(4, -1)
        cell = torch.addcmul(torch.sigmoid(keep) * cell, torch.sigmoid(enter), torch.tanh(new))
        read = cell if self.cell_norm is None else self.cell_norm(cell)
        return torch.sigmoid(leave) * torch.tanh(read), cell

    def unroll(self, inputs: Tensor, keep: Tensor, hidden: Tensor, cell: Tensor) -> Tensor:
        """`inputs` [..., T, B, in_size] to the hidden states of all turns, [..., T, B, size]. The state is zeroed where
        `keep` [..., T, B, 1] is 0, not 1."""
        projected = self.inputs(inputs)
        given = (keep, hidden, cell, self.recurrent.weight.to(projected.dtype))  # autocast ends at the operator
        hiddens: Tensor
        if self.inputs_norm is None or self.recurrent_norm is None or self.cell_norm is None:
            hiddens, *_ = _unroll(projected, *given)
        else:
            norms = [part for norm in (self.recurrent_norm, self.cell_norm) for part in (norm.weight, norm.bias)]
            hiddens, *_ = _unroll_normed(self.inputs_norm(projected).to(cell.dtype), *given, *norms)
        return hiddens


State = dict[str, Tensor]


class Memory(nn.Module):
    """An LSTM of one or more layers over the decisions of one seat. The states of the layers are concatenated."""

    def __init__(self, in_size: int, size: int, *, layers: int = 1, layer_norm: bool = False) -> None:
        super().__init__()
        self.size = size
        self.lstm = LSTM(in_size, size, layer_norm=layer_norm)
        self.above = nn.ModuleList(LSTM(size, size, layer_norm=layer_norm) for _ in range(layers - 1))
        spec = ArraySpec(shape=(layers * size,), dtype=np.dtype("float32"))
        self.state_arrays = {"h": spec, "c": spec}

    def step(self, inputs: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, State]:
        """One decision per row: the output and the next state."""
        layers = self._layers
        if len(layers) == 1:
            hidden, cell = self.lstm.step(self.lstm.project(inputs), state["h"], state["c"])
            return hidden, {"h": hidden, "c": cell}
        states = []
        for lstm, before in zip(layers, self._split(state), strict=True):
            states.append(lstm.step(lstm.project(inputs), *before))
            inputs = states[-1][0]
        hiddens, cells = zip(*states, strict=True)
        return inputs, {"h": torch.cat(hiddens, -1), "c": torch.cat(cells, -1)}

    def unroll(self, inputs: Tensor, first: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """`inputs` [..., T, B, in_size] to [..., T, B, size]; the state is zeroed where `first`."""
        keep = (~first).unsqueeze(-1).to(state["c"].dtype)
        for lstm, (hidden, cell) in zip(self._layers, self._split(state), strict=True):
            inputs = lstm.unroll(inputs, keep, hidden, cell)
        return inputs

    @property
    def _layers(self) -> list[Any]:
        return [self.lstm, *self.above]

    def _split(self, state: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        hiddens, cells = (torch.split(state[name], self.size, -1) for name in ("h", "c"))
        return list(zip(hiddens, cells, strict=True))
