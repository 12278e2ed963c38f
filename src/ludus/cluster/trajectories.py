"""Trajectories between nodes: the slots that an actor has handed over, packed row by row, put into the same
slots of the learner's node."""

from __future__ import annotations

import numpy as np

from ludus.cluster.parcel import Draft, Parcel, unpack
from ludus.data.trajectory import SlotPool
from ludus.data.trees import IntArray
from ludus.local.shared_parts import SharedParts
from ludus.runtime.cluster_config import Compression

CODES = "codes"


def pack_slots(parts: SharedParts, codes: IntArray, compress: Compression) -> Parcel:
    """What a ring has given: slots, and marks where a hand-over ends. Of each slot only the rows that were
    written, and the one after them."""
    shapes = {CODES: (codes.dtype, codes.shape)}
    gathered = {}
    for kind, pool in enumerate(parts.pools):
        slots = _slots(parts, codes, kind)
        if not len(slots):
            continue
        rows = _rows(pool, slots, pool.slots["length"][slots])
        for name, array in pool.rows.items():
            flat = array.reshape(-1, *array.shape[2:])
            gathered[f"{kind}/row/{name}"] = (flat, rows)
            shapes[f"{kind}/row/{name}"] = (array.dtype, (len(rows), *array.shape[2:]))
        for name, array in pool.slots.items():
            gathered[f"{kind}/slot/{name}"] = (array, slots)
            shapes[f"{kind}/slot/{name}"] = (array.dtype, (len(slots), *array.shape[1:]))
    draft = Draft(shapes)
    draft.arrays[CODES][...] = codes
    for name, (array, where) in gathered.items():
        array.take(where, 0, out=draft.arrays[name], mode="clip")  # other modes take a copy more
    return draft.seal(compress)


def put_slots(parts: SharedParts, parcel: Parcel) -> IntArray:
    """Write a parcel into the slots that it names; gives the codes for the ring."""
    arrays = unpack(parcel)
    codes: IntArray = arrays[CODES]
    for kind, pool in enumerate(parts.pools):
        slots = _slots(parts, codes, kind)
        if not len(slots):
            continue
        for name, array in pool.slots.items():
            array[slots] = arrays[f"{kind}/slot/{name}"]
        rows = _rows(pool, slots, arrays[f"{kind}/slot/length"])
        for name, array in pool.rows.items():
            array.reshape(-1, *array.shape[2:])[rows] = arrays[f"{kind}/row/{name}"]
    return codes


def _slots(parts: SharedParts, codes: IntArray, kind: int) -> IntArray:
    _, kinds, slots = parts.decode(codes[codes >= 0])
    chosen: IntArray = slots[kinds == kind]
    return chosen


def _rows(pool: SlotPool, slots: IntArray, lengths: IntArray) -> IntArray:
    """Numbers of rows, counted through all slots of the pool."""
    per_slot = pool.layout.unroll_length + 1
    counts = np.minimum(lengths.astype(np.int64) + 1, per_slot)
    before = np.cumsum(counts) - counts
    rows: IntArray = np.repeat(slots * per_slot - before, counts) + np.arange(counts.sum())
    return rows
