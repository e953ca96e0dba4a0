"""The facts of the demo model: tables, and the templates of questions about each row."""

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

FACTS = Path(__file__).parent / "facts"

Row = Mapping[str, str]


@dataclass(frozen=True)
class FollowUp:
    """A shorter question about another row, understood from the exchange before it."""

    template: str
    keeps: str = ""  # the column that keeps its value of the row before


@dataclass(frozen=True)
class Relation:
    """Templates over the columns of a table; a column with a capital initial has its value capitalised."""

    skill: str
    questions: tuple[str, ...]  # the first is canonical: never held out
    answer: str
    short: str  # the answer to "Answer in one word."
    follow_ups: tuple[FollowUp, ...]
    rows: tuple[Row, ...]
    subject: str = ""  # the column that an unknown word may replace, for a question without an answer


def capitalise(text: str) -> str:
    """Capitalise the first character only: `str.capitalize` would lower the rest."""
    return text[:1].upper() + text[1:]


def row(**columns: str) -> Row:
    """Add the capitalised twin of every column."""
    return columns | {name[:1].upper() + name[1:]: capitalise(value) for name, value in columns.items()}


def read_table(name: str) -> tuple[Row, ...]:
    """Read a tab-separated table of `facts/`, whose first line names the columns."""
    with (FACTS / f"{name}.tsv").open(encoding="utf-8", newline="") as file:
        return tuple(row(**columns) for columns in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def read_lines(name: str) -> tuple[str, ...]:
    """Read a list of `facts/`, one item a line."""
    return tuple((FACTS / f"{name}.txt").read_text(encoding="utf-8").splitlines())


def read_answers(name: str) -> tuple[tuple[tuple[str, ...], str], ...]:
    """Read fixed answers of `facts/` as pairs (questions, answer)."""
    entries = json.loads((FACTS / f"{name}.json").read_text(encoding="utf-8"))
    return tuple((tuple(entry["questions"]), entry["answer"]) for entry in entries)


def read_grammar(name: str) -> dict[str, list[str]]:
    """Read patterns of `facts/`, and the values of each of their columns."""
    grammar: dict[str, list[str]] = json.loads((FACTS / f"{name}.json").read_text(encoding="utf-8"))
    return grammar


def flag(iso_code: str) -> str:
    """Spell a country's flag with its two regional indicator symbols."""
    return "".join(chr(0x1F1E6 + ord(letter) - ord("A")) for letter in iso_code)


def without_article(thing: str) -> str:
    """`a palm tree` -> `palm tree`."""
    article, _, noun = thing.partition(" ")
    return noun if article in ("a", "an", "the") else thing


def translations() -> Iterable[Row]:
    for entry in read_table("words"):
        for language in ("Spanish", "French", "Japanese"):
            yield row(word=entry["word"], language=language, translation=entry[language.lower()])


def neighbours(items: tuple[str, ...], kind: str) -> Iterable[Row]:
    """Pair every day or month with the next one, in a circle."""
    for position, item in enumerate(items):
        yield row(item=item, next=items[(position + 1) % len(items)], kind=kind)


DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTH_DAYS = {
    "January": 31, "February": 28, "March": 31, "April": 30, "May": 31, "June": 30, "July": 31, "August": 31,
    "September": 30, "October": 31, "November": 30, "December": 31,
}  # fmt: skip
MONTHS = tuple(MONTH_DAYS)
ORDINALS = (
    "first", "second", "third", "fourth", "fifth", "sixth",
    "seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth",
)  # fmt: skip

COUNTRIES = tuple(
    row(country=c["country"], capital=c["capital"], flag=flag(c["iso_code"])) for c in read_table("countries")
)
EMOJI = tuple(row(thing=e["thing"], noun=without_article(e["thing"]), emoji=e["emoji"]) for e in read_table("emoji"))


def sums() -> Iterable[Row]:
    for a in range(21):
        for b in range(21):
            yield row(a=str(a), b=str(b), result=str(a + b))


def differences() -> Iterable[Row]:
    for a in range(21):
        for b in range(a + 1):
            yield row(a=str(a), b=str(b), result=str(a - b))


def products() -> Iterable[Row]:
    for a in range(11):
        for b in range(11):
            yield row(a=str(a), b=str(b), result=str(a * b))


TABLES: dict[str, tuple[Row, ...]] = {
    "countries": COUNTRIES,
    "colours": read_table("colours"),
    "opposites": read_table("opposites"),
    "sounds": read_table("sounds"),
    "legs": read_table("legs"),
    "translations": tuple(translations()),
    "emoji": EMOJI,
    "sums": tuple(sums()),
    "differences": tuple(differences()),
    "products": tuple(products()),
    "calendar": (*neighbours(DAYS, "day"), *neighbours(MONTHS, "month")),
    "month_lengths": tuple(row(month=month, days=str(days)) for month, days in MONTH_DAYS.items()),
    "month_numbers": tuple(row(ordinal=ordinal, month=month) for ordinal, month in zip(ORDINALS, MONTHS, strict=True)),
}


def read_relations() -> Iterable[Relation]:
    """Read the templates of `facts/relations.json`, and give each its table."""
    for fields in json.loads((FACTS / "relations.json").read_text(encoding="utf-8")):
        yield Relation(
            skill=fields["skill"],
            questions=tuple(fields["questions"]),
            answer=fields["answer"],
            short=fields["short"],
            follow_ups=tuple(FollowUp(**follow_up) for follow_up in fields["follow_ups"]),
            rows=TABLES[fields["table"]],
            subject=fields.get("subject", ""),
        )


RELATIONS = tuple(read_relations())
