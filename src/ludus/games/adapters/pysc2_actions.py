"""PySC2's action functions as heads: the function first, then its arguments, which count if it takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ActionSpec, Choice, Head, Point, Pointer, When
from ludus.data.trees import Array
from ludus.games.adapters.pysc2_layers import nearest
from ludus.games.adapters.pysc2_library import actions
from ludus.games.seat_rows import GameError

FUNCTION, DELAY, UNITS = "function", "delay", "units"
NO_OP = 0
"""Option of the head `function`, and PySC2's number of it."""

_POINTS = ("screen", "screen2", "minimap", "world")
_COUNTED = {
    "select_unit_id": ("multi_select",),
    "build_queue_id": ("build_queue", "production_queue"),
    "unload_id": ("cargo",),
}
"""Arguments that count the rows of a list on the screen: only as many values are legal as it has."""
_ORDER = (
    "queued",
    "control_group_act",
    "control_group_id",
    "select_point_act",
    "select_add",
    "select_worker",
    "select_unit_act",
    "select_unit_id",
    "build_queue_id",
    "unload_id",
    "screen",
    "screen2",
    "minimap",
    "unit_tags",
    "target_unit_tag",
    "world",
)
"""Arguments in the order in which they are decided."""


class UnknownFunctionError(ValueError):
    """A function that was called is not among those chosen, or an argument has no place in our heads."""


class ActionCodec:
    """Both ways between the actions of a seat and PySC2's function calls."""

    def __init__(
        self,
        *,
        raw: bool,
        names: Sequence[str] = (),
        specific: bool = False,
        max_delay: int = 0,
        sizes: Mapping[str, int],
        picks: int = 1,
    ) -> None:
        """`sizes`: length of the sides of `screen`, `minimap` and `world`, as far as there are such maps."""
        table = actions.RAW_FUNCTIONS if raw else actions.FUNCTIONS
        self.raw = raw
        self.functions = _choose(table, names, specific)
        """By option of the head `function`."""
        self.option_of = {int(function.id): option for option, function in enumerate(self.functions)}
        self._sizes = {**sizes, "screen2": sizes.get("screen", 0)}
        self._picks = picks
        heads: dict[str, Head] = {FUNCTION: Choice(num=len(self.functions))}
        if max_delay:
            heads[DELAY] = Choice(num=max_delay, masked=False)
        takes = {
            name: tuple(
                option
                for option, function in enumerate(self.functions)
                if name in [argument.name for argument in function.args]
            )
            for name in _ORDER
        }
        types = actions.RAW_TYPES if raw else actions.TYPES
        for name, options in takes.items():
            if options:
                heads[name] = self._head(getattr(types, name), When(head=FUNCTION, values=options))
        self.spec = ActionSpec(heads=heads)
        self._takes = {name: list(options) for name, options in takes.items() if options}

    def _head(self, argument: Any, when: When) -> Head:
        if argument.name in _POINTS:
            size = self._sizes[argument.name]
            return Point(height=size, width=size, when=when)
        if argument.name == "unit_tags":
            return Pointer(into=UNITS, picks=self._picks, when=when)
        if argument.name == "target_unit_tag":
            return Pointer(into=UNITS, when=when)
        return Choice(num=argument.sizes[0], when=when, masked=argument.name in _COUNTED)

    def blank(self) -> dict[str, Any]:
        """The action that does nothing; heads that do not count are 0, or -1 throughout."""
        arrays = self.spec.arrays
        return {name: [-1] * array.shape[0] if array.shape else 0 for name, array in arrays.items()}

    def decode(self, action: Mapping[str, Any], unit_of_row: Sequence[int] | Array = ()) -> Any:
        """PySC2's call. `unit_of_row`: for raw actions, PySC2's index of the unit in each row of `units`."""
        function = self.functions[int(action[FUNCTION])]
        arguments = []
        for argument in function.args:
            value = action[argument.name]
            if argument.name in _POINTS:
                arguments.append(
                    [int(value) % self._sizes[argument.name], int(value) // self._sizes[argument.name]]
                )
            elif argument.name == "unit_tags":
                arguments.append([int(unit_of_row[row]) for row in np.atleast_1d(value) if row >= 0])
            elif argument.name == "target_unit_tag":
                arguments.append([int(unit_of_row[int(value)])])
            else:
                arguments.append([int(value)])
        return actions.FunctionCall(function.id, arguments)

    def encode(self, call: Any, row_of_unit: Mapping[int, int] | None = None) -> dict[str, Any]:
        """Our action of a PySC2 call, the delay left at 0; more units than can be picked are left out."""
        function = int(call.function)
        if function not in self.option_of:
            table = actions.RAW_FUNCTIONS if self.raw else actions.FUNCTIONS
            raise UnknownFunctionError(f"{table[function].name} is not among the functions of this game")
        action = self.blank()
        action[FUNCTION] = self.option_of[function]
        rows = row_of_unit or {}
        for argument, values in zip(self.functions[action[FUNCTION]].args, call.arguments, strict=True):
            name = argument.name
            if name in _POINTS:
                size = self._sizes[name]
                x, y = (min(max(int(value), 0), size - 1) for value in values)
                action[name] = y * size + x
            elif name in ("unit_tags", "target_unit_tag"):
                places = [rows[int(unit)] for unit in values if int(unit) in rows]
                if not places:
                    raise UnknownFunctionError(f"none of the units of its {name} is among those seen")
                if name == "target_unit_tag" or self._picks == 1:
                    action[name] = places[0]
                else:
                    places = list(dict.fromkeys(places))[: self._picks]
                    action[name] = places + [-1] * (self._picks - len(places))
            else:
                action[name] = int(values[0])
        return action

    def write_legal(self, legal: Mapping[str, NDArray[np.bool_]], observation: Any, alliance: Array) -> None:
        """The masks of one seat. `alliance`: PySC2's number for each row of `units`, 1 for its own."""
        function = legal[FUNCTION]
        if self.raw:
            function[:] = True
            for name, rows in (("unit_tags", alliance == OWN), ("target_unit_tag", alliance > 0)):
                if name in self._takes:
                    legal[name][:] = False
                    legal[name][: len(rows)] = rows
                    if not rows.any():
                        function[self._takes[name]] = False
            return
        function[:] = False
        options = [self.option_of.get(int(number), NO_OP) for number in observation["available_actions"]]
        function[options] = True
        function[NO_OP] = True
        for name, lists in _COUNTED.items():
            if name in self._takes:
                count = max(len(observation[listed]) for listed in lists)
                legal[name][:] = np.arange(len(legal[name])) < count
                if not count:
                    function[self._takes[name]] = False


OWN = 1
"""PySC2's alliance of a seat's own units."""


def _choose(table: Any, names: Sequence[str], specific: bool) -> list[Any]:
    """The functions by option: `no_op`, then those named, or all (with `specific`, also the special cases
    of a general one, such as the cancelling of one certain building)."""
    if not names:
        return [function for function in table if specific or not function.general_id]
    known = {function.name: function for function in table}
    for name in names:
        if name not in known:
            raise GameError(f"StarCraft II has no function {name!r}{nearest(name, list(known), cutoff=0.0)}")
    return [table[NO_OP], *(known[name] for name in dict.fromkeys(names) if int(known[name].id) != NO_OP)]
