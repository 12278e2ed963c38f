"""Which processor a worker computes on."""

from __future__ import annotations

import re

import torch
from torch import nn

from ludus.models.policy import Policy

_FORMS = re.compile(r"auto|cpu|cuda(:\d+)?")


def require_device_name(setting: str, asked: str) -> None:
    """Whether the name has a known form; whether this machine has the device is for `find_device` to say."""
    if not _FORMS.fullmatch(asked):
        raise ValueError(f"{setting} must be auto, cpu, cuda or cuda:N, got {asked!r}")


class NoSuchDeviceError(ValueError):
    """A device was asked for that this machine does not have."""


def find_device(asked: str, setting: str = "learner.device") -> torch.device:
    """The device that `asked` names; "auto" is a GPU if there is one. `setting` is for the error."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked == "auto":
        return torch.device("cuda" if count else "cpu")
    require_device_name(setting, asked)
    device = torch.device(asked)
    if device.type == "cuda" and (device.index or 0) >= count:
        there = f"{count} GPU{'s' * (count > 1)} (cuda:0 to cuda:{count - 1})" if count else "no usable GPU"
        raise NoSuchDeviceError(f"{asked} was asked for; this machine has {there}: use {setting}=cpu or auto")
    return device


def device_of_rank(asked: str, rank: int) -> str:
    """Ranks of a learner that may use any GPU take one each, in turn."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return f"cuda:{rank % count}" if asked in ("auto", "cuda") and count > 1 else asked


def has_gpu_each(asked: str, ranks: int) -> bool:
    """Whether each of so many ranks has a GPU that no other uses."""
    return len({device_of_rank(asked, rank) for rank in range(ranks)}) == ranks > 1


def placed(policy: Policy, device: torch.device, setting: str = "learner.device") -> Policy:
    """The policy with its weights on the device."""
    if isinstance(policy, nn.Module):
        policy.to(device)
    elif device.type != "cpu":
        raise ValueError(
            f"{type(policy).__name__} is no torch.nn.Module, so it cannot go to {device}: use {setting}=cpu"
        )
    return policy
