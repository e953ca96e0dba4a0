"""Measure how often the served demo model is right about held-out pictures, question by question.

Usage: python -m tests.workshop.demo_training.evaluate_vision --url http://127.0.0.1:8000/v1
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from openai import OpenAI

from tests.pictures import message_with
from tests.workshop.demo_training.evaluate import Results, table
from tests.workshop.demo_training.pictures import HELD_OUT_SEED, SHAPES, Painter, Picture


def right_answers(client: OpenAI, picture: Picture) -> list[tuple[str, bool]]:
    """Ask each question about a picture; return its kind, and whether the greedy answer is exact."""
    file = io.BytesIO()
    picture.image.save(file, "PNG")
    found = []
    for question, expected in picture.questions:
        chat: Any = [message_with(file.getvalue(), question=question)]
        answer = client.chat.completions.create(model="demo-pictures", messages=chat, temperature=0, max_tokens=30)
        kind = re.sub(rf"\b({'|'.join(SHAPES)})(e?s)?\b", "...", question)
        if kind.startswith("What is in"):
            kind += f" ({next(fact for fact in ('digit', 'count', 'place', 'shape') if fact in picture.facts)})"
        found.append((kind, answer.choices[0].message.content == expected))
    return found


def evaluate(client: OpenAI, num_pictures: int) -> Results:
    """Count exact answers by kind of question."""
    painter = Painter(HELD_OUT_SEED)
    pictures = [painter.picture() for _ in range(num_pictures)]
    results: dict[str, list[bool]] = defaultdict(list)
    with ThreadPoolExecutor(4) as pool:
        for answers in pool.map(lambda picture: right_answers(client, picture), pictures):
            for kind, is_right in answers:
                results[kind].append(is_right)
    return {kind: (sum(exact), len(exact)) for kind, exact in sorted(results.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--pictures", type=int, default=500)
    arguments = parser.parse_args()
    with OpenAI(base_url=arguments.url, api_key="none") as client:
        sys.stdout.write(table(evaluate(client, arguments.pictures)))


if __name__ == "__main__":
    main()
