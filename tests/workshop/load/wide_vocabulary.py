"""SmolLM2 with Qwen2.5's number of vocabulary rows: the cost of a large vocabulary, with the probabilities of text."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import numpy as np

NUM_ROWS = 151_936

_EMBEDDINGS = "token_embd.weight"  # the output layer's too


def write_wide_model(source: Path, path: Path, num_rows: int = NUM_ROWS) -> None:
    """Copy a GGUF file with its vocabulary repeated up to a number of rows.

    The text of an added token is its row's number. No tokenizer makes such a token of a text, as no merge leads to it.

    Args:
        source: a model with one matrix for embeddings and output layer.
        path: the new file.
    """
    reader = gguf.GGUFReader(source)
    architecture = reader.fields[gguf.Keys.General.ARCHITECTURE].contents()
    num_known = len(reader.fields[gguf.Keys.Tokenizer.LIST].data)
    changed: dict[str, Any] = {
        gguf.Keys.LLM.VOCAB_SIZE.format(arch=architecture): num_rows,
        gguf.Keys.Tokenizer.LIST: [str(row) for row in range(num_known, num_rows)],
        gguf.Keys.Tokenizer.TOKEN_TYPE: [int(gguf.TokenType.NORMAL)] * (num_rows - num_known),
    }
    with closing(gguf.GGUFWriter(path, architecture)) as writer:
        for key, field in reader.fields.items():
            if not key.startswith("GGUF.") and key != gguf.Keys.General.ARCHITECTURE:  # the writer has its own
                value, (kind, *of_items) = changed.get(key, field.contents()), field.types
                if of_items and key in changed:
                    value = field.contents() + value
                writer.add_key_value(key, value, kind, *of_items)
        for tensor in reader.tensors:
            rows = tensor.data
            if tensor.name == _EMBEDDINGS:
                rows = np.resize(rows, (num_rows, rows.shape[1]))
            writer.add_tensor(tensor.name, rows, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
