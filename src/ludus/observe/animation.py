"""Writes episodes as an animated GIF."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from PIL import Image

from ludus.data.moments import Moment
from ludus.observe.captions import captioned, png
from ludus.store.files import atomic_write

FRAMES_PER_EPISODE = 256
"""At most so many are kept of an episode: every one, or else every second, fourth, ... and the last."""
END_SECONDS = 1.5
"""How long the last picture of an episode stays."""
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
