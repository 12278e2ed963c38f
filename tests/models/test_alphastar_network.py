from dataclasses import replace

import numpy as np
import pytest
import torch
from alphastar_policies import BATTLE, CONFIGS, ONLY_MAP, ONTO_SCREEN, SMALL, a_batch, build
from batches import PLAIN, inputs

from ludus.config import apply_overrides
from ludus.data.specs import ActionSpec, Choice, ObservationSpec
from ludus.models.alphastar import AlphaStar
from ludus.models.alphastar_heads import PlaceHead
from ludus.models.network_policy import stack_policies
from ludus.models.policy import replace_weights, value_parameters, weights_of


@pytest.mark.parametrize("name", CONFIGS)
def test_unroll_repeats_what_act_decided_and_every_weight_learns(name):
    policy = build(name)
    batch = a_batch(policy)
    assert batch.first[1:].any() or not policy.state_arrays
    unrolled = policy.unroll(batch)
    np.testing.assert_allclose(unrolled.log_prob.detach().numpy(), batch.log_prob, atol=1e-5)
    np.testing.assert_allclose(unrolled.value.detach().numpy(), batch.value, atol=1e-5)
    for head, log_probs in unrolled.log_probs.items():
        several = policy.kind.action.arrays[head].shape
        assert log_probs.shape == (6, 5, *several, policy.kind.num_options(head) + bool(several))
    loss = unrolled.log_prob.sum() + unrolled.entropy.sum() + unrolled.value.sum()
    if policy.kind.rewards:
        assert unrolled.values.shape == (6, 5, 2)
        loss = loss + unrolled.values.sum()
    loss.backward()
    for parameter_name, parameter in policy.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name


@pytest.mark.parametrize("name", ["plain", "battle", "deep", "only map", "picks first"])
def test_no_weight_is_out_of_reach(name):
    """A ReLU may be off for one batch, but not for all."""
    policy = build(name)
    for seed in range(4):
        unrolled = policy.unroll(a_batch(policy, num_columns=12, seed=seed))
        loss = unrolled.log_prob.sum() + unrolled.value.sum()
        loss = loss if unrolled.values is None else loss + unrolled.values.square().sum()
        loss.backward()
    dead = [name for name, parameter in policy.named_parameters() if not parameter.grad.any()]
    assert not dead


@pytest.mark.parametrize("name", CONFIGS)
def test_sixteen_stacked_are_sixteen_single_calls(name):
    policies = [build(name, seed) for seed in range(16)]
    arrays = inputs(policies[0], np.random.default_rng(2), (16, 5))
    together = stack_policies(policies).act(*arrays)
    for index, policy in enumerate(policies):
        observation, legal, state = ({key: array[index] for key, array in tree.items()} for tree in arrays[:3])
        alone = policy.act(observation, legal, state, arrays[3][index])
        for head, action in alone.action.items():
            np.testing.assert_array_equal(together.action[head][index], action)
        np.testing.assert_allclose(together.log_prob[index], alone.log_prob, atol=1e-5)
        np.testing.assert_allclose(together.value[index], alone.value, atol=1e-5)
        for key, array in alone.state.items():
            np.testing.assert_allclose(together.state[key][index], array, atol=1e-5)


def test_a_part_has_a_size_of_its_own_and_its_transformer_is_scaled():
    policy = build("orders")
    units, steps = policy.encoder.entities
    assert (units.size, steps.size) == (8, 4)
    assert steps.layers[0].hidden.weight.shape == (4, 4)  # the hidden layer of units has 8
    assert policy.encoder.context_size == 6 + 4  # a list of entities may gate the heads, too
    assert policy.encoder.size == 6 + 8 + 4
    assert [encoder.size for encoder in policy.critic.encoders] == [6 + 8 + 4, 6]  # the critic's units are off


def test_categories_are_told_apart_and_have_no_order():
    policy = build("orders")
    units = torch.zeros(3, 5, 5)
    units[:, 0, 3] = torch.tensor([1.0, 2.0, 9.0])  # the last number is beyond the four values
    length = torch.ones(3, dtype=torch.int32)
    embedded = policy.encoder.entities[0](units, length)[1].embedding[:, 0]
    assert not torch.allclose(embedded[0], embedded[1])
    units[0, 0, 3] = 3.0
    torch.testing.assert_close(policy.encoder.entities[0](units, length)[1].embedding[0, 0], embedded[2])


