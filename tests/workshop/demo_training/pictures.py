"""Small pictures, each with questions about it and their answers."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from tests.pictures import COLOURS, SIDE

HELD_OUT_SEED = 1_000_003  # the training has small seeds

BACKGROUNDS = ((255, 255, 255), (225, 225, 220), (150, 150, 155), (90, 90, 95), (25, 25, 30), (200, 225, 240))
SHAPES = ("circle", "square", "triangle", "star", "cross")
PLACES = (
    ("at the top left", "at the top", "at the top right"),
    ("on the left", "in the middle", "on the right"),
    ("at the bottom left", "at the bottom", "at the bottom right"),
)
MAX_COUNT = 6
_MIN_CONTRAST = 110  # between a colour and the background, summed over the channels
_SCALE = 4  # pictures are drawn larger and made smaller, most of them

# What may be true of a picture.
FACTS = {
    "colour": tuple(COLOURS),
    "shape": SHAPES,
    "place": tuple(itertools.chain.from_iterable(PLACES)),
    "digit": tuple(map(str, range(10))),
    "count": tuple(map(str, range(1, MAX_COUNT + 1))),
}

type Question = tuple[str, str]


@dataclass(frozen=True)
class Picture:
    """A picture, and the questions about it with their answers."""

    image: Image.Image
    facts: Mapping[str, str]  # by one of the names of FACTS
    questions: Sequence[Question]


class Painter:
    """Draws pictures at random."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def picture(self, kind: str = "") -> Picture:
        kind = kind or self.rng.choice(("shape", "place", "digit", "count"))
        scale = self.rng.choice((1, _SCALE, _SCALE))
        self.side = SIDE * scale
        background = self.rng.choice(BACKGROUNDS)
        self.image = Image.new("RGB", (self.side, self.side), self.jitter(background, 8))
        self.draw = ImageDraw.Draw(self.image)
        contrast = {name: sum(abs(a - b) for a, b in zip(COLOURS[name], background, strict=True)) for name in COLOURS}
        self.colour = self.rng.choice([name for name in COLOURS if contrast[name] >= _MIN_CONTRAST])
        self.fill = self.jitter(COLOURS[self.colour], 20)
        self.facts = {"colour": self.colour}
        questions = getattr(self, kind)()
        return Picture(self.image.resize((SIDE, SIDE), Image.Resampling.BILINEAR), self.facts, questions)

    def jitter(self, colour: tuple[int, int, int], width: int) -> tuple[int, ...]:
        return tuple(min(255, max(0, value + self.rng.randint(-width, width))) for value in colour)

    def shape(self) -> list[Question]:
        shape = self.facts["shape"] = self.rng.choice(SHAPES)
        size = self.rng.uniform(0.2, 0.45)
        self.paint(shape, self.rng.uniform(size, 1 - size), self.rng.uniform(size, 1 - size), size)
        return self.about(shape, f"{article(self.colour)} {self.colour} {shape}.")

    def place(self) -> list[Question]:
        shape, row, column = self.rng.choice(SHAPES), self.rng.randrange(3), self.rng.randrange(3)
        across, down = (1 / 6 + place / 3 + self.rng.uniform(-0.04, 0.04) for place in (column, row))
        self.paint(shape, across, down, self.rng.uniform(0.1, 0.14))
        place = PLACES[row][column]
        self.facts |= {"shape": shape, "place": place}
        return [
            (f"Where is the {shape}?", f"The {shape} is {place}."),
            ("Where is it?", f"It is {place}."),
            *self.about(shape, f"{article(self.colour)} {self.colour} {shape} {place}."),
        ]

    def about(self, shape: str, all_of_it: str) -> list[Question]:
        return [
            ("What colour is it?", f"It is {self.colour}."),
            (f"What colour is the {shape}?", f"The {shape} is {self.colour}."),
            ("What shape is it?", f"It is a {shape}."),
            ("What is in the picture?", all_of_it),
        ]

    def digit(self) -> list[Question]:
        digit = self.facts["digit"] = str(self.rng.randrange(10))
        font = ImageFont.load_default(self.side * self.rng.uniform(0.55, 0.95))
        shift = [0.5 + self.rng.uniform(-0.12, 0.12) for _ in range(2)]
        at = (self.side * shift[0], self.side * shift[1])
        self.draw.text(at, digit, self.fill, font, anchor="mm", stroke_width=self.rng.choice((0, 1)) * self.side / 40)
        return [
            ("What digit is it?", f"It is {article(digit).lower()} {digit}."),
            ("Which number do you see?", f"I see the number {digit}."),
            ("What colour is the digit?", f"The digit is {self.colour}."),
            ("What is in the picture?", f"{article(self.colour)} {self.colour} {digit}."),
        ]

    def count(self) -> list[Question]:
        shape, count = self.rng.choice(SHAPES), self.rng.randint(1, MAX_COUNT)
        self.facts |= {"shape": shape, "count": str(count)}
        cells = self.rng.sample([(row, column) for row in range(3) for column in range(3)], count)
        for row, column in cells:
            across, down = (1 / 6 + place / 3 + self.rng.uniform(-0.03, 0.03) for place in (column, row))
            self.paint(shape, across, down, self.rng.uniform(0.1, 0.14))
        shapes = f"{shape}{'' if count == 1 else 'es' if shape == 'cross' else 's'}"
        plural = f"{shape}{'es' if shape == 'cross' else 's'}"
        there_are = "There is" if count == 1 else "There are"
        return [
            (f"How many {plural} are there?", f"{there_are} {count} {shapes}."),
            ("How many shapes do you see?", f"I see {count}."),
            (f"What colour are the {plural}?", f"The {plural} are {self.colour}."),
            ("What is in the picture?", f"{count} {self.colour} {shapes}."),
        ]

    def paint(self, shape: str, across: float, down: float, size: float) -> None:
        """Draw a shape around a centre; all in parts of the side."""
        x, y, radius = (value * self.side for value in (across, down, size))
        turn = self.rng.uniform(-0.12, 0.12)

        def polygon(*corners: tuple[float, float]) -> None:
            """Corners by angle, in turns from the top, and distance from the centre."""
            angles = [(2 * math.pi * angle + turn, distance * radius) for angle, distance in corners]
            self.draw.polygon([(x + math.sin(a) * d, y - math.cos(a) * d) for a, d in angles], self.fill)

        match shape:
            case "circle":
                self.draw.ellipse((x - radius, y - radius, x + radius, y + radius), self.fill)
            case "square":
                polygon(*((corner / 4 + 1 / 8, 1.2) for corner in range(4)))
            case "triangle":
                polygon(*((corner / 3, 1.2) for corner in range(3)))
            case "star":
                polygon(*((corner / 10, 0.5 if corner % 2 else 1.25) for corner in range(10)))
            case "cross":
                for bar in (0.0, 0.25):
                    polygon(*((bar + half + side, 1.1) for half in (0, 0.5) for side in (-0.05, 0.05)))


def article(word: str) -> str:
    return "An" if word[0] in "aeiou8" else "A"
