"""Operators of networks. Each runs one model on [rows, ...] or, if its parameters have a leading model axis, a stack of
M models on [M, rows, ...]. Outputs keep these leading axes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

_MINUS_ONE = torch.tensor(-1.0)
_FEW_MODELS = 8
"""Most models of a stack whose convolutions run one by one on a GPU."""


def _tanh_on_cpu(inputs: Tensor) -> Tensor:
    """2 sigmoid(2x) - 1, in a third of the time of torch.tanh on a CPU, with an absolute error below 3e-7."""
    outputs = torch.sigmoid_(inputs + inputs)
    return torch.add(_MINUS_ONE, outputs, alpha=2.0, out=outputs)


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        outputs = _tanh_on_cpu(inputs)
        ctx.save_for_backward(outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return torch.ops.aten.tanh_backward(gradients[0], *ctx.saved_tensors)


def _is_exported() -> bool:
    """Whether a graph is traced now: it has a tangent of its own."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


def tanh(inputs: Tensor) -> Tensor:
    """The hyperbolic tangent, by the fastest implementation for the tensor's device."""
    if inputs.device.type != "cpu" or _is_exported():
        return torch.tanh(inputs)
    if not torch.is_grad_enabled():
        return _tanh_on_cpu(inputs)
    outputs: Tensor = _Tanh.apply(inputs)  # type: ignore[no-untyped-call]
    return outputs


Activation = Literal["tanh", "relu", "gelu", "silu", "elu"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": tanh,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "elu": functional.elu,
}
LOWEST = -1e20
"""Replaces minus infinity: far below any logit, but p * log p, differences and their gradients stay finite."""
_LARGE = 1 << 20


def _orthogonal(*shape: int, gain: float) -> nn.Parameter:
    weight = torch.empty(shape)
    rows, columns = len(weight), weight[0].numel()
    if weight.numel() > _LARGE and columns > 100 * rows:
        # Such long random rows are nearly orthogonal already, and orthogonalising them takes many seconds.
        return nn.Parameter(nn.init.normal_(weight, std=gain / math.sqrt(columns)))
    return nn.Parameter(nn.init.orthogonal_(weight, gain))