def test_what_lies_beyond_the_length_of_a_list_changes_nothing():
    policy = build("battle")
    observation, legal, state, uniforms = inputs(policy, np.random.default_rng(3), (6,))
    before = policy.act(observation, legal, state, uniforms)
    for name in ("units", "critic.enemies"):
        padding = np.isnan(observation[name])
        assert padding.any()
        observation[name][padding] = 77.0
    after = policy.act(observation, legal, state, uniforms)
    np.testing.assert_array_equal(before.log_prob, after.log_prob)
    np.testing.assert_array_equal(before.value, after.value)


def test_scattered_entities_are_seen_at_their_place_only():
    kind = replace(
        BATTLE,
        observation=ObservationSpec(parts={name: BATTLE.observation.parts[name] for name in ("units", "screen")}),
        action=ActionSpec(heads={"go": Choice(num=2)}),
    )
    config = replace(SMALL, scatter=(ONTO_SCREEN,))
    scatter = config.build(kind, 0).encoder.scatters[0]
    units = torch.full((1, 7, 4), torch.nan)
    units[0, :2] = torch.tensor([[1.0, 0.0, 9.0, 1.999], [2.0, 1.0, 9.0, 5.0]])
    embedding = torch.zeros(1, 2, 8)
    embedding[0] = torch.eye(8)[:2]
    valid = torch.ones(1, 2, dtype=torch.bool)
    encoded = type("Embedded", (), {"embedding": embedding, "valid": valid})()
    maps = scatter({"units": units}, {"units": encoded})
    assert maps.shape == (1, 3, 17, 18)
    places = {tuple(place) for place in maps[0].abs().sum(0).nonzero().tolist()}
    assert places <= {(16, 0), (16, 9)}  # y beyond the map is put at its edge
    torch.testing.assert_close(maps[0, :, 16, 0], torch.relu(scatter.reduce(embedding[0, 0])))


def test_entities_at_one_place_add_up():
    scatter = build("battle").encoder.scatters[0]
    observation = {"units": torch.zeros(1, 7, 4)}
    embedding = torch.rand(1, 3, 8)
    encoded = type("Embedded", (), {"embedding": embedding, "valid": torch.tensor([[True, True, False]])})()
    maps = scatter(observation, {"units": encoded})
    expected = torch.relu(scatter.reduce(embedding[0, :2])).sum(0)
    torch.testing.assert_close(maps[0, :, 0, 0], expected)


def test_parts_that_are_off_are_not_read():
    policy = build("cut")
    observation, legal, state, uniforms = inputs(policy, np.random.default_rng(3), (6,))
    before = policy.act(observation, legal, state, uniforms)
    assert isinstance(policy.heads.heads[4], PlaceHead)
    assert not isinstance(policy.heads.heads[5], PlaceHead)  # its map is off
    del observation["minimap"], observation["clock"]
    np.testing.assert_array_equal(policy.act(observation, legal, state, uniforms).log_prob, before.log_prob)
    wanted = apply_overrides(SMALL, {"parts": "{minimap: off, clock: on}"})
    assert wanted.parts == {"minimap": False, "clock": True}
    of_what_is_off = replace(SMALL, parts={"screen": False}, scatter=(ONTO_SCREEN,), context=("clock",))
    assert not of_what_is_off.build(BATTLE, 0).encoder.scatters


def test_unknown_types_look_the_same():
    observation, legal, state, uniforms = inputs(build("cut"), np.random.default_rng(3), (4,))

    def values_of(name, *types):
        policy = build(name)
        for number in types:
            observation["units"][:, 0, 0] = number
            yield policy.act(observation, legal, state, uniforms).value.tolist()

    unknown, other, no_type_of_the_game, known = values_of("cut", 1, 2, 99, 3)
    assert unknown == other == no_type_of_the_game != known
    first, second = values_of("battle", 1, 2)
    assert first != second


