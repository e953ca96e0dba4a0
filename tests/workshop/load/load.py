"""What the load generator is asked for, and the requests it sends."""

from __future__ import annotations

import io
import itertools
import json
import random
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from PIL import Image

from tests.pictures import SIDE, message_with

_BEGINNING_CHARS = 60  # of a piece of code that is repeated
_WORDS = ("apple", "boat", "cloud", "door", "earth", "flower", "green", "house", "island", "jump", "kind", "light")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The requests of a load, and their times.

    A closed loop keeps `num_streams` requests running; an open loop sends `rate_per_s` of them at random times (a
    Poisson process), independent of the server. The measured window lies between `warmup_s` and `warmup_s + window_s`
    after the first request; every started stream is read to its end.

    Raises:
        ValueError: at construction.
    """

    num_streams: int = 64  # an open loop uses as many as it needs
    num_tokens: int = 200  # of each completion
    prompt_words: int = 16
    min_prompt_words: int = 0  # each prompt has a random number of words from this one on; 0: all have `prompt_words`
    num_inputs: int = 1  # texts of a request for embeddings
    repeated_chars: int = 0  # length of the source code that each text repeats; 0: other texts
    turn_chars: int = 0  # length of the source code in a turn of an agent's chat; 0: other chats
    rate_per_s: float | None = None  # None: a closed loop
    requests_per_stream: int | None = None  # None: until the window ends
    itl_ms: float | None = None  # the engine's pace; None: no pace
    ramp_s: float = 0.0  # for the starts of the streams of a closed loop
    pause_s: float = 0.0  # of each stream of a closed loop, before each request
    warmup_s: float = 0.5
    window_s: float = 3.0
    api: Literal["chat/completions", "completions", "responses", "messages", "embeddings"] = "chat/completions"
    has_image: bool = False  # each chat shows another picture
    reuses_connections: bool = True  # False: each request has a new one
    ignores_eos: bool = True
    # More of the request. A field of sampling that is left out has a default of its own in each server.
    fields: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0})
    keeps_arrivals: bool = False  # keep the arrival time of each token; for a few streams
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("num_streams", "num_tokens", "prompt_words", "num_inputs", "window_s"):
            self._require(name, getattr(self, name) > 0, "must be above 0")
        for name in ("repeated_chars", "turn_chars", "ramp_s", "pause_s", "warmup_s"):
            self._require(name, getattr(self, name) >= 0, "must be at least 0")
        for name in ("rate_per_s", "requests_per_stream", "itl_ms"):
            value = getattr(self, name)
            self._require(name, value is None or value > 0, "must be above 0")
        both = self.rate_per_s is not None and self.requests_per_stream is not None
        self._require("requests_per_stream", not both, "goes with a closed loop, not with rate_per_s")

    @property
    def longest_stream_s(self) -> float:
        """The time after the window until a stream counts as stuck."""
        return 30.0 + 2 * self.num_tokens * (self.itl_ms or 0) / 1e3

    def _require(self, name: str, is_right: bool, rule: str) -> None:
        if not is_right:
            raise ValueError(f"{name}={getattr(self, name)}: {rule}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server and one of its models.

    Raises:
        ValueError: at construction.
    """

    url: str
    model: str
    # The end of each token of a synthetic completion, in characters; empty: unknown.
    token_ends: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "grpc") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"url={self.url}: must be http://HOST[:PORT][/PATH]")

    @property
    def is_grpc(self) -> bool:
        """Whether it is a Triton: clients use the public ensemble."""
        return urlsplit(self.url).scheme == "grpc"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        return parts.hostname, parts.port or 80

    @property
    def base_path(self) -> str:
        """The path before /v1."""
        return urlsplit(self.url).path.rstrip("/").removesuffix("/v1")


def _noise(seed: str) -> bytes:
    """Return a PNG file of random pixels, as large as the demo model's pictures."""
    file = io.BytesIO()
    Image.frombytes("RGB", (SIDE, SIDE), random.Random(seed).randbytes(3 * SIDE * SIDE)).save(file, "PNG")
    return file.getvalue()


def prompts(load: Load) -> Iterator[str]:
    """Yield endless different prompts. The same load gives the same ones."""
    if load.repeated_chars:
        yield from _repetitions(load)
    words = random.Random(load.seed)
    for number in itertools.count():
        num_words = (
            words.randint(load.min_prompt_words, load.prompt_words) if load.min_prompt_words else load.prompt_words
        )
        yield " ".join([str(number), *words.choices(_WORDS, k=num_words - 1)])


def _pieces_of_code(seed: int) -> Callable[[int], str]:
    """Return a function that returns a random piece of Python's library with a number of characters."""
    code = "".join(path.read_text(encoding="utf-8") for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))
    places = random.Random(seed)

    def piece(num_chars: int) -> str:
        start = places.randrange(len(code) - num_chars)
        return code[start : start + num_chars]

    return piece


def _repetitions(load: Load) -> Iterator[str]:
    pieces = _pieces_of_code(load.seed)
    while True:
        code = pieces(load.repeated_chars)
        yield f"{code}\n\n{code}\n\n{code[:_BEGINNING_CHARS]}"


def agent_chats(load: Load) -> Iterator[list[dict[str, str]]]:
    """Yield the messages of endless chats, one of each agent in turn. The same load gives the same ones.

    An agent has sent about nine tenths of a chat before: it goes on with a chat of eight turns, and after four more it
    begins another one with the same first eight. All agents have the same system prompt, as long as two turns.
    """
    pieces = _pieces_of_code(load.seed)

    def message(role: str, num_turns: float) -> dict[str, str]:
        return {"role": role, "content": pieces(int(load.turn_chars * num_turns))}

    system = message("system", 2)
    pasts = [[message(role, 0.5) for _ in range(6) for role in ("user", "assistant")] for _ in range(load.num_streams)]
    while True:
        chats = [[system, *past] for past in pasts]
        for _ in range(4):
            for chat in chats:
                chat.append(message("user", 0.5))
                yield list(chat)
                chat.append(message("assistant", 0.5))


def _messages(load: Load) -> Iterator[list[dict[str, Any]]]:
    if load.turn_chars:
        yield from agent_chats(load)
    for prompt in prompts(load):
        yield [message_with(_noise(prompt), question=prompt) if load.has_image else {"role": "user", "content": prompt}]


def _bodies(load: Load) -> Iterator[dict[str, Any]]:
    """Yield the fields of endless requests, except the model and those of the load itself."""
    if load.api == "embeddings":
        for texts in itertools.batched(prompts(load), load.num_inputs):
            yield {"input": texts}
    fields: dict[str, Any] = {"stream": True}
    fields["max_output_tokens" if load.api == "responses" else "max_tokens"] = load.num_tokens
    if load.api in ("chat/completions", "completions"):
        fields["stream_options"] = {"include_usage": True}
        if load.ignores_eos:
            fields["ignore_eos"] = True
    name = {"completions": "prompt", "responses": "input"}.get(load.api, "messages")
    for prompt in prompts(load) if load.api == "completions" else _messages(load):
        yield fields | {name: prompt}


def requests(load: Load, target: Target) -> Iterator[bytes]:
    """Yield endless HTTP requests, each with other prompts."""
    path = f"{target.base_path}/v1/{load.api}"
    host, port = target.address
    for fields in _bodies(load):
        body = json.dumps({"model": target.model, **load.fields, **fields}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\nContent-Length: "
        yield b"%s%d\r\n\r\n%s" % (head.encode(), len(body), body)
