"""Networks with memory: an LSTM cell, its unrolled steps as one operator, and `Memory`, layers of it for a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ludus.data.specs import ArraySpec
from ludus.models.operators import LayerNorm, Linear

_LIBRARY: Any = torch.library.Library("ludus", "FRAGMENT")  # type: ignore[no-untyped-call]
_LSTM = "lstm(Tensor projected, Tensor keep, Tensor hidden, Tensor cell, Tensor weight) -> (Tensor, Tensor, Tensor)"
_LSTM_BACKWARD = (
    "lstm_backward(Tensor gradient, Tensor keep, Tensor hidden, Tensor cell, Tensor weight, Tensor hiddens,"
    " Tensor cells, Tensor gates) -> (Tensor, Tensor, Tensor, Tensor)"
)
for _schema in (_LSTM, _LSTM_BACKWARD):  # `torch.library.custom_op` would import the compiler, which takes seconds
    _LIBRARY.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))


def _lstm(projected: Tensor, keep: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """All turns of an LSTM as one operator, which a compiler does not look into: it would unroll the loop. `projected`
    [..., T, B, 4 size], `keep` [..., T, B, 1] is 0 where the state is zeroed before the turn, else 1. Products are in
    the precision of `projected` and `weight`, which is that of autocast, and cells and sums in the precision of the
    states. Returns the hidden states and the cells [..., T, B, size], and the gates [..., T, B, 4 size]."""
    hiddens, cells, gates = _empty_lstm(projected, keep, hidden, cell, weight)
    size = hidden.shape[-1]
    product = torch.addmm if weight.dim() == 2 else torch.baddbmm
    for t in range(projected.shape[-3]):
        kept, gate = keep.select(-3, t), gates.select(-3, t)
        inputs = product(projected.select(-3, t), (hidden * kept).to(weight.dtype), weight.mT)
        enter, forget, new, leave = gate.chunk(4, -1)
        torch.sigmoid(inputs[..., : 2 * size], out=gate[..., : 2 * size])
        torch.tanh(inputs[..., 2 * size : 3 * size], out=new)
        torch.sigmoid(inputs[..., 3 * size :], out=leave)
        cell = torch.mul(forget, cell * kept, out=cells.select(-3, t)).addcmul_(enter, new)
        hidden = torch.mul(leave, torch.tanh(cell), out=hiddens.select(-3, t))
    return hiddens, cells, gates


def _empty_lstm(projected: Tensor, keep: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    states = (*projected.shape[:-1], hidden.shape[-1])
    return cell.new_empty(states), cell.new_empty(states), projected.new_empty(projected.shape)


def _lstm_backward(
    gradient: Tensor,
    keep: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weight: Tensor,
    hiddens: Tensor,
    cells: Tensor,
    gates: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients of `projected`, `hidden`, `cell` and `weight`. What does not depend on later turns is computed for all
    turns at once: the loop only multiplies."""
    size = hidden.shape[-1]
    by_gate = (*gates.shape[:-1], 3, size)
    enter, forget, new, leave = gates.chunk(4, -1)
    hiddens_before = torch.cat((hidden.unsqueeze(-3), hiddens[..., :-1, :, :]), -3).mul_(keep).to(weight.dtype)
    cells_before = torch.cat((cell.unsqueeze(-3), cells[..., :-1, :, :]), -3).mul_(keep)
    read = torch.tanh(cells)
    to_cell, to_cell_before = torch.ops.aten.tanh_backward(leave, read), forget * keep
    slopes = torch.empty_like(gates, dtype=cells.dtype)  # from three gates to the cell, and from the last to the output
    of_enter, of_forget, of_new, of_leave = slopes.chunk(4, -1)
    torch.ops.aten.sigmoid_backward(new, enter, grad_input=of_enter)
    torch.ops.aten.sigmoid_backward(cells_before, forget, grad_input=of_forget)
    torch.ops.aten.tanh_backward(enter, new, grad_input=of_new)
    torch.ops.aten.sigmoid_backward(read, leave, grad_input=of_leave)
    of_three = slopes[..., : 3 * size].view(by_gate)

    to_inputs = slopes if gates.dtype == slopes.dtype else torch.empty_like(gates)
    to_three, to_leave = to_inputs[..., : 3 * size].view(by_gate), to_inputs[..., 3 * size :]
    to_hidden = to_next = torch.zeros_like(cell)
    for t in reversed(range(gates.shape[-3])):
        to_hidden = gradient.select(-3, t) + to_hidden
        now = torch.addcmul(to_next, to_hidden, to_cell.select(-3, t))
        torch.mul(of_three.select(-4, t), now.unsqueeze(-2), out=to_three.select(-4, t))
        torch.mul(of_leave.select(-3, t), to_hidden, out=to_leave.select(-3, t))
        to_hidden = torch.matmul(to_inputs.select(-3, t), weight) * keep.select(-3, t)
        to_next = now * to_cell_before.select(-3, t)
    to_weight = torch.matmul(to_inputs.flatten(-3, -2).mT, hiddens_before.flatten(-3, -2))
    return to_inputs, to_hidden.to(hidden.dtype), to_next, to_weight


