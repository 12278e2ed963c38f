import numpy as np
import pytest

from ludus.games.seeding import deal, mix, randbelow, shuffle, uniform

SEEDS = np.arange(60_000, dtype=np.uint64)


def test_a_draw_depends_on_its_own_seed_and_counter_only() -> None:
    some = np.array([7, 59_999, 0])
    counters = np.array([3, 0, 5])
    together = mix(SEEDS[some], counters)
    for row, (seed, counter) in enumerate(zip(some, counters, strict=True)):
        assert together[row] == mix(SEEDS[[seed]], int(counter))[0]


def test_the_stream_is_fixed_for_ever() -> None:
    # Recorded episodes and results name seeds, so these numbers must never change.
    seeds = np.array([0, 1, 2**64 - 1], np.uint64)
    assert mix(seeds, 0).tolist() == [12035550249420947055, 6755974106381971767, 11977022717111315734]
    assert mix(seeds, 1).tolist() == [12935080325729570654, 13665441387248026780, 5806075909377686729]


def test_neighbouring_seeds_and_counters_do_not_repeat_each_other() -> None:
    drawn = np.concatenate([mix(SEEDS, counter) for counter in range(8)])
    assert len(np.unique(drawn)) == len(drawn)


def test_uniform_fills_the_unit_interval() -> None:
    draws = uniform(SEEDS, 4)
    assert draws.min() >= 0.0
    assert draws.max() < 1.0
    counts = np.histogram(draws, bins=20, range=(0, 1))[0]
    assert np.abs(counts - 3000).max() < 5 * np.sqrt(3000)


def test_draws_of_one_stream_are_uncorrelated() -> None:
    assert abs(np.corrcoef(uniform(SEEDS, 0), uniform(SEEDS, 1))[0, 1]) < 0.02


def test_randbelow_is_even_and_takes_a_bound_per_seed() -> None:
    counts = np.bincount(randbelow(SEEDS, 0, 6), minlength=6)
    assert len(counts) == 6
    assert np.abs(counts - 10_000).max() < 500
    bounds = 1 + np.arange(len(SEEDS)) % 5
    assert (randbelow(SEEDS, 0, bounds) < bounds).all()


def test_shuffles_are_permutations_and_all_alike() -> None:
    decks = shuffle(SEEDS, 0, 3)
    assert (np.sort(decks, axis=1) == np.arange(3)).all()
    counts = np.bincount(decks @ np.array([9, 3, 1]))
    counts = counts[counts > 0]
    assert len(counts) == 6
    assert np.abs(counts - 10_000).max() < 500


def test_a_deal_is_the_top_of_the_shuffle() -> None:
    assert (deal(SEEDS, 2, 6, 3) == shuffle(SEEDS, 2, 6)[:, :3]).all()
    with pytest.raises(ValueError, match="cannot deal 7 cards from a deck of 6"):
        deal(SEEDS, 0, 6, 7)
