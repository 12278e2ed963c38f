"""Names of other programs to ours: patterns, shapes, and what is said about the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ludus.store.model_addresses import BadWeightMap, WeightMap, WeightSource, match_weights, parse_map, require_used


def array(*shape: int, dtype: str = "float32", value: float = 0.0) -> NDArray[Any]:
    return np.full(shape, value, dtype)


OURS = {
    "seat/body.0.weight": array(4, 3),
    "seat/body.0.bias": array(4),
    "seat/body.1.weight": array(4, 4),
    "seat/head.weight": array(2, 4),
}


def theirs(**more: NDArray[Any]) -> dict[str, NDArray[Any]]:
    return {
        "net.fc0.weight": array(4, 3, value=1),
        "net.fc0.bias": array(4, value=2),
        "net.fc1.weight": array(4, 4, value=3),
        "out.weight": array(2, 4, value=4),
        **more,
    }


def names(**weights: Any) -> WeightMap:
    return parse_map({"weights": weights}, "keys.yaml")


def test_equal_names_match_with_or_without_the_kind() -> None:
    file = {"seat/body.0.weight": array(4, 3), "body.0.bias": array(4), "body.1.weight": array(4, 4)}
    found = match_weights(OURS, file | {"head.weight": array(2, 4)}, WeightMap(), prefix="seat/")
    assert found.is_complete
    assert found.sources["seat/body.0.weight"] == "seat/body.0.weight"
    assert found.sources["seat/head.weight"] == "head.weight"
    assert match_weights(OURS, file, WeightMap()).missing.keys() == OURS.keys() - {"seat/body.0.weight"}


def test_a_star_carries_text_over_and_a_name_written_out_goes_first() -> None:
    chosen = names(**{"seat/body.*": "net.fc*", "seat/head.weight": "out.weight", "seat/*.1.weight": "no*"})
    found = match_weights(OURS, theirs(), chosen)
    assert found.is_complete
    assert found.arrays["seat/body.1.weight"].ravel()[0] == 3


def test_a_line_without_a_kind_is_for_all_kinds() -> None:
    ours = OURS | {name.replace("seat", "other"): array_ for name, array_ in OURS.items()}
    chosen = names(**{"body.*": "net.fc*", "head.weight": "out.weight", "other/head.weight": "nothing"})
    found = match_weights(ours, theirs(), chosen)
    assert list(found.missing) == ["other/head.weight"], "a line with the kind goes first"
    assert found.sources["seat/body.1.weight"] == found.sources["other/body.1.weight"] == "net.fc1.weight"


def test_a_matrix_is_turned_only_when_asked() -> None:
    wide = theirs() | {"out.weight": np.arange(8, dtype=np.float32).reshape(4, 2)}
    chosen = {"seat/body.*": "net.fc*", "seat/head.weight": "out.weight"}
    found = match_weights(OURS, wide, names(**chosen))
    (wrong,) = found.wrong
    assert (wrong.ours, wrong.needed, wrong.given) == ("seat/head.weight", "(2, 4)", "(4, 2)")
    assert "transpose: true" in wrong.hint
    assert found.guesses["seat/head.weight"] == WeightSource(name="out.weight", transpose=True)
    chosen["seat/head.weight"] = {"from": "out.weight", "transpose": True}  # type: ignore[assignment]
    found = match_weights(OURS, wide, names(**chosen))
    assert found.is_complete
    assert found.arrays["seat/head.weight"].tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_what_is_missing_and_left_over_is_listed_with_a_guess_of_the_same_shape() -> None:
    found = match_weights(OURS, theirs(step=array(1, dtype="int64")), WeightMap(), prefix="seat/")
    assert list(found.missing) == list(OURS)
    assert list(found.left_over) == [*theirs(), "step"]
    assert {ours: taken.name for ours, taken in found.guesses.items()} == {
        "seat/body.0.weight": "net.fc0.weight",
        "seat/body.0.bias": "net.fc0.bias",
        "seat/body.1.weight": "net.fc1.weight",
        "seat/head.weight": "out.weight",
    }


def test_layers_of_one_shape_are_guessed_in_order() -> None:
    ours = {f"seat/trunk.{index}.weight": array(4, 4) for index in range(3)}
    file = {f"{name}.weight": array(4, 4) for name in ("alpha", "beta", "gamma")}
    guesses = match_weights(ours, file, WeightMap()).guesses
    assert [guesses[name].name for name in ours] == list(file)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_precisions_become_ours(dtype: str) -> None:
    found = match_weights({"w": array(2)}, {"w": array(2, dtype=dtype, value=0.5)}, WeightMap())
    assert found.arrays["w"].dtype == np.float32
    assert found.arrays["w"].tolist() == [0.5, 0.5]


def test_complex_numbers_are_no_weights_of_ours() -> None:
    found = match_weights({"w": array(2)}, {"w": array(2, dtype="complex64")}, WeightMap())
    assert (found.wrong[0].needed, found.wrong[0].given) == ("float32", "complex64")


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(BadWeightMap, match="'w' has values that are not finite as float32"):
        match_weights({"w": array(2)}, {"w": array(2, dtype="float64", value=value)}, WeightMap())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"wieghts": {}}, "wieghts"),
        ({"weights": ["a"]}, "keys.yaml: Expected `object`"),
        ({"weights": {"a": {"from": "b", "transpos": True}}}, "transpos"),
        ({"weights": {"a": "b.*"}}, r"'a' and 'b.\*' need as many"),
        ("text", "Expected `object`"),
    ],
)
def test_a_map_that_means_nothing_is_refused(content: Any, message: str) -> None:
    with pytest.raises(BadWeightMap, match=message):
        parse_map(content, "keys.yaml")


def test_a_line_about_nothing_is_refused_with_the_nearest_name() -> None:
    require_used(names(**{"seat/body.*": "x.*", "seat/head.weight": "y", "*.weight": "z"}), OURS)
    with pytest.raises(BadWeightMap, match=r"did you mean 'seat/head.weight'"):
        require_used(names(**{"seat/haed.weight": "y"}), OURS)
    with pytest.raises(BadWeightMap, match="none of our weights"):
        require_used(names(**{"nobody/*": "*"}), OURS)