def _empty_lstm_backward(
    gradient: Tensor,
    keep: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weight: Tensor,
    hiddens: Tensor,
    cells: Tensor,
    gates: Tensor,
) -> tuple[Tensor, ...]:
    return gates.new_empty(gates.shape), *(like.new_empty(like.shape) for like in (hidden, cell, weight))


def _save_for_backward(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # cells and gates have none
    ctx.save_for_backward(*inputs[1:], *output)


def _gradients(ctx: Any, gradient: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    to_inputs, to_hidden, to_cell, to_weight = torch.ops.ludus.lstm_backward(gradient, *ctx.saved_tensors)
    return to_inputs, None, to_hidden, to_cell, to_weight


_LIBRARY.impl("lstm", _lstm, "CompositeExplicitAutograd")
_LIBRARY.impl("lstm_backward", _lstm_backward, "CompositeExplicitAutograd")
torch.library.register_fake("ludus::lstm", _empty_lstm, lib=_LIBRARY)
torch.library.register_fake("ludus::lstm_backward", _empty_lstm_backward, lib=_LIBRARY)
torch.library.register_autograd("ludus::lstm", _gradients, setup_context=_save_for_backward, lib=_LIBRARY)


class LSTM(nn.Module):
    """A long short-term memory cell; `project` the inputs of many steps at once, then `step` through them. With
    `layer_norm`, the gates' inputs are normalised, and so is the cell before it is read."""

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

    def unroll(self, projected: Tensor, keep: Tensor, hidden: Tensor, cell: Tensor) -> Tensor:
        """The hidden states [..., T, B, size] of all turns of `projected` [..., T, B, 4 size]. The state is zeroed
        before a turn where `keep` [..., T, B, 1] is 0, not 1."""
        if self.recurrent_norm is None:
            weight = self.recurrent.weight.to(projected.dtype)  # what autocast does, which stops at the operator
            hiddens: Tensor = torch.ops.ludus.lstm(projected, keep, hidden, cell, weight)[0]
            return hiddens
        outputs = []
        for t in range(projected.shape[-3]):
            hidden, cell = hidden * keep.select(-3, t), cell * keep.select(-3, t)
            hidden, cell = self.step(projected.select(-3, t), hidden, cell)
            outputs.append(hidden)
        return torch.stack(outputs, -3)


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
            inputs = lstm.unroll(lstm.project(inputs), keep, hidden, cell)
        return inputs

    @property
    def _layers(self) -> list[Any]:
        return [self.lstm, *self.above]

    def _split(self, state: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        hiddens, cells = (torch.split(state[name], self.size, -1) for name in ("h", "c"))
        return list(zip(hiddens, cells, strict=True))
