"""Every metric of a run: its name, its unit and what it means. Names are the same in every output but Prometheus (see
`series_name`). Words in capitals stand for many: PLAYER, HEAD (of an action), REWARD, UPDATES."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    unit: str
    meaning: str
    counts: bool = False
    """Only grows, but for a run that falls back to a checkpoint."""


@dataclass(frozen=True, slots=True)
class Found:
    """A metric and what stands in its name for the words in capitals."""

    metric: Metric
    labels: Mapping[str, str]


METRICS = (
    Metric("time", "Unix time, s", "When the row was written."),
    Metric("decisions", "decisions", "All learning players have trained on so many: the x-axis.", counts=True),
    Metric("decisions_per_s", "decisions/s", "Of the last ten seconds."),
    Metric("episodes", "episodes", "Played in finished matches (serial runtime: in all).", counts=True),
    Metric("matches", "matches", "Finished.", counts=True),
    Metric("updates", "updates", "Of all learning players, by the batches that they trained on.", counts=True),
    Metric("restarts", "restarts", "Of workers that died or hung.", counts=True),
    Metric("void_in_a_row", "matches", "That the game has made void since one was last finished; absent: none."),
    Metric("metrics_lost", "rows", "Of metrics that could not be written; absent: none.", counts=True),
    Metric("dropped_reward", "reward", "Sum of |reward| that came before a seat's first decision."),
    Metric("queue_wait", "s", "The learner waited so long for trajectories before this update."),
    Metric("actor_wait", "share", "Of the time since the update before, actors waited for the learner."),
    Metric("inference/rows_per_batch", "rows", "Decided in one call of the policy worker."),
    Metric("inference/requests_per_batch", "requests", "Of actors, answered by one call."),
    Metric("inference/wait_ms", "ms", "A request waited before its batch began."),
    Metric("cluster/nodes", "nodes", "That take part."),
    Metric("cluster/bytes_per_s", "bytes/s", "Of trajectories, sent to the learner's node."),
    Metric("windows", "windows", "Drawn from the dataset (ludus clone).", counts=True),
    Metric("epochs", "passes", "Through the dataset, counted by decisions (ludus clone)."),
    Metric("PLAYER/episode_reward", "reward", "Of one seat over a whole episode, in matches that it learned from."),
    Metric("PLAYER/episode_score", "score", "Of its side at the end of an episode."),
    Metric(
        "PLAYER/nash_conv", "score", "Exact NashConv of the averaged weights of its newest snapshot; 0: unbeatable."
    ),
    Metric("PLAYER/nash_conv_decisions", "decisions", "What that snapshot was trained on."),
    Metric(
        "PLAYER/exploiter_win_rate",
        "win rate",
        "Of an exploiter trained against its latest measured snapshot (evaluation.exploiters): a lower bound.",
    ),
    Metric(
        "PLAYER/exploiter_score",
        "score",
        "Mean score of that exploiter; where teams have roles, its gain over the snapshot.",
    ),
    Metric("PLAYER/exploited_decisions", "decisions", "What the snapshot was trained on that it played against."),
    Metric("PLAYER/episode_length", "steps", "Of the table, from reset to the end."),
    Metric("PLAYER/policy_loss", "", "What the policy is trained on."),
    Metric("PLAYER/policy_loss.REWARD", "", "The part of a further reward."),
    Metric("PLAYER/value_loss", "", "Error of the value; falls as it predicts better."),
    Metric("PLAYER/value_loss.REWARD", "", "Of a further reward."),
    Metric("PLAYER/upgo_loss", "", "Self-imitation of what went better than expected."),
    Metric("PLAYER/teacher_loss", "", "Distance from the teacher, weighted."),
    Metric("PLAYER/teacher_kl.HEAD", "nats", "Distance from the teacher, by head."),
    Metric("PLAYER/magnet_kl", "nats", "Distance from the magnet."),
    Metric("PLAYER/search_entropy", "nats", "How undecided the searches were that the policy learns from."),
    Metric(
        "PLAYER/entropy",
        "nats",
        "How undecided the policy is; 0: always the same action. Real numbers: in 256 levels. AlphaStar: shares.",
    ),
    Metric("PLAYER/entropy.HEAD", "share of the most", "By head, where it is in use."),
    Metric("PLAYER/kl", "nats", "How far the policy moved from the one that acted."),
    Metric("PLAYER/average_kl", "nats", "Distance of the averaged policy from the live one; every tenth update."),
    Metric(
        "PLAYER/constant_policy",
        "share",
        "1: it gives all positions the same distribution; every tenth update. On the device: of gradient steps.",
    ),
    Metric("PLAYER/clip_fraction", "share", "Of decisions whose ratio was clipped."),
    Metric("PLAYER/clip_fraction.HEAD", "share", "The same by group of heads."),
    Metric("PLAYER/explained_variance", "share", "Of the returns, by the value; 1: perfect, 0: a constant."),
    Metric("PLAYER/explained_variance.REWARD", "share", "Of a further reward."),
    Metric("PLAYER/learning_rate", "", "Of this update."),
    Metric("PLAYER/gradient_steps", "steps", "Taken in this update."),
    Metric("PLAYER/value_only", "1", "Only the value is trained, and the policy stays as it is."),
    Metric("PLAYER/lag", "updates", "By which the weights that acted were older than those that learned."),
    Metric("PLAYER/max_lag", "updates", "The oldest of them."),
    Metric("PLAYER/lag_share.UPDATES", "share", "Of decisions that were so many updates old."),
    Metric("PLAYER/reused", "share", "Of decisions that an update before has trained on too."),
    Metric("PLAYER/recompute_lag", "updates", "By which the buffer worker's weights were older."),
    Metric("PLAYER/stale", "decisions", "Not trained on, because they were too old.", counts=True),
    Metric("PLAYER/unused", "decisions", "Not trained on in the device runtime: docs/gpu.md.", counts=True),
    Metric("PLAYER/dropped", "decisions", "Thrown away, because the buffer was full.", counts=True),
    Metric("PLAYER/refused", "decisions", "Not trained on, because of a NaN or an infinity.", counts=True),
    Metric("PLAYER/skipped", "gradient steps", "Not taken, because the loss was not finite.", counts=True),
    Metric("PLAYER/loss", "", "Of cloning: minus the log-probability of recorded actions, and more."),
    Metric("PLAYER/accuracy.HEAD", "share", "Of recorded choices that the policy finds likeliest."),
    Metric("PLAYER/log_prob.HEAD", "nats", "Of recorded choices."),
    Metric("PLAYER/impossible", "actions", "Recorded ones that the policy can never take.", counts=True),
    Metric("PLAYER/validation.loss", "", "Of cloning, on episodes that are never trained on."),
    Metric("PLAYER/validation.accuracy.HEAD", "share", "The same there."),
    Metric("PLAYER/validation.log_prob.HEAD", "nats", "The same there."),
)

_WORD = re.compile(r"\b[A-Z]{2,}\b")
_PARTS = {"PLAYER": r"[^/]+"}


@cache
def _pattern(name: str) -> re.Pattern[str]:
    def part(word: re.Match[str]) -> str:
        return f"(?P<{word[0].lower()}>{_PARTS.get(word[0], '.+')})"

    escaped = "".join(
        piece if _WORD.fullmatch(piece) else re.escape(piece) for piece in re.split(f"({_WORD.pattern})", name)
    )
    return re.compile(_WORD.sub(part, escaped))


@cache
def find_metric(name: str) -> Found:
    """The metric with this name. A name that is not declared is described by its name alone."""
    for metric in METRICS:
        if match := _pattern(metric.name).fullmatch(name):
            return Found(metric, match.groupdict())
    player, slash, rest = name.partition("/")
    if slash:
        return Found(Metric(f"PLAYER/{rest}", "", "Not declared."), {"player": player})
    return Found(Metric(name, "", "Not declared."), {})


def series_name(metric: Metric) -> str:
    """Its name in Prometheus: `main/entropy` is `ludus_entropy{player="main"}`, `main/entropy.unit` is
    `ludus_entropy_by_head{player="main", head="unit"}`, and what counts ends with `_total`."""
    words = [word.lower() for word in _WORD.findall(metric.name) if word != "PLAYER"]
    plain = _WORD.sub("", metric.name.removeprefix("PLAYER/")).strip("./")
    name = "ludus_" + re.sub(r"\W", "_", plain, flags=re.ASCII)
    return name + "".join(f"_by_{word}" for word in words) + ("_total" if metric.counts else "")


def as_markdown() -> str:
    """The table of docs/metrics.md: `python -m ludus.observe.metric_names`."""
    lines = ["| name | unit | meaning | in Prometheus |", "|---|---|---|---|"]
    lines += [
        f"| `{one.name}` | {one.unit} | {one.meaning.replace('|', chr(92) + '|')} | `{series_name(one)}` |"
        for one in METRICS
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(as_markdown())
