"""llama.cpp's own HTTP server, in a process of its own: prints its URL and serves until its standard input ends.

python -m tests.workshop.load.llama_cpp_server --gguf FILE --slots 16 --threads 2
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

import xllamacpp


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it silently
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--mmproj", type=Path, help="file with which the model reads images")
    parser.add_argument("--slots", type=int, required=True, help="sequences decoded at a time")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--slot-tokens", type=int, default=1024, help="prompt and completion of a slot (%(default)s)")
    parser.add_argument("--embeddings", action="store_true", help="the model embeds")
    options = parser.parse_args()

    params = xllamacpp.CommonParams()
    params.model.path = str(options.gguf)
    if options.mmproj is not None:
        params.mmproj.path = str(options.mmproj)
    params.n_parallel = options.slots
    params.n_ctx = options.slots * options.slot_tokens
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.embedding = options.embeddings
    params.verbosity = 0
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n{xllamacpp.get_system_info()}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
