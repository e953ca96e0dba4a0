"""Texts of one meaning in the demo's four languages, for the embedder: sentences, questions and words."""

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tests.workshop.demo_training.relations import FACTS, RELATIONS, Row, read_answers, read_lines, read_table
from tests.workshop.demo_training.wording import VOCABULARY, is_held_out, made_up_word, phrase

LANGUAGES = ("english", "spanish", "french", "japanese")
NAMES = tuple(dict.fromkeys(LANGUAGES, name) for name in read_lines("names"))
WORDS = {row["word"]: {**row, "english": row["word"]} for row in read_table("words")}
GROUPS: list[list[str]] = json.loads((FACTS / "word_groups.json").read_text(encoding="utf-8"))
FORMS: Mapping[str, Mapping[str, list[str]]] = json.loads((FACTS / "parallel_forms.json").read_text(encoding="utf-8"))
CAPITALS, COLOURS = read_table("parallel_capitals"), read_table("parallel_colours")
TEXTS = (*read_answers("recitations"), *read_answers("small_talk"))
# Without the relations between numbers: a text's vector does not calculate.
ENGLISH_FACTS = tuple(each for each in RELATIONS if each.skill not in ("sums", "differences", "products"))

_CONTRACTIONS = {
    "spanish": ((r"\bde el\b", "del"), (r"\ba el\b", "al")),
    "french": (
        (r"(?i)\bde le\b", "du"),  # also of Le Caire
        (r"\bde les\b", "des"),
        (r"(?i)\bà le\b", "au"),
        (r"(?i)\bque (?=[aeiouhé])", "qu'"),
    ),
}


def _rows(kind: str) -> tuple[Row, ...]:
    return tuple(row for row in read_table("parallel") if row["kind"] == kind)


SUBJECTS, PREDICATES, WEATHERS, PHRASES = map(_rows, ("subject", "predicate", "weather", "phrase"))
WHEN_OR_WHERE = (*_rows("place"), *_rows("time"))


def third_person(predicate: str) -> str:
    """`wash the car` -> `washes the car`."""
    verb, space, rest = predicate.partition(" ")
    if verb.endswith(("s", "sh", "ch", "x", "o")):
        verb += "e"
    elif re.search("[^aeiou]y$", verb):
        verb = f"{verb[:-1]}ie"
    return f"{verb}s{space}{rest}"


@dataclass(frozen=True, slots=True)
class Meaning:
    """A sentence in any language, and the questions that it answers."""

    statement: str  # key of FORMS
    questions: tuple[str, ...]
    slots: Mapping[str, Row]

    def text(self, rng: random.Random, form: str, language: str) -> str:
        values = {name: row[language] for name, row in self.slots.items()}
        if "predicate" in values:
            values["does"] = third_person(values["predicate"]) if language == "english" else values["predicate"]
        text = rng.choice(FORMS[language][form]).format(**values)
        for pattern, replacement in _CONTRACTIONS.get(language, ()):
            text = re.sub(pattern, replacement, text)
        return text

    def is_answered_by(self, question: str, other: "Meaning") -> bool:
        """Whether another sentence has all but the part that a question of this one is about."""
        about = {"who": "subject", "what": "predicate"}.get(question, "when_or_where")
        known = (other.slots[name] == row for name, row in self.slots.items() if name != about)
        return question in other.questions and all(known)

    @property
    def is_held_out(self) -> bool:
        """Whether no text of this sentence is trained, in any language."""
        return is_held_out("|".join(row["english"] for row in self.slots.values()))


def draw_sentence(rng: random.Random, held_out: bool = False) -> Meaning:
    """Draw who does what, where or when."""
    while True:
        subject = rng.choice(NAMES) if rng.random() < 0.2 and not held_out else rng.choice(SUBJECTS)
        place = rng.choice(WHEN_OR_WHERE)
        slots = {"subject": subject, "predicate": rng.choice(PREDICATES), "when_or_where": place}
        meaning = Meaning("statement", ("who", "what", place["kind"]), slots)
        if meaning.is_held_out == held_out:
            return meaning


def draw_fact(rng: random.Random) -> Meaning:
    """Draw a capital, a colour, or the weather of a city."""
    kind = rng.choice(("capital", "weather", "colour"))
    if kind == "colour":
        thing = rng.choice(COLOURS)
        return Meaning(kind, ("which_colour",), {"thing": thing, "colour": WORDS[thing["colour"]]})
    country = rng.choice(CAPITALS)
    capital = {language: country[f"capital_{language}"] for language in LANGUAGES}
    other = {"country": country} if kind == "capital" else {"weather": rng.choice(WEATHERS)}
    return Meaning(kind, (f"which_{kind}",), {"capital": capital, **other})


def _of_meaning(rng: random.Random, meaning: Meaning) -> tuple[str, str]:
    form = rng.choice(meaning.questions) if rng.random() < 0.5 else meaning.statement
    first, second = rng.choices(LANGUAGES, k=2)
    return meaning.text(rng, form, first), meaning.text(rng, meaning.statement, second)


def _of_sentence(rng: random.Random) -> tuple[str, str]:
    return _of_meaning(rng, draw_sentence(rng))


def _of_fact(rng: random.Random) -> tuple[str, str]:
    return _of_meaning(rng, draw_fact(rng))


def _of_english_fact(rng: random.Random) -> tuple[str, str]:
    relation = rng.choice(ENGLISH_FACTS)
    row = rng.choice(relation.rows)
    return phrase(rng, relation.questions, row), relation.answer.format(**row)


def _of_words(rng: random.Random) -> tuple[str, str]:
    """Draw a word or a phrase in two languages, or two words of one group."""
    if rng.random() < 0.2:
        row = rng.choice(PHRASES)
        first, second = (row[language] for language in rng.sample(LANGUAGES, 2))
        return first, second
    group = rng.choice([*GROUPS, list(WORDS)])
    word = rng.choice(group)
    other = rng.choice(group) if group in GROUPS and rng.random() < 0.25 else word
    first, second = rng.sample(LANGUAGES, 2)
    return WORDS[word][first], WORDS[other][second]


def _of_text(rng: random.Random) -> tuple[str, str]:
    """Draw a part of a longer English text, and its question or another part."""
    questions, answer = rng.choice(TEXTS)
    words = answer.split()
    starts = rng.choices(range(max(1, len(words) - 11)), k=2)
    first, second = (" ".join(words[start : start + 12]) for start in starts)
    return (rng.choice(questions) if rng.random() < 0.5 else first), second


def _of_any_words(rng: random.Random) -> tuple[str, str]:
    """Draw words that form no sentence, and a second text with some of them: texts are near if they share words."""
    words = [made_up_word(rng) if rng.random() < 0.5 else rng.choice(VOCABULARY) for _ in range(rng.randint(2, 10))]
    return " ".join(words), " ".join(rng.sample(words, rng.randint((len(words) + 1) // 2, len(words))))


_DRAWS = (
    (_of_sentence, 0.45),
    (_of_fact, 0.15),
    (_of_english_fact, 0.15),
    (_of_words, 0.1),
    (_of_any_words, 0.1),
    (_of_text, 0.05),
)


def draw_pair(rng: random.Random) -> tuple[str, str]:
    """Draw two texts that belong together. In one pair of ten, the second text has another one's sentence beside it."""
    draws, shares = zip(*_DRAWS, strict=True)
    first, second = rng.choices(draws, shares)[0](rng)
    if rng.random() < 0.1:
        both = [second, draw_pair(rng)[1]]
        rng.shuffle(both)
        second = " ".join(both)
    return first, second
