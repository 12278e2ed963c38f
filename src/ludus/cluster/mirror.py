"""A run folder as a node sees it: the experiment with its code as it lies here, and models."""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from pathlib import Path

import msgspec

from ludus.cluster.parcel import Parcel, unpack
from ludus.cluster.temporary import TemporaryHome
from ludus.cluster.user_code import Luggage, moved, unpack_code
from ludus.data.records import ModelId
from ludus.store.files import safe_name
from ludus.store.model_pool import Variant
from ludus.store.run_folder import RunFacts, RunFolder

_SHARED = ("models", "checkpoints", "metrics", "logs")


def sees(run: str, facts: bytes) -> bool:
    """Whether this node has the run folder itself at this place, and not another one of that name."""
    try:
        return (Path(run) / "run.json").read_bytes() == facts
    except OSError:
        return False


class Mirror:
    """What the workers of a node take for their run folder. Where the run folder can be seen, models,
    checkpoints and logs are its own; where not, models are a cache that is filled before anybody asks."""

    def __init__(self, run: str, facts: bytes, luggage: list[Luggage], *, shared: bool) -> None:
        self._home = TemporaryHome(f"ludus-site-{safe_name(Path(run).name, 'run')}-")
        self.path = self._home.path
        self._models: OrderedDict[ModelId, None] = OrderedDict()
        for part in _SHARED:
            if shared:
                (self.path / part).symlink_to(Path(run).absolute() / part)
            else:
                (self.path / part).mkdir()
        places = unpack_code(luggage, self.path / "code")
        written = msgspec.json.decode(facts, type=RunFacts)
        here = moved(msgspec.json.decode(written.experiment), places)
        written = msgspec.structs.replace(written, experiment=msgspec.Raw(msgspec.json.encode(here)))
        (self.path / "run.json").write_bytes(msgspec.json.encode(written))
        # Worker processes find packages by the environment, this process by its own path.
        found = [*places.values(), *filter(None, [os.environ.get("PYTHONPATH")])]
        if found:
            os.environ["PYTHONPATH"] = os.pathsep.join(found)
        sys.path[:0] = places.values()
        self.folder = RunFolder.open(self.path)

    def keep_model(self, model: ModelId, variant: Variant, parcel: Parcel | None, most: int) -> None:
        """Into the cache, compared with its digest; those longest not asked for leave it. Without a parcel
        it is there."""
        if parcel is not None:
            self.folder.models.publish(model, unpack(parcel), parent=None, variant=variant, facts={})
        self._models[model] = None
        self._models.move_to_end(model)
        while len(self._models) > most:
            self._models.popitem(last=False)
            self.folder.models.collect_garbage(keep_last=0, referenced=[*self._models])

    def close(self) -> None:
        self._home.close()
