"""A program that starts a worker by the real MPI, as TensorRT-LLM does, and has it use a logits processor of ours.

Arguments: a byte table, and a host name or an empty text for this host's.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
from pathlib import Path

import numpy as np

from model_repository.contract.request import EngineRequest, OutputFormat, StructuredOutput
from model_repository.engine.tensorrt_llm.mpi import prepare_mpi
from model_repository.engine.tensorrt_llm.processors import AllowedTokens, LogitsChain, VocabularyFile
from tests.model_repository.engine.engine_requests import changed

BYTE_TABLE = [b"", b"", b"a", b"b", b"c"]
DEAD_END, EOS, PROMPT, ALLOWED = 0, 1, 3, 4


def allowed(pickled: bytes) -> tuple[int, list[int]]:
    """Return this process's number, and the tokens that a processor allows; called in the worker."""
    import torch

    logits = torch.from_numpy(np.zeros((1, 1, len(BYTE_TABLE)), dtype=np.float32))
    pickle.loads(pickled)(1, logits, [[PROMPT]], None, None)
    return os.getpid(), np.flatnonzero(logits.numpy() == 0).tolist()


def main(byte_table: Path, host_name: str) -> None:
    if host_name:
        os.unshare(os.CLONE_NEWUTS)
        socket.sethostname(host_name)
    prepare_mpi(os.environ, socket.gethostname(), is_root=os.geteuid() == 0)
    from mpi4py.futures import MPIPoolExecutor

    form = StructuredOutput(OutputFormat.REGEX, "c+")
    request = changed(EngineRequest(prompt_token_ids=(PROMPT,), max_tokens=1), structured_output=form)
    vocabulary = VocabularyFile(byte_table, len(BYTE_TABLE), frozenset([EOS]))
    chain = LogitsChain([AllowedTokens(vocabulary, request, has_grammar=True)], vocabulary.size, DEAD_END)
    with MPIPoolExecutor(1, path=sys.path) as pool:
        number, token_ids = pool.submit(allowed, pickle.dumps(chain)).result()
    assert number != os.getpid()
    sys.stdout.write(f"{token_ids}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
