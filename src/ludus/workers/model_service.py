"""The model pool as a service, for machines that do not see the run folder.

An experiment that wants it lists `services={"models": UserService(address="ludus.workers.model_service:
ModelService")}`; whoever needs models elsewhere makes a `ModelCache(ServedModels(), FOLDER)`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ludus.data.records import ModelId
from ludus.services.endpoints import service
from ludus.services.errors import CallFailed
from ludus.services.registry import Registry
from ludus.services.solver import Solver
from ludus.store.model_pool import DamagedModel, ModelEntry, ModelPool, ModelPoolError, UnknownModel, Variant

SERVICE = "models"
_ERRORS = {error.__name__: error for error in (ModelPoolError, UnknownModel, DamagedModel)}


class ModelService:
    """Reads the pool for others; all it does may be done twice."""

    def __init__(self, folder: str | None = None) -> None:
        """`folder` of the pool; None: that of the run that has started this service."""
        if folder is None:
            if "LUDUS_RUN" not in os.environ:
                raise ValueError("ModelService: name the folder of a model pool, or list it in an experiment")
            folder = str(Path(os.environ["LUDUS_RUN"]) / "models")
        self._pool = ModelPool(folder)

    @service(idempotent=True)
    def entry(self, model: str, variant: Variant) -> ModelEntry:
        return self._pool.entry(ModelId.parse(model), variant)

    @service(idempotent=True)
    def content(self, model: str, variant: Variant) -> NDArray[np.uint8]:
        return np.frombuffer(self._pool.content(ModelId.parse(model), variant), np.uint8)

    @service(idempotent=True)
    def resolve(self, text: str) -> str:
        return str(self._pool.resolve(text))

    @service(idempotent=True)
    def lineage(self, model: str) -> list[str]:
        return [str(one) for one in self._pool.lineage(ModelId.parse(model))]


class ServedModels:
    """A `ModelSource` at the other end of a service; errors are those of the pool."""

    def __init__(self, service: str = SERVICE, *, registry: Registry | None = None) -> None:
        self._solver = Solver(service, registry=registry)

    def entry(self, model: ModelId, variant: Variant = "live") -> ModelEntry:
        return msgspec.convert(self._ask("entry", str(model), variant), ModelEntry)

    def content(self, model: ModelId, variant: Variant = "live") -> bytes:
        content: NDArray[np.uint8] = self._ask("content", str(model), variant)
        return content.tobytes()

    def resolve(self, text: str) -> ModelId:
        return ModelId.parse(self._ask("resolve", text))

    def lineage(self, model: ModelId) -> tuple[ModelId, ...]:
        return tuple(ModelId.parse(one) for one in self._ask("lineage", str(model)))

    def close(self) -> None:
        self._solver.close()

    def _ask(self, method: str, *args: str) -> Any:
        try:
            return self._solver.solve(method, *args)
        except CallFailed as failed:
            if failed.kind in _ERRORS:
                raise _ERRORS[failed.kind](failed.text) from failed
            raise
