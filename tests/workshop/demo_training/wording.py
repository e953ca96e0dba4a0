"""Random wordings of questions, invented words and names, and arbitrary texts to repeat."""

import random
import zlib
from collections.abc import Sequence

from tests.workshop.demo_training.relations import COUNTRIES, EMOJI, Row, read_lines, read_table

HELD_OUT_SHARE = 8  # one question in HELD_OUT_SHARE is kept for the evaluation
MAX_TRIES = 200

NAMES = read_lines("names")

WRAPPERS = (
    "Please tell me: {}",
    "Hello! {}",
    "{} Thanks!",
    "{} Please.",
    "Quick question: {}",
    "Another question: {}",
    "Hi, {}",
    "Can you help me? {}",
    "{} I forgot.",
)

MARKUP = (
    "<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|im_start|>user", "<|fim_prefix|>", "<tool_call>", "</tool_call>",
    "<tool_response>", "</tool_response>", "<b>", "</b>", "<br/>", "&amp;", "&lt;", '{"a": 1}', "[1, 2]", "{{ x }}",
    "{% if %}", "```", "**bold**", "# title", "data: [DONE]", "\\n", "a/b", "x == y", "https://example.org/?q=1",
    "foo@example.org", "$HOME", "C:\\temp", "100%", "--help", "\t", "«oui»", "¿qué?", "naïve", "straße", "Ωmega",
)  # fmt: skip

SYLLABLES = read_lines("syllables")
ENDINGS = ("", "", "n", "r", "s", "l", "th", "x", "nd", "ck", "m", "rt")

ALPHABETS = (
    (0x21, 0x7E), (0x21, 0x7E), (0xA1, 0xFF), (0x391, 0x3C9), (0x410, 0x44F), (0x3041, 0x3093), (0x30A1, 0x30F3),
    (0x4E00, 0x4FFF), (0xAC00, 0xAFFF), (0x1F300, 0x1F5FF), (0x1F600, 0x1F64F), (0x1F900, 0x1F9FF),
)  # fmt: skip

VOCABULARY = tuple(
    [word for entry in read_table("words") for word in entry.values()]
    + [entry[column] for entry in COUNTRIES for column in ("country", "capital")]
    + [entry["noun"] for entry in EMOJI]
    + [entry["word"] for entry in read_table("opposites")]
    + [entry["colour"] for entry in read_table("colours")]
    + list(read_lines("common_words"))
)


class NotHeldOut(LookupError):
    """The evaluation must draw something else: all wordings of this question are trained."""


def draw_early(rng: random.Random, items: Sequence[str]) -> str:
    """Draw an item, the first ones far more often than the last: with three, in 86, 11 and 3 of 100 cases."""
    return rng.choices(items, [(place + 1) ** -3 for place in range(len(items))])[0]


def is_held_out(text: str) -> bool:
    """Whether a question or a name is kept for the evaluation. The training never shows it."""
    return zlib.crc32(text.encode()) % HELD_OUT_SHARE == 0


def casual(text: str) -> str:
    return text.lower().rstrip(".?!")


def decorate(rng: random.Random, text: str, keeps_case: bool = False) -> str:
    """Leave most questions alone, wrap some in courtesies, and write some carelessly."""
    luck = rng.random()
    if luck < 0.70:
        return text
    if luck < 0.85:
        return rng.choice(WRAPPERS).format(text)
    return casual(text) if luck < 0.94 and not keeps_case else text.rstrip(".?!")


def word_question(
    rng: random.Random, templates: Sequence[str], row: Row, held_out: bool = False, keeps_case: bool = False
) -> tuple[str, str]:
    """Word a question from one of `templates`; return it and the template. It is held out exactly if `held_out`.

    With `keeps_case` it is never put in lower case, for answers that copy from it.
    Canonical wordings are never held out: the first template undecorated or, where no row varies them, all of them.

    Raises:
        NotHeldOut: no wording of this row seems to be held out.
    """
    canonical = {template.format(**row) for template in (templates[:1] if row else templates)}
    for _ in range(MAX_TRIES):
        template = rng.choice(templates)
        text = decorate(rng, template.format(**row), keeps_case)
        if held_out == (is_held_out(text) and text not in canonical):
            return text, template
    raise NotHeldOut(templates[0].format(**row))


def phrase(rng: random.Random, templates: Sequence[str], row: Row, held_out: bool = False) -> str:
    """Return only the question of `word_question`."""
    return word_question(rng, templates, row, held_out)[0]


def careless(rng: random.Random, text: str) -> str:
    """Decorate a text without courtesies, such as a greeting."""
    return casual(text) if rng.random() < 0.1 else text


def made_up_word(rng: random.Random) -> str:
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 3))) + rng.choice(ENDINGS)


def person(rng: random.Random, held_out: bool = False) -> str:
    """Draw a first name, real or made up."""
    while True:
        name = rng.choice(NAMES) if rng.random() < 0.5 else made_up_word(rng).capitalize()
        if len(name) > 1 and is_held_out(name) == held_out:
            return name


def random_characters(rng: random.Random) -> str:
    first, last = rng.choice(ALPHABETS)
    return "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 8)))


def piece(rng: random.Random) -> str:
    """Draw one piece of a text to repeat: a word mostly, or a number, an emoji, markup, anything."""
    luck = rng.random()
    if luck < 0.45:
        word = rng.choice(VOCABULARY)
        return word.capitalize() if rng.random() < 0.2 else word
    if luck < 0.60:
        return made_up_word(rng) if rng.random() < 0.7 else made_up_word(rng).capitalize()
    if luck < 0.70:
        return str(rng.randrange(10 ** rng.randint(1, 6)))
    if luck < 0.80:
        return rng.choice(EMOJI)["emoji"]
    if luck < 0.86:
        return rng.choice(MARKUP)
    if luck < 0.92:
        return rng.choice(NAMES)
    return random_characters(rng)


def text_to_repeat(rng: random.Random) -> str:
    """Draw a text without white space at its ends, because a prompt cannot show it."""
    length = rng.randint(1, 6) if rng.random() < 0.7 else rng.randint(6, 30)
    separator = rng.choice((" ", " ", " ", " ", ", ", "", "\n", " - "))
    text = separator.join(piece(rng) for _ in range(length)).strip()
    text += rng.choice(("", "", ".", "!", "?"))
    return text or text_to_repeat(rng)