def test_vocabularies_are_stored_with_the_weights():
    policy = build("cut")
    weights = weights_of(policy)
    np.testing.assert_array_equal(weights["heads.heads.0.known.number"], [0, 1, 2, 3])
    np.testing.assert_array_equal(weights["encoder.entities.0.types.place"], [1, 0, 0, 2, 3, 0, 0])
    assert weights["encoder.entities.0.type_embedding.weight"].shape == (4, 8)
    assert weights["heads.heads.0.scores.outputs.weight"].shape[0] == 4
    other = build("cut", seed=1)
    replace_weights(other, weights)
    arrays = inputs(policy, np.random.default_rng(3), (4,))
    np.testing.assert_array_equal(other.act(*arrays).log_prob, policy.act(*arrays).log_prob)


def test_only_known_actions_are_taken_unless_none_is_legal():
    policy = build("cut")
    observation, legal, state, uniforms = inputs(policy, np.random.default_rng(3), (4_000,))
    legal["type"][:] = [False, True, False, True, True, True]
    legal["type"][2_000:, :4] = False
    acted = policy.act(observation, legal, state, uniforms)
    assert set(acted.action["type"][:2_000]) == {1, 3}
    assert set(acted.action["type"][2_000:]) == {4, 5}
    np.testing.assert_allclose(acted.log_prob[2_000:, 0], np.log(0.5), atol=1e-6)


def test_a_recorded_action_outside_the_vocabulary_is_refused_by_number():
    policy = build("cut")
    batch = a_batch(policy)
    batch.legal["type"][:] = True
    batch.action["type"][0, 0] = 5
    with pytest.raises(ValueError, match=r"'type', row 0: action 5 is not legal .* knows 4 of 6 options"):
        policy.unroll(batch)


def test_temperatures_sharpen_a_head():
    cold = replace(SMALL, temperatures={"type": 0.1}).build(BATTLE, 0)
    warm = SMALL.build(BATTLE, 0)
    batch = a_batch(warm)
    entropies = [policy.unroll(batch).entropy[..., 0].mean() for policy in (cold, warm)]
    assert entropies[0] < entropies[1]
    logits = [policy.unroll(batch).log_probs["type"] for policy in (cold, warm)]
    cold_difference, warm_difference = (found[..., 0] - found[..., 1] for found in logits)
    both_legal = torch.from_numpy(batch.legal["type"][..., :2].all(-1))
    torch.testing.assert_close(cold_difference[both_legal], 10.0 * warm_difference[both_legal], atol=1e-4, rtol=1e-3)


def test_places_are_scored_on_the_map_at_its_own_or_twice_its_resolution():
    policy = build("battle")
    near, far = policy.heads.heads[4:]
    assert isinstance(near, PlaceHead)
    assert isinstance(far, PlaceHead)
    assert policy.heads.map_names == {"near": "screen", "far": "minimap"}
    assert (len(near.up), len(far.up)) == (1, 2)  # halved twice, and once; then four times as fine
    assert AlphaStar().build(PLAIN, 0).heads.map_names == {}


def test_a_place_is_scored_by_what_is_around_it():
    """Far from a change the scores stay as they are, once the embedding, which sees all, is left out."""
    policy = replace(SMALL, down=(5,), memory=0).build(ONLY_MAP, 0)
    head = policy.heads.heads[0]
    with torch.no_grad():
        for linear in (head.context, head.blocks[0].film):
            linear.weight.zero_()
        head.scores.weight.mul_(50.0)
    maps = np.zeros((2, 1, 16, 16), np.float32)
    maps[1, 0, 0, 0] = 5.0
    batch = a_batch(policy, num_steps=1, num_columns=2)
    log_probs = policy.unroll(replace(batch, observation={"map": maps[None]})).log_probs["place"][0]
    scores = (log_probs - log_probs[:, -1:]).reshape(2, 16, 16)  # against the place furthest away
    rows, columns = torch.nonzero((scores[0] - scores[1]).abs() > 1e-4).unbind(-1)
    assert rows.min() == columns.min() == 0
    assert max(rows.max(), columns.max()) <= 10  # two places a cell, four convolutions, one to each side


