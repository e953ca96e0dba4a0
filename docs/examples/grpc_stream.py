"""Stream a chat from the ensemble with Triton's own gRPC client: deadline, cancel, LoRA adapter, images.

.venv/bin/python docs/examples/grpc_stream.py "What is the capital of France?"
.venv/bin/python docs/examples/grpc_stream.py --lora demo-formal "What is the capital of France?"
.venv/bin/python docs/examples/grpc_stream.py --lora demo-pictures --image picture.png "What colour is it?"
.venv/bin/python docs/examples/grpc_stream.py --cancel-after 5 "Count from 1 to 30."
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

_DTYPES = {"BYTES": np.object_, "INT32": np.int32, "FP32": np.float32, "BOOL": np.bool_}


def tensor(name: str, datatype: str, *values: Any) -> triton.InferInput:
    """Return an input of one or more elements: every shape begins with a batch dimension of 1."""
    item = triton.InferInput(name, [1, len(values)], datatype)
    item.set_data_from_numpy(np.array([values], dtype=_DTYPES[datatype]))
    return item


def main() -> int:
    """Print the answer as it comes; return 1 when the server answers with an error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question")
    parser.add_argument("--url", default="127.0.0.1:8001")
    parser.add_argument("--model", default="demo", help="the model's id, with -- for /")
    parser.add_argument("--lora", default="", help="the name of one of its adapters")
    parser.add_argument("--image", type=Path, action="append", default=[], help="an image file; repeatable")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--deadline-s", type=float, default=30, help="then the server gives up; never go without")
    parser.add_argument("--cancel-after", type=int, default=0, metavar="N", help="hang up after N responses")
    options = parser.parse_args()

    content = "<image>\n" * len(options.image) + options.question
    inputs = [
        tensor("messages", "BYTES", json.dumps([{"role": "user", "content": content}]).encode()),
        tensor("max_tokens", "INT32", options.max_tokens),
        tensor("stream", "BOOL", True),
    ]
    if options.image:
        inputs.append(tensor("images", "BYTES", *[path.read_bytes() for path in options.image]))
    if options.lora:
        inputs.append(tensor("lora_name", "BYTES", options.lora.encode()))

    responses: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    client = triton.InferenceServerClient(options.url)
    client.start_stream(lambda result, error: responses.put((result, error)), stream_timeout=options.deadline_s)
    with contextlib.suppress(InferenceServerException):  # the connection has failed: the callback gets the reason
        client.async_stream_infer(options.model, inputs)
    num_responses = 0
    while True:
        result, error = responses.get()
        if error is not None:
            print(f"error: {error}", file=sys.stderr)
            client.stop_stream(cancel_requests=True)
            return 1
        print(result.as_numpy("text_output")[0, 0].decode(), end="", flush=True)
        num_responses += 1
        finish_reason = result.as_numpy("finish_reason")  # in the last response only
        if finish_reason is not None:
            print(f"\n[{finish_reason[0, 0].decode()}, {result.as_numpy('num_output_tokens')[0, 0]} tokens]")
            client.stop_stream()
            return 0
        if num_responses == options.cancel_after:
            client.stop_stream(cancel_requests=True)  # the engine stops generating, and frees the sequence's KV tokens
            print("\n[cancelled]")
            return 0


if __name__ == "__main__":
    sys.exit(main())
