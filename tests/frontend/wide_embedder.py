"""A process with the application over a fake Triton, whose model gives each input a long vector."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
import uvloop

from frontend.server import app_runner
from frontend.settings import Settings
from model_repository.contract.output import Usage, VectorChunk
from model_repository.contract.request import GenerationRequest
from tests.fakes import FakeTriton, Script, served_model

NUM_DIMENSIONS = 16_384


def _vector(request: GenerationRequest) -> Script:
    embedding = np.random.default_rng().standard_normal(NUM_DIMENSIONS, np.float32).tobytes()
    usage = Usage(num_input_tokens=1, num_output_tokens=0)
    return [VectorChunk(usage=usage, embedding=embedding)]


async def _serve(port: int) -> None:
    runner = app_runner(Settings(), {"fake:1": FakeTriton(_vector, [served_model(pooling="mean")])})
    await runner.setup()
    await runner.listen(host="127.0.0.1", port=port)
    sys.stdout.write("listens\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])), loop_factory=uvloop.new_event_loop)
