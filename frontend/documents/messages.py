"""What the frontend and the process that reads a document send each other, and the limits of that process."""

from __future__ import annotations

import msgspec

from frontend.documents.document import Bounds, Picture

MAX_CPU_S = 4.0  # as for the images of a request; 1,000 pages of text take 3 s
MAX_MEMORY_BYTES = 256 << 20  # a table of 500,000 cells takes 200 MiB
NO_MEMORY = 3  # exit status


class Reading(msgspec.Struct, frozen=True):
    """The document to read."""

    file: bytes
    name: str
    bounds: Bounds


class Parts(msgspec.Struct, frozen=True, tag=True):
    """The texts and pictures of the document."""

    parts: list[str | Picture]


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """The rule that the document breaks."""

    rule: str
