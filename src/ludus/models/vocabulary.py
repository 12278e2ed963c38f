"""Vocabularies: which types of entity and which actions a network knows. They are part of its weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ludus.models.decisions import Chooser, Decision, decide
from ludus.models.operators import LOWEST


def check_vocabulary(name: str, numbers: tuple[int, ...], size: int) -> None:
    """Numbers in [0, size), each once, at least one."""
    if not numbers:
        raise ValueError(f"{name} is empty; leave it out to know all {size}")
    if len(set(numbers)) < len(numbers):
        twice = next(number for number in numbers if numbers.count(number) > 1)
        raise ValueError(f"{name} names {twice} twice")
    wrong = [number for number in numbers if not 0 <= number < size]
    if wrong:
        raise ValueError(f"{name} must be numbers from 0 to {size - 1}, got {wrong[0]}")


class KnownTypes(nn.Module):
    """From the numbers of entity types to places in an embedding. Place 0 is for all unknown ones."""

    place: Tensor

    def __init__(self, types: int, known: tuple[int, ...] | None) -> None:
        super().__init__()
        numbers = torch.arange(types) if known is None else torch.tensor([n for n in known if n < types])
        self.num_places = len(numbers) + 1
        place = torch.zeros(types + 1, dtype=torch.int64)  # the last one is for numbers out of range
        place[numbers] = torch.arange(1, self.num_places)
        self.register_buffer("place", place)

    def forward(self, numbers: Tensor) -> Tensor:
        types = self.place.shape[-1] - 1
        index = numbers.long()
        index = torch.where((index >= 0) & (index < types), index, types)
        if self.place.dim() == 1:
            return self.place[index]
        return self.place.gather(1, index.flatten(1)).reshape(index.shape)


class KnownActions(nn.Module):
    """A choice among `num` options of which only some are known, and have a score.

    Options outside the vocabulary are never chosen, except where no known one is legal: there all legal
    ones are equally likely, so that an agent that meets such a state plays on.
    """

    number: Tensor

    def __init__(self, num: int, known: tuple[int, ...]) -> None:
        super().__init__()
        self.num = num
        self.register_buffer("number", torch.tensor(sorted(known)))

    def decide(
        self, name: str, scores: Tensor, legal: Tensor | None, in_use: Tensor | None, chooser: Chooser
    ) -> Decision:
        """`scores` [..., known] are those of the known options."""
        number = self.number if self.number.dim() == 1 else self.number.unsqueeze(-2)
        number = number.expand(scores.shape)
        logits = scores.new_full((*scores.shape[:-1], self.num), LOWEST).scatter(-1, number, scores)
        known = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, number, True)
        if legal is not None:
            known = known & legal
            nothing_known = ~known.any(-1, keepdim=True)
            logits = torch.where(nothing_known, 0.0, logits)
            known = torch.where(nothing_known, legal, known)
        try:
            return decide(name, logits, known, in_use, chooser)
        except ValueError as error:
            known_of_all = f"{scores.shape[-1]} of {self.num}"
            raise ValueError(f"{error} (the network knows {known_of_all} options)") from None
