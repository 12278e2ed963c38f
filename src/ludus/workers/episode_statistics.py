"""What learning players get out of the episodes that they are trained on."""

from __future__ import annotations

from collections import defaultdict

from ludus.data.records import Match, Result


class EpisodeStatistics:
    """Means over the episodes of matches that have ended since they were last taken."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
        """By name: a sum, and the episodes that it is over."""

    def note(self, match: Match, result: Result) -> None:
        """Evaluation counts for nobody: it trains nobody."""
        for index, side in enumerate(match.sides):
            measured = {"episode_score": result.score_sum[index], "episode_length": float(result.steps)}
            if result.reward_sum:
                measured["episode_reward"] = result.reward_sum[index]
            for player in set(side.trainees):
                for name, value in measured.items():
                    total, episodes = self._sums[f"{player}/{name}"]
                    self._sums[f"{player}/{name}"] = (total + value, episodes + result.episodes)

    def take(self) -> dict[str, float]:
        """By name; nothing of players that have ended no episode since."""
        found = {name: total / episodes for name, (total, episodes) in self._sums.items()}
        self._sums.clear()
        return found