class Linear(nn.Module):
    """y = x W^T + b over the last axis, with orthogonal initial weights."""

    bias: nn.Parameter | None

    def __init__(self, in_size: int, out_size: int, *, gain: float = math.sqrt(2.0), bias: bool = True) -> None:
        super().__init__()
        self.weight = _orthogonal(out_size, in_size, gain=gain)
        self.bias = nn.Parameter(torch.zeros(out_size)) if bias else None

    def forward(self, inputs: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        if weight.dim() == 2:
            return functional.linear(inputs, weight, bias)
        rows = inputs if inputs.dim() == 3 else inputs.flatten(1, -2)
        if rows.device.type == "cuda" and torch.is_autocast_enabled("cuda"):
            outputs = _aligned_product(rows, weight)
            if bias is not None:  # added by the kernel that comes next; `baddbmm` writes and reads it in full first
                outputs = outputs + bias.unsqueeze(1).to(outputs.dtype)
        elif bias is None:
            outputs = torch.bmm(rows, weight.mT)
        else:
            outputs = torch.baddbmm(bias.unsqueeze(1), rows, weight.mT)
        return outputs if inputs.dim() == 3 else outputs.reshape(*inputs.shape[:-1], -1)


_ALIGNED = 8
"""Half-precision numbers in 16 bytes, which is what the fast matrix products of a GPU load at once."""


def _aligned_product(rows: Tensor, weight: Tensor) -> Tensor:
    """[models, rows, in] times [models, out, in] in half precision, with sizes that are filled up with zeros. Compiled,
    the kernel that makes the rows writes the zeros too."""
    num_outputs, num_inputs = weight.shape[1:]
    more_outputs, more_inputs = -num_outputs % _ALIGNED, -num_inputs % _ALIGNED
    if more_inputs or more_outputs:
        weight = functional.pad(weight, (0, more_inputs, 0, more_outputs))
    if more_inputs:
        rows = functional.pad(rows, (0, more_inputs))
    outputs = torch.bmm(rows, weight.mT)
    return outputs[..., :num_outputs] if more_outputs else outputs


class LayerNorm(nn.Module):
    """Zero mean and unit variance over the last axis, then scale and shift."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, inputs: Tensor) -> Tensor:
        return layer_norm(inputs, self.weight, self.bias)


def layer_norm(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if weight.dim() == 1:
        return functional.layer_norm(inputs, weight.shape, weight, bias)
    normal = functional.layer_norm(inputs, inputs.shape[-1:])
    shape = (len(weight), *(1,) * (inputs.dim() - 2), -1)
    return torch.addcmul(bias.view(shape), normal, weight.view(shape))


class Embedding(nn.Module):
    """A learned vector for each of `num` integers."""

    def __init__(self, num: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num, size))

    def forward(self, index: Tensor) -> Tensor:
        if self.weight.dim() == 2:
            return functional.embedding(index, self.weight)
        flat = index.flatten(1).unsqueeze(-1).expand(-1, -1, self.weight.shape[-1])
        return self.weight.gather(1, flat).reshape(*index.shape, -1)


class Conv2d(nn.Module):
    """A convolution over [rows, channels, height, width]. A stack runs as one grouped convolution on a CPU. On a GPU,
    whose grouped convolutions are slow, a few models run one by one and many as batched matrix products."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        kernel: int = 3,
        stride: int = 1,
        padding: int = 1,
        gain: float = math.sqrt(2.0),
    ) -> None:
        super().__init__()
        self.stride = stride
        self.padding = padding
        self.weight = _orthogonal(out_channels, in_channels, kernel, kernel, gain=gain)
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, planes: Tensor) -> Tensor:
        if self.weight.dim() == 4:
            return functional.conv2d(planes, self.weight, self.bias, self.stride, self.padding)
        if len(self.weight) == 1:
            one = functional.conv2d(planes[0], self.weight[0], self.bias[0], self.stride, self.padding)
            return one.unsqueeze(0)
        if planes.device.type != "cpu":
            return self.as_products(planes) if len(self.weight) > _FEW_MODELS else self.one_by_one(planes)
        # The result is a view with models first. The next convolution of a tower turns it back
        # without a copy, because the activation between them keeps the strides.
        grouped, models = planes.transpose(0, 1).flatten(1, 2), len(self.weight)
        weight, bias = self.weight.flatten(0, 1), self.bias.flatten()
        outputs = functional.conv2d(grouped, weight, bias, self.stride, self.padding, groups=models)
        return outputs.view(len(outputs), models, -1, *outputs.shape[2:]).transpose(0, 1)

    def one_by_one(self, planes: Tensor) -> Tensor:
        """The convolutions of a stack, [M, rows, channels, height, width], each on its own."""
        calls = zip(planes, self.weight, self.bias, strict=True)
        return torch.stack([functional.conv2d(*call, self.stride, self.padding) for call in calls])

    def as_products(self, planes: Tensor) -> Tensor:
        """The convolutions of a stack, [M, rows, channels, height, width], as one product for each model."""
        kernel = self.weight.shape[-1]
        padded = functional.pad(planes, (self.padding,) * 4)
        height, width = ((size - kernel) // self.stride + 1 for size in padded.shape[-2:])
        taps = [(down, right) for down in range(kernel) for right in range(kernel)]
        return _sum_of_taps(padded, taps, self.weight.flatten(3), self.bias, (height, width), self.stride)


def _sum_of_taps(
    planes: Tensor,
    taps: Sequence[tuple[int, int]],
    weight: Tensor,
    bias: Tensor,
    shape: tuple[int, int],
    stride: int = 1,
) -> Tensor:
    """Maps [M, rows, outputs, *shape] whose cells are sums over `taps`, the offsets into `planes` [M, rows, inputs,
    height, width], with `weight` [M, outputs, inputs, taps]: one matrix product for each model."""
    height, width = (stride * (size - 1) + 1 for size in shape)
    seen = [planes[..., down : down + height : stride, right : right + width : stride] for down, right in taps]
    cells = torch.stack(seen, 2).permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)  # [M, cells, taps x inputs]
    factors = weight.permute(0, 3, 2, 1).flatten(1, 2)
    outputs = torch.baddbmm(bias.unsqueeze(1), cells, factors)
    return outputs.view(*planes.shape[:2], *shape, -1).permute(0, 1, 4, 2, 3)


