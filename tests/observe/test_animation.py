"""Episodes as an animated GIF: its frames, their captions and times, and what is left out of long ones."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from made_up_moments import HEIGHT, WIDTH, bar, episode, moment
from numpy.typing import NDArray
from PIL import Image

from ludus.games.pictures import colour_of_team
from ludus.observe.pictures import END_SECONDS, FRAMES_PER_EPISODE, Animation, captioned, state_of_play


def frames(path: Path) -> list[tuple[NDArray[np.uint8], int]]:
    """Picture and milliseconds of each frame."""
    with Image.open(path) as image:
        assert image.format == "GIF"
        found = []
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            found.append((np.asarray(image.convert("RGB")), int(image.info["duration"])))
        return found


def test_every_moment_is_a_frame_and_the_end_stays_longer(tmp_path: Path) -> None:
    animation = Animation(frames_per_second=10)
    for shown in episode(5):
        animation.add(shown)
    assert animation.write(tmp_path / "bars.gif") == 6
    found = frames(tmp_path / "bars.gif")
    assert [time for _, time in found] == [100] * 5 + [END_SECONDS * 1000]
    pictures = [picture for picture, _ in found]
    for step, picture in enumerate(pictures):
        assert picture.shape[1] == WIDTH
        assert picture.shape[0] > HEIGHT, "there is a caption"
        np.testing.assert_allclose(picture[:HEIGHT].astype(int), bar(step + 1), atol=4)
    for before, after in pairwise(pictures):
        assert (before[:HEIGHT] != after[:HEIGHT]).any()
        assert (before[HEIGHT:] != after[HEIGHT:]).any(), "the caption counts the steps"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bars.gif"]


def test_a_long_episode_is_thinned_out_evenly_and_keeps_its_end(tmp_path: Path) -> None:
    animation = Animation(frames_per_second=50)
    drawn: list[int] = []
    steps = 5 * FRAMES_PER_EPISODE // 2
    for shown in episode(steps):
        step = shown.step
        animation.add(moment(step, ended=shown.ended, draw=lambda step=step: (drawn.append(step), bar(step))[1]))
    count = animation.write(tmp_path / "bars.gif")
    assert FRAMES_PER_EPISODE // 2 < count <= FRAMES_PER_EPISODE
    assert count == len(range(0, steps, 4)) + 1
    assert drawn[-1] == steps
    assert len(drawn) < steps, "what is not kept is not drawn"


def test_episodes_follow_each_other_whole(tmp_path: Path) -> None:
    animation = Animation(frames_per_second=20)
    for number, steps in enumerate((FRAMES_PER_EPISODE + 10, 3), start=1):
        for shown in episode(steps, episode=number, episodes=2):
            animation.add(shown)
    assert animation.write(tmp_path / "bars.gif") == len(range(0, FRAMES_PER_EPISODE + 10, 2)) + 1 + 4
    times = [time for _, time in frames(tmp_path / "bars.gif")]
    assert times.count(END_SECONDS * 1000) == 2


@pytest.mark.parametrize("width", [60, 240])
def test_pictures_can_be_made_smaller_and_larger(width: int) -> None:
    plain, sized = captioned(moment()), captioned(moment(), width)
    assert sized.width == width
    assert plain.height - HEIGHT == sized.height - HEIGHT * width // WIDTH, "the caption is as high as before"


def test_the_caption_has_a_dot_of_each_teams_colour_and_marks_the_loser() -> None:
    def caption(**changed: object) -> NDArray[np.uint8]:
        return np.asarray(captioned(moment(**changed)))[HEIGHT:]  # type: ignore[arg-type]

    for team in (0, 1):
        assert (caption() == colour_of_team(team)).all(axis=-1).any()
    assert (caption() != caption(players=("long", "shore"))).any()
    assert (caption() != caption(score=(2.0, 0.0))).any()
    even = caption(score=(1.0, -1.0))
    assert caption(ended=True)[:30].max() == even[:30].max(), "the winner is as bright as before"
    alone = caption(players=("long",), score=(3.0,))
    assert not (alone == colour_of_team(0)).all(axis=-1).any()


def test_a_long_name_is_cut_and_never_covers_the_score() -> None:
    image = captioned(moment(players=("x" * 200, "short"), score=(123.0, 0.0)))
    short = captioned(moment(players=("x", "short"), score=(123.0, 0.0)))
    score = (WIDTH - 30, HEIGHT, WIDTH, HEIGHT + 26)
    assert image.crop(score).tobytes() == short.crop(score).tobytes()


def test_the_state_of_play_says_what_is_known() -> None:
    assert state_of_play(moment(7)) == ["step 7"]
    said = state_of_play(moment(9, ended=True, episode=2, episodes=3, clock=40, seat=1))
    assert said == ["long wins", "episode 2 of 3", "step 9", "clock 40", "seen from seat 1"]
    assert state_of_play(moment(ended=True, score=(0.5, 0.5)))[0] == "draw"
