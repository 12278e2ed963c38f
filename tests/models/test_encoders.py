import numpy as np
import pytest
import torch
from batches import RICH, observations

from ludus.data.specs import Entities
from ludus.models import encoders
from ludus.models.alphastar_encoder import AlphaStarEncoder, AlphaStarSizes
from ludus.models.encoders import Encoder, EncoderSizes
from ludus.models.tensors import as_float, share

SIZES = EncoderSizes(channels=(4,), entity_size=8, entity_heads=2, activation="relu")
ALPHASTAR_SIZES = AlphaStarSizes(
    scalar_size=4,
    entity_size=8,
    entity_layers=1,
    entity_heads=2,
    entity_hidden=8,
    scatter_channels=2,
    map_channels=2,
    down=(),
    map_blocks=0,
    spatial_size=4,
)


def encode(encoder, observation):
    return encoder({name: share(array) for name, array in observation.items()})


def test_row_does_not_depend_on_padding_or_on_other_rows():
    encoder = Encoder(RICH.observation.parts, SIZES)
    observation = observations(RICH, np.random.default_rng(0), (5,))
    observation["units_length"][:] = [2, 5, 3, 1, 6]
    observation["units"] = np.nan_to_num(observation["units"], nan=0.5)
    before = encode(encoder, observation)
    assert before.features.shape == (5, encoder.size)
    assert before.entities["units"].embedding.shape == (5, 6, 8)
    observation["units"][0, 2:] = np.nan
    alone = encode(encoder, {name: array[:1] for name, array in observation.items()})
    assert alone.entities["units"].embedding.shape == (1, 2, 8)
    torch.testing.assert_close(alone.features, before.features[:1], atol=1e-5, rtol=1e-5)


def test_empty_list_is_finite():
    encoder = Encoder(RICH.observation.parts, SIZES)
    observation = observations(RICH, np.random.default_rng(0), (3,))
    observation["units_length"][:] = 0
    observation["units"][:] = np.nan
    assert encode(encoder, observation).features.isfinite().all()


@pytest.mark.parametrize("network", ["plain", "alphastar"])
def test_many_lists_are_embedded_in_groups_of_similar_length(network, monkeypatch):
    torch.manual_seed(0)
    parts = {"units": Entities(maximum=12, features=5, types=3)}
    encoder = Encoder(parts, SIZES)
    if network == "alphastar":
        encoder = AlphaStarEncoder(parts, ALPHASTAR_SIZES, context=(), scatter=(), known_types=None)
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 5, 40).astype(np.int32)
    lengths[[7, 31]] = 9, 13  # the last is cut to the most that there can be
    units = rng.random((40, 12, 5), np.float32)
    units[..., 0] = rng.integers(0, 3, (40, 12))
    units[np.arange(12) >= lengths[:, None]] = np.nan
    shapes = []

    def embedded(rows_in_group):
        monkeypatch.setattr(encoders, "_GROUPED_ROWS", rows_in_group)
        shapes.clear()
        encoded = encode(encoder, {"units": units, "units_length": lengths})
        encoder.zero_grad()
        (encoded.features.square().sum() + encoded.entities["units"].embedding.square().sum()).backward()
        gradients = [parameter.grad for parameter in encoder.parameters()]
        return encoded.features, encoded.entities["units"].embedding, *gradients

    attention = encoder.entities[0].attention if network == "plain" else encoder.entities[0].layers[0].attention
    attention.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape[:2])))
    together = embedded(40)
    assert shapes == [(40, 12)]
    apart = embedded(8)
    assert [rows for rows, _ in shapes] == [8] * 5
    assert [longest for _, longest in shapes][-1] == 12
    assert max(longest for _, longest in shapes[:-1]) < 5
    for one, other in zip(apart, together, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_bytes_become_shares_of_255():
    assert as_float(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist() == [0.0, np.float32(0.2), 1.0]
    assert as_float(torch.tensor([0, 51], dtype=torch.int32)).tolist() == [0.0, 51.0]
    assert as_float(torch.tensor([False, True])).tolist() == [0.0, 1.0]


def test_read_only_arrays_are_copied():
    array = np.zeros(3, np.float32)
    assert share(array).data_ptr() == array.ctypes.data
    array.flags.writeable = False
    assert share(array).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int16"])
def test_types_are_told_apart_whatever_they_are_stored_as(dtype):
    torch.manual_seed(0)  # of so few features, some weights leave none above 0
    parts = {"units": Entities(maximum=2, features=2, types=3, dtype=dtype)}
    network = AlphaStarEncoder(parts, ALPHASTAR_SIZES, context=(), scatter=(), known_types=None)
    for encoder in (Encoder(parts, SIZES), network):
        units = np.zeros((3, 2, 2), dtype)
        units[:, 0, 0] = range(3)
        features = encode(encoder, {"units": units, "units_length": np.full(3, 1, np.int32)}).features
        assert (features[0] - features[1]).abs().max() > 1e-3
        assert (features[1] - features[2]).abs().max() > 1e-3