class ConvTranspose2d(nn.Module):
    """Doubles the height and width of [rows, channels, height, width]. A stack runs as `Conv2d` does."""

    def __init__(self, in_channels: int, out_channels: int, *, gain: float = math.sqrt(2.0)) -> None:
        super().__init__()
        # Each output sums over only a quarter of the 4x4 kernel, hence twice the gain.
        self.weight = _orthogonal(in_channels, out_channels, 4, 4, gain=2.0 * gain)
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, planes: Tensor) -> Tensor:
        if self.weight.dim() == 4:
            return functional.conv_transpose2d(planes, self.weight, self.bias, stride=2, padding=1)
        if planes.device.type != "cpu":
            return self.as_products(planes) if len(self.weight) > _FEW_MODELS else self.one_by_one(planes)
        grouped, models = planes.transpose(0, 1).flatten(1, 2), len(self.weight)
        weight, bias = self.weight.flatten(0, 1), self.bias.flatten()
        outputs = functional.conv_transpose2d(grouped, weight, bias, stride=2, padding=1, groups=models)
        return outputs.view(len(outputs), models, -1, *outputs.shape[2:]).transpose(0, 1)

    def one_by_one(self, planes: Tensor) -> Tensor:
        """The calls of a stack, each on its own."""
        calls = zip(planes, self.weight, self.bias, strict=True)
        return torch.stack([functional.conv_transpose2d(*call, stride=2, padding=1) for call in calls])

    def as_products(self, planes: Tensor) -> Tensor:
        """The calls of a stack, [M, rows, channels, height, width], as four products for each model: each cell becomes
        2 x 2 cells, and each of these is a sum over four cells of the input."""
        padded = functional.pad(planes, (1, 1, 1, 1))
        shape = (planes.shape[-2], planes.shape[-1])
        # By parity of the output's row or column: offset into the padded input and place in the kernel, twice.
        ways = (((1, 1), (0, 3)), ((1, 2), (2, 0)))
        parts = []
        for vertical in ways:
            for across in ways:
                pairs = [(down, right) for down in vertical for right in across]
                weight = torch.stack([self.weight[..., down[1], right[1]] for down, right in pairs], -1)
                taps = [(down[0], right[0]) for down, right in pairs]
                parts.append(_sum_of_taps(padded, taps, weight.transpose(1, 2), self.bias, shape))
        quarters = torch.stack(parts, -1)  # [M, rows, outputs, height, width, 4]
        quarters = quarters.view(*quarters.shape[:-1], 2, 2)
        return quarters.transpose(-3, -2).flatten(-2).flatten(-3, -2)


class Attention(nn.Module):
    """Multi-head self-attention over the second last axis, masked where entries are not `valid`."""

    def __init__(self, size: int, num_heads: int) -> None:
        super().__init__()
        if size % num_heads:
            raise ValueError(f"attention of size {size} cannot be split into {num_heads} heads")
        self.num_heads = num_heads
        self.inputs = Linear(size, 3 * size, gain=1.0)
        self.outputs = Linear(size, size, gain=1.0)

    def forward(self, entities: Tensor, valid: Tensor) -> Tensor:
        """`entities` [..., N, size], `valid` [..., N] bool. Rows without a valid entry stay finite."""
        num_entities, size = entities.shape[-2:]
        split = self.inputs(entities).view(-1, num_entities, 3, self.num_heads, size // self.num_heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        blind = torch.where(valid, 0.0, LOWEST).flatten(0, -2)[:, None, None, :]
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=blind)
        outputs: Tensor = self.outputs(mixed.transpose(1, 2).reshape(entities.shape))
        return outputs


