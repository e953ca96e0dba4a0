"""Documents are read in a process of their own, which ends with them: their bytes are hostile."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE

import msgspec

from frontend.documents.document import Bounds, Picture, Unreadable
from frontend.documents.messages import MAX_CPU_S, MAX_MEMORY_BYTES, Parts, Reading, Refusal

_TIMEOUT_S = 60.0  # the process has the lowest priority, so its 4 s of processor time may take long
_COMMAND = (sys.executable, "-I", "-m", "frontend.documents")
_DECODER: msgspec.msgpack.Decoder[Parts | Refusal] = msgspec.msgpack.Decoder(Parts | Refusal)


async def read_in_process(file: bytes, name: str, bounds: Bounds) -> list[str | Picture]:
    """Return the texts and pictures of a document; see `read_document`.

    Raises:
        Unreadable: also if a limit of time or memory is exceeded.
        TimeoutError: the machine is too busy.
    """
    request = msgspec.msgpack.encode(Reading(file, name, bounds))
    process = await asyncio.create_subprocess_exec(*_COMMAND, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env={})
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            output, _ = await process.communicate(request)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == -signal.SIGPROF:
        raise Unreadable(f"reading takes more than {MAX_CPU_S:g} s of processor time, which is the limit")
    if process.returncode:
        raise Unreadable(f"reading takes more than {MAX_MEMORY_BYTES >> 20} MiB of memory, or breaks the reader")
    answer = _DECODER.decode(output)
    if isinstance(answer, Refusal):
        raise Unreadable(answer.rule)
    return answer.parts