def test_each_reward_has_a_baseline_and_the_main_one_can_be_bounded():
    policy = build("deep")
    with torch.no_grad():
        for value in policy.critic.values:
            value.bias.fill_(100.0)
    unrolled = policy.unroll(a_batch(policy))
    assert ((unrolled.value > 0.9) & (unrolled.value < 1.0)).all()
    assert (unrolled.values > 50.0).all()
    names = [name for name, _ in policy.named_parameters()]
    of_value = {names[index] for index in value_parameters(policy)}
    assert of_value == {name for name in names if name.startswith("critic.")}


def test_only_the_central_critic_sees_critic_parts():
    for name, central in (("battle", False), ("deep", True)):
        policy = build(name)
        observation, legal, state, uniforms = inputs(policy, np.random.default_rng(1), (4,))
        before = policy.act(observation, legal, state, uniforms)
        observation["critic.whole"] += 1
        after = policy.act(observation, legal, state, uniforms)
        np.testing.assert_array_equal(before.log_prob, after.log_prob)
        assert np.array_equal(before.value, after.value) is not central
        blind = policy.act(observation, legal, state, uniforms, want_value=False)
        np.testing.assert_array_equal(blind.log_prob, after.log_prob)


def test_memory_has_layers_side_by_side():
    policy = build("deep")
    assert {name: spec.shape for name, spec in policy.state_arrays.items()} == {"h": (21,), "c": (21,)}
    assert not build("rich").state_arrays
    observation, legal, state, uniforms = inputs(policy, np.random.default_rng(1), (4,))
    for layer in range(3):
        changed = {name: array.copy() for name, array in state.items()}
        changed["h"][:, 7 * layer : 7 * layer + 7] += 1.0
        values = [policy.act(observation, legal, each, uniforms).value for each in (state, changed)]
        assert not np.array_equal(*values)


def test_weights_depend_on_the_seed_only():
    first, again, other = (SMALL.build(BATTLE, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["trunk.layers.0.weight"], other["trunk.layers.0.weight"])


def test_what_a_row_draws_does_not_depend_on_the_rows_beside_it():
    """Heads work only on the rows that use them, and stop when nobody picks any more."""
    policy = build("battle")
    observation, legal, state, uniforms = inputs(policy, np.random.default_rng(8), (30,))
    together = policy.act(observation, legal, state, uniforms)
    assert len(set(together.action["type"].tolist())) > 3
    for row in range(30):
        one = slice(row, row + 1)
        arrays = ({name: array[one] for name, array in tree.items()} for tree in (observation, legal, state))
        alone = policy.act(*arrays, uniforms[one])
        for head, action in alone.action.items():
            np.testing.assert_array_equal(action, together.action[head][one], head)
        np.testing.assert_allclose(alone.log_prob, together.log_prob[one], atol=1e-5)


def test_heads_that_no_row_uses_have_a_gradient_of_zero():
    policy = build("battle")
    batch = a_batch(policy)
    batch.legal["type"][:] = np.arange(6) == 0
    batch.action["type"][:] = 0
    for head in ("target", "near", "far"):
        batch.action[head][:] = 0
    batch.action["group"][:] = -1
    unrolled = policy.unroll(batch)
    assert not unrolled.log_prob[..., 2:].any()
    (unrolled.log_prob.sum() + unrolled.entropy.sum()).backward()
    for name, parameter in policy.heads.heads[2:].named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


def test_an_illegal_argument_is_named_by_its_row():
    policy = build("battle")
    batch = a_batch(policy, num_steps=2, num_columns=3)
    batch.legal["type"][:] = True
    batch.action["type"][:] = 0
    batch.action["type"][1, 2] = 2
    batch.legal["group"][1, 2, 0] = True
    batch.observation["units"][1, 2] = 0.0
    batch.action["group"][1, 2] = [0, -1, -1]
    batch.legal["near"][1, 2, 7] = False
    batch.action["near"][1, 2] = 7
    with pytest.raises(ValueError, match="head 'near', row 5: action 7 is not legal"):
        policy.unroll(batch)