class MLP(nn.Module):
    """Linear layers, each followed by the activation; without sizes the identity."""

    def __init__(self, in_size: int, sizes: Sequence[int], activation: Activation) -> None:
        super().__init__()
        widths = (in_size, *sizes)
        self.size = widths[-1]
        self.activation = ACTIVATIONS[activation]
        self.layers = nn.ModuleList(Linear(before, after) for before, after in zip(widths, sizes, strict=False))

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = self.activation(layer(inputs))
        return inputs


ModuleT = TypeVar("ModuleT", bound=nn.Module)


def stack_modules(modules: Sequence[ModuleT]) -> ModuleT:
    """One module whose parameters and persistent buffers are those of `modules`, stacked along a new first axis."""
    first = modules[0]
    # The copy shares the first module's tensors, which are replaced below.
    shared = {id(tensor): tensor for tensor in (*first.parameters(), *first.buffers())}
    stacked = copy.deepcopy(first, dict(shared))
    state = [module.state_dict() for module in modules]
    for prefix, owner in stacked.named_modules():
        for name in (*owner._parameters, *owner._buffers):
            full_name = f"{prefix}.{name}" if prefix else name
            if full_name not in state[0]:
                continue
            joint = torch.stack([tensors[full_name] for tensors in state])
            if name in owner._parameters:
                owner._parameters[name] = nn.Parameter(joint)
            else:
                owner._buffers[name] = joint
    return stacked


class GatedLinear(nn.Module):
    """A linear layer whose inputs are gated by a context (GLU); with `context_size` 0 a plain one."""

    def __init__(self, in_size: int, context_size: int, out_size: int, *, gain: float = math.sqrt(2.0)) -> None:
        super().__init__()
        self.gate = Linear(context_size, in_size, gain=1.0) if context_size else None
        self.outputs = Linear(in_size, out_size, gain=gain)

    def forward(self, inputs: Tensor, context: Tensor | None) -> Tensor:
        if self.gate is not None:
            inputs = torch.sigmoid(self.gate(context)) * inputs
        outputs: Tensor = self.outputs(inputs)
        return outputs


class ResidualBlock(nn.Module):
    """x + f(x), where f is two linear layers, each preceded by layer norm and ReLU."""

    def __init__(self, size: int, *, gain: float) -> None:
        super().__init__()
        self.norm = LayerNorm(size)
        self.inputs = Linear(size, size)
        self.mix_norm = LayerNorm(size)
        self.mix = Linear(size, size, gain=gain)

    def forward(self, inputs: Tensor) -> Tensor:
        entered = self.inputs(torch.relu(self.norm(inputs)))
        hidden: Tensor = self.mix(torch.relu(self.mix_norm(entered)))
        return inputs + hidden


class ResidualTower(nn.Module):
    """A linear layer to `size`, then residual blocks and a ReLU."""

    def __init__(self, in_size: int, size: int, blocks: int) -> None:
        super().__init__()
        self.size = size
        self.inputs = Linear(in_size, size)
        self.blocks = nn.ModuleList(ResidualBlock(size, gain=_gain_of_one(blocks)) for _ in range(blocks))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.inputs(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        return torch.relu(hidden)


class ResidualConv(nn.Module):
    """x + f(x) over maps; f is two 3x3 convolutions after ReLUs, scaled and shifted by the context, if any (FiLM)."""

    def __init__(self, channels: int, *, num_blocks: int, context_size: int = 0) -> None:
        super().__init__()
        self.inputs = Conv2d(channels, channels)
        self.mix = Conv2d(channels, channels, gain=_gain_of_one(num_blocks))
        self.film = Linear(context_size, 2 * channels, gain=1.0) if context_size else None

    def forward(self, planes: Tensor, context: Tensor | None = None) -> Tensor:
        hidden: Tensor = self.mix(torch.relu(self.inputs(torch.relu(planes))))
        if self.film is not None:
            scale, shift = self.film(context)[..., None, None].chunk(2, -3)
            hidden = torch.addcmul(hidden + shift, hidden, scale)
        return planes + hidden


def _gain_of_one(num_blocks: int) -> float:
    """Gain of the last layer of each block, so that all blocks together add about the variance of the input."""
    return 1.0 / math.sqrt(num_blocks)
