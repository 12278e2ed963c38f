"""Pictures of play: a moment of an episode with a caption of players and score."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from ludus.games.pictures import Moment, colour_of_team, written_score
from ludus.store.files import atomic_write

LINE = 22
"""Height of a line of the caption, in pixels."""
TEXT_SIZE = 14
MARGIN = 8
_DARK, _LIGHT, _GREY = (16, 18, 22), (235, 238, 242), (150, 156, 166)

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def captioned(moment: Moment, width: int | None = None) -> Image.Image:
    """The picture, so wide if that is said, above a line for each team and one for the state of play."""
    picture = Image.fromarray(moment.draw())
    if width is not None and width != picture.width:
        height = max(1, round(picture.height * width / picture.width))
        shrinks = width < picture.width
        picture = picture.resize((width, height), Image.Resampling.BOX if shrinks else Image.Resampling.NEAREST)
    lines = len(moment.players) + 1
    whole = Image.new("RGB", (picture.width, picture.height + lines * LINE + MARGIN), _DARK)
    whole.paste(picture, (0, 0))
    _write_caption(ImageDraw.Draw(whole), moment, picture.height + MARGIN // 2 + LINE / 2, picture.width)
    return whole


def _write_caption(pen: ImageDraw.ImageDraw, moment: Moment, middle: float, width: int) -> None:
    font = ImageFont.load_default(TEXT_SIZE)
    for team, player in enumerate(moment.players):
        score = "" if moment.score is None else written_score(moment.score[team])
        room = width - 2 * MARGIN - pen.textlength(score, font) - MARGIN
        left = float(MARGIN)
        if len(moment.players) > 1:
            pen.ellipse((left, middle - 5, left + 10, middle + 5), fill=colour_of_team(team))
            left, room = left + 18, room - 18
        lost = moment.winner is not None and moment.winner != team
        colour = _GREY if lost else _LIGHT
        pen.text((left, middle), _fitting(pen, player, room, font), colour, font, anchor="lm")
        pen.text((width - MARGIN, middle), score, colour, font, anchor="rm")
        middle += LINE
    state = _fitting(pen, " · ".join(state_of_play(moment)), width - 2 * MARGIN, font)
    pen.text((MARGIN, middle), state, _GREY, font, anchor="lm")


def state_of_play(moment: Moment) -> list[str]:
    """Notes about a moment beside players and score, the most important first."""
    parts = [moment.outcome] if moment.ended else []
    if moment.episodes > 1:
        parts.append(f"episode {moment.episode} of {moment.episodes}")
    parts.append(f"step {moment.step}")
    if moment.clock is not None:
        parts.append(f"clock {moment.clock}")
    if moment.seat is not None:
        parts.append(f"seen from seat {moment.seat}")
    return parts


def _fitting(pen: ImageDraw.ImageDraw, text: str, room: float, font: Font) -> str:
    """The text, its end cut off where there is no room for it."""
    whole = text
    while text and pen.textlength(text if text == whole else text + "…", font) > room:
        text = text[:-1]
    return text if text == whole else text + "…"


def png(picture: Image.Image) -> bytes:
    """Quick rather than small: most pictures are flat areas, which stay small all the same."""
    written = BytesIO()
    picture.save(written, "png", compress_level=1)
    return written.getvalue()


def png_address(picture: NDArray[np.uint8]) -> str:
    """RGB [height, width, 3] as the address of an image that holds it."""
    return "data:image/png;base64," + base64.b64encode(png(Image.fromarray(picture))).decode()


FRAMES_PER_EPISODE = 256
"""At most so many are kept of an episode: every one, or else every second, fourth, ... and the last."""
END_SECONDS = 1.5
"""Seconds that the last picture of an episode stays."""
COLOURS = 128
SAMPLED = 24
"""Frames that the colours are chosen from."""


class Animation:
    """Takes the moments of episodes one after the other; `write` makes a file of them."""

    def __init__(self, *, frames_per_second: int, width: int | None = None) -> None:
        """`width`: of the pictures; None: as they are drawn."""
        self._width = width
        self._milliseconds = round(100 / frames_per_second) * 10  # a GIF counts in hundredths
        self._done: list[tuple[bytes, int]] = []
        """Frame and its milliseconds, of episodes that have ended. As PNG, a tenth of the size in memory."""
        self._frames: list[bytes] = []
        self._every = 1
        self._seen = 0

    def add(self, moment: Moment) -> None:
        """Keeps the moment if its turn has come. Ended episodes cannot be thinned out any more."""
        due = self._seen % self._every == 0
        self._seen += 1
        if due and not moment.ended and len(self._frames) == FRAMES_PER_EPISODE - 1:
            self._frames = self._frames[::2]
            self._every *= 2
            due = (self._seen - 1) % self._every == 0
        if due or moment.ended:
            self._frames.append(png(captioned(moment, self._width)))
        if moment.ended:
            times = [self._milliseconds] * (len(self._frames) - 1) + [round(END_SECONDS * 1000)]
            self._done += zip(self._frames, times, strict=True)
            self._frames, self._every, self._seen = [], 1, 0

    def write(self, path: Path) -> int:
        """Returns the number of frames."""
        frames = [frame for frame, _ in self._done]
        # One palette for all, or else still areas would flicker.
        sampled = frames[:: -(-len(frames) // SAMPLED)]
        palette = _montage([_opened(frame) for frame in sampled]).quantize(COLOURS)
        # Opened one after the other: all frames in full colour would be too much memory.
        shown = [_opened(frame).quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
        written = BytesIO()
        shown[0].save(
            written,
            "gif",
            save_all=True,
            append_images=shown[1:],
            duration=[milliseconds for _, milliseconds in self._done],
            loop=0,
            optimize=False,  # the palette is in order, and must stay the same in every frame
        )
        atomic_write(path, written.getvalue())
        return len(frames)


def _opened(frame: bytes) -> Image.Image:
    return Image.open(BytesIO(frame))


def _montage(pictures: Sequence[Image.Image]) -> Image.Image:
    width = max(picture.width for picture in pictures)
    whole = Image.new("RGB", (width, sum(picture.height for picture in pictures)))
    top = 0
    for picture in pictures:
        whole.paste(picture, (0, top))
        top += picture.height
    return whole
