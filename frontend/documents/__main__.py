"""The process that reads one document: standard input has the document, standard output gets its parts."""

from __future__ import annotations

import os
import resource
import signal
import sys

import msgspec

from frontend.documents.document import Unreadable
from frontend.documents.messages import MAX_CPU_S, MAX_MEMORY_BYTES, NO_MEMORY, Parts, Reading, Refusal
from frontend.documents.reading import read_document


def main() -> None:
    """Read a document within the limits of time and memory. Beyond them the process ends."""
    os.nice(19)
    request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Reading)
    for limit, amount in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_DATA, MAX_MEMORY_BYTES),
    ):
        resource.setrlimit(limit, (amount, amount))
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)  # its signal ends the process
    answer: Parts | Refusal
    try:
        answer = Parts(read_document(request.file, request.name, request.bounds))
    except Unreadable as exc:
        answer = Refusal(str(exc))
    except (MemoryError, RecursionError):
        os._exit(NO_MEMORY)
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer))


if __name__ == "__main__":
    main()
