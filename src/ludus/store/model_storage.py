"""Where the models of a run are kept beside its folder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ludus.store.model_pool import ModelPool
from ludus.store.redis_models import REDIS, MirroredPool, RedisModels
from ludus.store.run_folder import RunFolder

FILES = "files"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelStorage:
    """The files of the run folder hold all models; another place serves machines that do not see it."""

    backend: str = FILES
    """files, or redis://HOST:PORT/NUMBER: models are put there too (pip install 'ludus[redis]')."""

    def __post_init__(self) -> None:
        if self.backend != FILES and not self.backend.startswith(REDIS):
            kinds = " or ".join(f"{kind}HOST:PORT/NUMBER" for kind in REDIS)
            raise ValueError(f"backend must be {FILES!r} or {kinds}, got {self.backend!r}")
        if "#" in self.backend:
            raise ValueError(f"backend {self.backend!r}: leave out #..., every run has a name of its own")

    def open(self, folder: RunFolder) -> ModelPool:
        """For whoever publishes."""
        if self.backend == FILES:
            return folder.models
        return MirroredPool(folder.models.folder, RedisModels(self.address(folder)))

    def address(self, folder: RunFolder) -> str:
        """By which other machines find the models of this run."""
        if self.backend == FILES:
            raise ValueError(
                "models.backend is 'files': other machines reach them by a service, or not at all"
            )
        # Not by its name alone: two machines may have a run of that name.
        facts = f"{folder.path.resolve()} {folder.facts.created} {folder.facts.seed}"
        return f"{self.backend}#{folder.path.name}-{hashlib.sha256(facts.encode()).hexdigest()[:8]}"
