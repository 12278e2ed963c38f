"""Bad input: what must happen to it, and the tests that hold it. `python -m matrix --inputs` runs them all."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
COLUMNS = ("#", "input", "must happen", "held by", "result")
LIMIT_S = 300

INPUTS: dict[int, tuple[str, str, tuple[str, ...]]] = {
    1: (
        "unknown config key",
        "refused, with the nearest",
        (
            "test_config.py::test_a_wrong_override_names_the_path_and_the_nearest_right_one",
            "test_config.py::test_a_wrong_file_says_what_is_wrong",
        ),
    ),
    2: (
        "branch probabilities that sum to 0.99, negative, NaN",
        "refused, with the sum",
        ("league/test_matchmaking.py::test_mixtures_that_are_no_distribution_are_refused_with_their_sum",),
    ),
    3: (
        "unknown PFSP name, power below 0",
        "refused, with the names",
        ("league/test_matchmaking.py::test_unknown_weightings_are_refused",),
    ),
    4: ("snapshot interval 0, negative, 1e30", "refused", ("league/test_promotion.py", "test_experiment.py")),
    5: (
        "no main agent; empty league at the first match",
        "refused; seeded with the first snapshot",
        (
            "league/test_rules.py::test_impossible_leagues_are_refused_by_name",
            "league/test_matchmaking.py::test_an_empty_pool_gives_self_play",
            "workers/test_controller.py::test_the_first_snapshot_is_of_the_weights_at_the_start",
        ),
    ),
    6: (
        "line-ups for other numbers of players than the game has",
        "refused, with the number (leagues of any number of teams are supported)",
        ("test_experiment.py::test_a_line_up_that_does_not_fit_the_game_is_named",),
    ),
    7: (
        "observation outside its space, wrong dtype or shape",
        "refused, with the field",
        ("games/test_check.py", "games/isolation/test_garbage.py", "data/test_trajectory.py"),
    ),
    8: (
        "policy action outside its mask",
        "never drawn; refused where it is recorded",
        (
            "models/test_heads_bruteforce.py::test_impossible_actions_are_never_drawn",
            "models/test_decisions.py::test_recorded_illegal_action_is_refused_only_where_valid",
        ),
    ),
    9: (
        "mask without a legal option",
        "named error, no NaN",
        (
            "models/test_decisions.py::test_no_legal_option_is_named",
            "games/isolation/test_garbage.py::test_a_seat_without_a_legal_option_is_named",
        ),
    ),
    10: (
        "rewards that are not zero-sum where that is declared",
        "named by `ludus check`, with the pair",
        ("games/test_check.py::test_a_broken_promise_is_named_with_step_and_value",),
    ),
    11: (
        "result of an unknown match or an expired lease",
        "refused, not counted",
        (
            "store/test_ledger.py::test_unknown_matches_are_refused",
            "league/test_matches.py::test_unknown_matches_are_refused",
        ),
    ),
    12: (
        "two results with different outcomes",
        "the first stands, both are named",
        (
            "store/test_ledger.py::test_the_first_end_of_a_match_stands",
            "store/test_ledger.py::test_both_outcomes_are_named",
        ),
    ),
    13: (
        "outcome that is none",
        "refused",
        (
            "league/test_matches.py::test_results_that_cannot_be_are_refused_and_the_match_stays_open",
            "workers/test_controller.py::test_what_cannot_be_a_result_never_reaches_the_ledger",
        ),
    ),
    14: (
        "checkpoint that is a pickle with os.system",
        "refused unread",
        (
            "store/test_tensors.py::test_pickles_are_refused_unread",
            "workers/test_foreign_weights.py::test_a_file_that_would_execute_is_refused_and_does_not",
            "cli/test_models_command.py::test_a_checkpoint_that_would_execute_is_refused",
        ),
    ),
    15: (
        "checkpoint empty, cut, of another network, in half precision",
        "named refusal, the last good one is used",
        (
            "store/test_checkpoints.py::test_a_cut_at_any_byte_falls_back_to_the_one_before",
            "store/test_model_pool.py::test_other_weights_or_a_pickle_in_place_are_refused",
            "workers/test_foreign_weights.py::test_safetensors_of_half_precision",
            "cli/test_models_command.py::test_other_networks_are_refused",
        ),
    ),
    16: (
        "archive with `../`, an absolute path, a symbolic link",
        "files stay below the folder; no link is made",
        ("cluster/test_user_code.py::test_an_archive_writes_nothing_outside_its_folder",),
    ),
    17: (
        "1 KB that declares 50 GB",
        "refused before anything is allocated",
        ("store/test_tensors.py::test_a_small_file_that_declares_50_gigabytes_is_refused_unallocated",),
    ),
    18: (
        "run folder or ledger of a newer version",
        "refused, with both versions",
        (
            "store/test_run_folder.py::test_a_newer_format_is_refused_with_both_versions",
            "store/test_ledger.py::test_a_newer_schema_is_refused_with_both_versions",
        ),
    ),
    19: (
        "player name with `/`, newline, NUL, 10 kB, right-to-left marks, SQL",
        "escaped or refused; files stay in the folder",
        (
            "store/test_model_pool.py::test_hostile_player_names_stay_in_the_folder",
            "store/test_model_pool.py::test_deceiving_player_names_are_refused",
            "store/test_atomic_files.py",
        ),
    ),
    20: (
        "HTTP without a token, with a wrong Host, another site's Origin, DELETE",
        "401, 403 or 405; nothing changes",
        ("observe/web/test_security.py", "observe/web/test_dashboard.py::test_nothing_can_be_changed"),
    ),
    21: (
        "bind to 0.0.0.0 without a token",
        "refuses to start",
        (
            "observe/web/test_security.py::test_another_address_needs_a_token",
            "services/test_registry.py::test_nobody_listens_to_other_machines_without_a_token",
            "cli/test_serve_command.py::test_other_machines_are_let_in_with_a_token_only",
        ),
    ),
    22: (
        "message of gigabytes, or one byte at a time",
        "limits of size and time; others go on",
        (
            "games/remote/test_server_faults.py::test_a_message_that_is_too_long_is_refused",
            "games/remote/test_shortcut.py::test_frames_above_the_limit_are_neither_sent_nor_taken",
            "services/test_server.py",
        ),
    ),
    23: (
        "YAML with `!!python/object`, a billion laughs",
        "refused by a safe loader with limits",
        ("test_config.py::test_a_bad_yaml_file_is_refused",),
    ),
    24: (
        "ledger read-only, of somebody else, in a place that cannot be written",
        "named refusal",
        (
            "store/test_ledger.py::test_places_that_cannot_be_written_are_named",
            "faults/test_disk_faults.py::test_a_read_only_run_is_refused_by_name_and_can_be_looked_at",
        ),
    ),
    25: (
        "payoff that is disconnected, all draws, of one player",
        "not identified; no NaN",
        ("league/test_ratings.py", "league/test_measures.py::test_what_cannot_be_identified_is_named"),
    ),
    26: (
        "seed that is negative or 2^64",
        "refused; every other is recorded exactly",
        (
            "store/test_run_folder.py::test_seeds_out_of_range_are_refused",
            "league/test_league.py",
            "test_experiment.py",
        ),
    ),
}


def run(state: Path) -> bool:
    """Run the tests of each row and keep what came of them; whether all held."""
    results = {}
    for number, (_, _, tests) in INPUTS.items():
        words = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:xdist",
            "-o",
            "addopts=",
            *(f"tests/{test}" for test in tests),
        ]
        try:
            done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
            last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-200:]
            results[number] = {"held": done.returncode == 0, "told": re.sub(r" in [\d.]+s.*", "", last).strip("= ")}
        except subprocess.TimeoutExpired:
            results[number] = {"held": False, "told": f"no end within {LIMIT_S} s"}
        print(f"input {number:2}: {results[number]}", flush=True)
    state.write_text(json.dumps(results))
    return all(result["held"] for result in results.values())


def table(state: Path) -> list[list[str]]:
    results = json.loads(state.read_text()) if state.exists() else {}
    return [
        [str(number), given, must, ", ".join(_short(tests)), _result(results.get(str(number)))]
        for number, (given, must, tests) in INPUTS.items()
    ]


def _short(tests: tuple[str, ...]) -> Iterator[str]:
    for test in tests:
        yield f"`{test.replace('::', '` `')}`"


def _result(result: dict[str, object] | None) -> str:
    if result is None:
        return "not run"
    return str(result["told"]) if result["held"] else f"**{result['told']}**"
