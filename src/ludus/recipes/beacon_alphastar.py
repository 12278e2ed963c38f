"""The mini-game MoveToBeacon by AlphaStar's network in its mini size; wants a GPU, or patience."""

from __future__ import annotations

from dataclasses import replace

from ludus.experiment import Experiment
from ludus.models.alphastar import AlphaStar
from ludus.recipes import beacon


def experiment() -> Experiment:
    base = beacon.experiment()
    return replace(base, name="beacon_alphastar", budget=400_000, model=AlphaStar())
