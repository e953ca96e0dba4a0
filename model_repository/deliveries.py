"""What happened to many sequences in one response, for those who read many: a frontend's stream of deliveries.

A streamed response costs about the same whether it tells of one sequence or of hundreds, so a frontend opens one stream
per model (the ensemble `SLUG__deliveries`) and gives its requests the stream's key: their chunks come there.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from model_repository.contract import DELIVERED, DELIVERED_DETAILS, DELIVERED_TEXTS, DELIVERY, DELIVERY_DETAILS
from model_repository.generation import FinishReason, GenerationChunk, Timing, TokenLogprob, TopLogprob, Usage
from model_repository.stage_messages import Release, ReleaseDetails
from model_repository.tensors import Tensors, array

# Whether the reader is gone is known in another process, which takes longer than all else that is done for a delivery:
# it is asked for one of so many, which follow each other within a second.
DELIVERIES_PER_PROBE = 4

_NUM_HEADER = 2  # words before the items
_NUM_ITEM_HEADER = 2  # words before a release's own


@dataclass(frozen=True, slots=True)
class Delivery:
    """Engine to detokenizer: by the readers' own numbers, what is released, or the message of what went wrong.

    One without items only probes for the reader; the first of a stream says that it is open.
    """

    stream: int  # the engine's own number, by which the detokenizer cancels
    serial: int  # counts from 0, so that a reader sees when one is lost
    items: tuple[tuple[int, Release | str], ...] = ()

    @property
    def is_probe(self) -> bool:
        """Whether the detokenizer, the only stage that can see it, looks if the reader is still there."""
        return not self.items or self.serial % DELIVERIES_PER_PROBE == 0

    def to_tensors(self) -> dict[str, npt.NDArray[Any]]:
        """Return it as the detokenizer's inputs."""
        words = [self.stream, self.serial]
        details: dict[int, Any] = {}
        for index, (number, item) in enumerate(self.items):
            if isinstance(item, str):
                details[index] = item
                words += (number, 0)
                continue
            packed = item.words()
            words += (number, len(packed))
            words += packed
            if item.details is not None:
                details[index] = item.details.to_fields()
        tensors = {DELIVERY.name: np.array([words], dtype=np.int64)}
        if details:
            tensors[DELIVERY_DETAILS.name] = array(DELIVERY_DETAILS, json.dumps(details))
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> Delivery:
        """Rebuild it from the detokenizer's inputs.

        Raises:
            LookupError, TypeError, ValueError: it is none.
        """
        words: list[int] = tensors[DELIVERY.name].reshape(-1).tolist()
        details: Mapping[str, Any] = {}
        if DELIVERY_DETAILS.name in tensors:
            details = dict(json.loads(tensors[DELIVERY_DETAILS.name].item()))
        items: list[tuple[int, Release | str]] = []
        begin = _NUM_HEADER
        while begin < len(words):
            number, length = words[begin : begin + _NUM_ITEM_HEADER]
            begin += _NUM_ITEM_HEADER
            end = begin + length
            if not begin <= end <= len(words):
                raise ValueError(f"an item of {length} words")
            detail = details.get(str(len(items))) if details else None
            if length:
                about = None if detail is None else ReleaseDetails.from_fields(detail)
                items.append((number, Release.from_words(words[begin:end], about)))
            elif isinstance(detail, str):
                items.append((number, detail))
            else:
                raise ValueError("an item without words has no message")
            begin = end
        return cls(words[0], words[1], tuple(items))


@dataclass(frozen=True, slots=True)
class DeliveredChunks:
    """Detokenizer to reader: the chunks of a delivery, or the message of what went wrong, by the readers' numbers."""

    serial: int
    items: tuple[tuple[int, GenerationChunk | str], ...] = ()

    def to_tensors(self) -> dict[str, npt.NDArray[Any]]:
        """Return it as the outputs of the ensemble of deliveries."""
        details: dict[int, Any] = {}
        texts: list[str] = []
        for index, (_, item) in enumerate(self.items):
            if isinstance(item, str):
                details[index] = item
                texts.append("")
                continue
            texts.append(item.text)
            if not item.is_text:
                details[index] = _chunk_details(item)
        tensors = {
            DELIVERED.name: array(DELIVERED, self.serial, *[number for number, _ in self.items]),
            DELIVERED_TEXTS.name: array(DELIVERED_TEXTS, *texts),
        }
        if details:
            tensors[DELIVERED_DETAILS.name] = array(DELIVERED_DETAILS, json.dumps(details))
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> DeliveredChunks:
        """Rebuild it from the outputs of the ensemble of deliveries."""
        return cls.from_elements({name: tensor.reshape(-1).tolist() for name, tensor in tensors.items()})

    @classmethod
    def from_elements(cls, outputs: Mapping[str, list[Any]]) -> DeliveredChunks:
        """Rebuild it from the elements of these outputs."""
        serial, *numbers = outputs[DELIVERED.name]
        texts = outputs[DELIVERED_TEXTS.name]
        items: list[Any] = [
            (number, GenerationChunk(text=text.decode())) for number, text in zip(numbers, texts, strict=True)
        ]
        if DELIVERED_DETAILS.name in outputs:
            for index, detail in json.loads(outputs[DELIVERED_DETAILS.name][0]).items():
                number, chunk = items[int(index)]
                items[int(index)] = (number, detail if isinstance(detail, str) else _detailed(chunk, detail))
        return cls(serial, tuple(items))


def _chunk_details(chunk: GenerationChunk) -> dict[str, Any]:
    """Return all but the text, as JSON's values: only what differs from the defaults."""
    fields = {
        field.name: getattr(chunk, field.name)
        for field in dataclasses.fields(chunk)
        if field.name != "text" and getattr(chunk, field.name) != field.default
    }
    if chunk.usage is not None:
        fields["usage"] = dataclasses.astuple(chunk.usage)
    if chunk.timing is not None:
        fields["timing"] = dataclasses.asdict(chunk.timing)
    if chunk.logprobs:
        fields["logprobs"] = [
            (
                item.token_id,
                item.token_bytes.decode("latin-1"),
                item.logprob,
                [(top.token_id, top.token_bytes.decode("latin-1"), top.logprob) for top in item.top],
            )
            for item in chunk.logprobs
        ]
    return fields


def _detailed(chunk: GenerationChunk, fields: dict[str, Any]) -> GenerationChunk:
    if "timing" in fields:
        fields["timing"] = Timing(**fields["timing"])
    if "usage" in fields:
        num_input, num_output, num_cached = fields["usage"]
        fields["usage"] = Usage(num_input_tokens=num_input, num_output_tokens=num_output, num_cached_tokens=num_cached)
    if "finish_reason" in fields:
        fields["finish_reason"] = FinishReason(fields["finish_reason"])
    if "logprobs" in fields:
        fields["logprobs"] = tuple(
            TokenLogprob(
                token_id,
                token_bytes.encode("latin-1"),
                logprob,
                tuple(TopLogprob(other, other_bytes.encode("latin-1"), value) for other, other_bytes, value in top),
            )
            for token_id, token_bytes, logprob, top in fields["logprobs"]
        )
    for name in ("token_ids", "prompt_token_ids"):
        if name in fields:
            fields[name] = tuple(fields[name])
    return dataclasses.replace(chunk, **fields)
