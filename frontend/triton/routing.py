"""Chooses the replica of a request: by the part of its prompt that each one keeps, and by the requests there. Pure.

A conversation goes where its beginning is. If that replica has much more to do than the others, another one computes
the prompt again.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple, Protocol

import msgspec

from model_repository.contract.marks import ENDS, marks_of, num_known, split
from model_repository.contract.request import IMAGE_MARKER, ChatPrompt, GenerationRequest, TextPrompt, TokenPrompt

_IMAGE_END_BYTES = 256  # of a file's two ends: they and its length tell it from others
_UNSEEN_S = 2.0  # after which the engine knows a request that was sent
_MAX_SENT = 8192  # marks, before the old ones are dropped
_SENT_S = 300.0  # if an engine does not tell what it keeps: it counts as keeping a prompt for this time
# Found in simulations (tests/workshop/load/routing.py): more moves conversations too early, less too late.
_WAIT_WEIGHT = 0.25  # of the prompts that wait there, beside the request's own
_LOAD_WEIGHT = 0.25  # of the requests there above the mean of the replicas
_GROUP_WEIGHT = 0.1  # of the place that a group has
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Beginnings:
    """What routing knows of a prompt."""

    marks: Sequence[bytes]
    num_bytes: int  # of the prompt, also behind its last mark
    group: str = ""  # see GenerationRequest

    @classmethod
    def of(cls, key: bytes, request: GenerationRequest) -> Beginnings:
        """Read them from a request; see `marks_of`."""
        text = b"".join(_parts(request))
        family = request.params.lora_name, request.params.cache_salt
        return cls(split(marks_of(blake2b(_encode(family), key=key).digest(), text)), len(text), request.group)


def _parts(request: GenerationRequest) -> Iterable[bytes]:
    match request.prompt:
        case ChatPrompt(messages, tool_use, template_kwargs):
            yield _encode((tool_use.tools if tool_use else (), template_kwargs))
            images = iter(request.images)
            for message in messages:
                yield _encode(message)
                for image in islice(images, _num_images(message)):
                    yield b"%d" % len(image) + image[:_IMAGE_END_BYTES] + image[-_IMAGE_END_BYTES:]
        case TextPrompt(text):
            yield text.encode()
        case TokenPrompt(token_ids):
            yield array("q", token_ids).tobytes()


def _num_images(message: Mapping[str, Any]) -> int:
    content = message.get("content")
    return content.count(IMAGE_MARKER) if isinstance(content, str) else 0


class Kept:
    """The marks in the KV cache of one replica, as far as they are known.

    They are those that its engine told last, and those of the prompts that were sent there since.
    """

    def __init__(self) -> None:
        self._answer = b""  # the engine's last one
        self._told: frozenset[bytes] = frozenset()
        self._sent_s: dict[bytes, float] = {}
        self._seen_until_s = -math.inf  # prompts that were sent earlier count only if the engine has told them

    def __contains__(self, mark: object) -> bool:
        sent_s = self._sent_s.get(mark) if isinstance(mark, bytes) else None
        return mark in self._told or (sent_s is not None and sent_s > self._seen_until_s)

    def __len__(self) -> int:
        return len(self._told)

    def sent(self, beginnings: Beginnings, now: float) -> None:
        """Note a request that was sent."""
        for mark in beginnings.marks:
            self._sent_s[mark] = now
        if len(self._sent_s) > _MAX_SENT:
            horizon_s = max(self._seen_until_s, now - _SENT_S)
            self._sent_s = {mark: sent_s for mark, sent_s in self._sent_s.items() if sent_s > horizon_s}

    def told(self, marks: bytes, asked_s: float) -> None:
        """Note the engine's answer to a question that was asked at this time; without marks: it does not tell."""
        if marks != self._answer:
            self._answer, self._told = marks, frozenset(split(marks))
        self._seen_until_s = asked_s - (_UNSEEN_S if marks else _SENT_S)


class Work(NamedTuple):
    """What this process has a replica do."""

    num_requests: int
    num_of_triton: int  # requests to all models of its Triton
    num_waiting_bytes: int  # of prompts without a token so far; kept beginnings do not count


class Place(Protocol):
    """A replica."""

    @property
    def work(self) -> Work:
        """What it has to do."""

    @property
    def kept(self) -> Kept:
        """What it keeps."""


def cheapest[P: Place](places: Sequence[P], beginnings: Beginnings | None) -> P:
    """Return the place at which a request costs least; of equals the one that keeps least of other prompts.

    Args:
        beginnings: of its prompt; None: it goes where the fewest requests are.
    """
    if len(places) == 1:
        return places[0]
    if beginnings is None:
        ranks: list[tuple[float, ...]] = [place.work[:2] for place in places]
    else:
        all_costs = costs(beginnings, places)
        ranks = [(cost, *place.work[:2], len(place.kept)) for cost, place in zip(all_costs, places, strict=True)]
    least = min(ranks)
    return random.choice([place for place, rank in zip(places, ranks, strict=True) if rank == least])


def costs(beginnings: Beginnings, places: Sequence[Place]) -> Iterator[float]:
    """Yield what a request costs at each place, as a share of the computation of its whole prompt."""
    mean = sum(place.work.num_requests for place in places) / len(places)
    group, own = beginnings.group, None
    if group:  # all frontends choose the same place
        own = max(places, key=lambda place: blake2b(f"{group} at {place}".encode(), digest_size=8).digest())
    for place in places:
        num_bytes = num_missing(beginnings, place.kept) + _WAIT_WEIGHT * place.work.num_waiting_bytes
        excess = (place.work.num_requests - mean) / max(1.0, mean)
        yield num_bytes / max(1, beginnings.num_bytes) + _LOAD_WEIGHT * excess - _GROUP_WEIGHT * (place is own)


def num_missing(beginnings: Beginnings, kept: Kept) -> int:
    """Return the bytes of a prompt that are not kept."""
    num_marks = num_known(beginnings.marks, kept)
    return beginnings.num_bytes - (ENDS[num_marks - 1] if num_marks else 0)
