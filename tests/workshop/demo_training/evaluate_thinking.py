"""Measure how often the served demo model is right about held-out questions, without and behind a thought.

Usage: python -m tests.workshop.demo_training.evaluate_thinking --url http://127.0.0.1:8000/v1
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from openai import OpenAI

from tests.workshop.demo_training.conversation import Document, Message
from tests.workshop.demo_training.dataset import HELD_OUT, read

NUM_TOKENS = range(7, 30)  # of a well-formed thought, with its end marker
LONG = ("counting", "recitations", "JSON list", "long chat", "name in a long chat")  # skills that no thought helps


def for_api(message: Message) -> dict[str, Any]:
    """Write the arguments of calls as text, and number the calls and their results."""
    if message["role"] == "tool":
        return {**message, "tool_call_id": "call"}
    calls = [
        {**call, "id": "call", "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


def meaning(message: dict[str, Any]) -> tuple[str, list[Any]]:
    """Return a message's text, and the names and arguments of its calls."""
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return message.get("content") or "", [(each["name"], json.loads(each["arguments"])) for each in functions]


def judge(client: OpenAI, document: Document) -> tuple[bool, bool, bool]:
    """Whether the plain answer is right, a thought is well formed, and the answer behind the thought is right."""
    *messages, expected = map(for_api, document.messages)
    fields: dict[str, Any] = {"messages": messages, "temperature": 0, "max_tokens": 250}
    fields |= {"tools": list(document.tools)} if document.tools else {}
    plain = client.chat.completions.create(model="demo", **fields)
    thought = client.chat.completions.create(model="demo-thinking", **fields, extra_body={"enable_thinking": True})
    usage: Any = thought.usage
    is_right, is_right_behind = (
        meaning(answer.choices[0].message.model_dump()) == meaning(expected) for answer in (plain, thought)
    )
    return is_right, usage.completion_tokens_details.reasoning_tokens in NUM_TOKENS, is_right_behind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    arguments = parser.parse_args()
    documents = [each for each in read(HELD_OUT) if each.messages and each.skill not in LONG]
    rows: dict[str, list[tuple[bool, bool, bool]]] = defaultdict(list)
    with OpenAI(base_url=arguments.url, api_key="none") as client, ThreadPoolExecutor(4) as pool:
        for document, row in zip(documents, pool.map(lambda each: judge(client, each), documents), strict=True):
            rows[document.skill].append(row)
    rows["**all**"] = [row for of_skill in rows.values() for row in of_skill]
    lines = ["| skill | of | right without | well formed | right with |", "| --- | ---: | ---: | ---: | ---: |"]
    for skill, of_skill in rows.items():
        counts = " | ".join(str(sum(column)) for column in zip(*of_skill, strict=True))
        lines.append(f"| {skill} | {len(of_skill)} | {counts} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
