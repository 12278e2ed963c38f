"""Folders of studies that nobody trained: planted runs with results, as `ludus study` leaves them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from planted_runs import plant

from ludus.store.files import seal


def plant_study(folder: Path, *, seeds: int = 3) -> Path:
    """Two settings. The runs of the better one have the lower NashConv and more snapshots."""
    runs = []
    for setting, level in (("magnet_weight=0.2", 0.1), ("magnet_weight=0.05", 0.3)):
        for seed in range(seeds):
            name = f"{setting}-seed{seed}"
            described = {"name": name, "setting": setting, "seed": seed, "settings": {"magnet_weight": level}}
            runs.append({**described, "measured_by": []})
            run = plant(folder / "runs" / name, snapshots=3, matches=40)
            rows = [json.loads(line) for line in (run.metrics / "train.jsonl").read_text().splitlines()]
            for number, row in enumerate(rows):
                row |= {"main/nash_conv": level + 0.01 * seed + 1.0 / (number + 1), "time": 1000.0 + 2.0 * number}
            (run.metrics / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            (folder / "results").mkdir(exist_ok=True)
            value = level + 0.01 * seed
            result = {"value": value, "values": {"nash_conv": value}, "measured_by": []}
            (folder / "results" / f"{name}.json").write_bytes(msgspec.json.encode(seal(result)))
    facts = {"format": 1, "objective": "nash_conv", "lower_is_better": True, "player": "main", "runs": runs}
    (folder / "study.json").write_bytes(msgspec.json.encode(seal({**facts, "study": {}})))
    return folder
