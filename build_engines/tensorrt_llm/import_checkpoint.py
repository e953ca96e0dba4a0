"""Makes safetensors and tokenizer.json of a checkpoint that has PyTorch's own files and a SentencePiece model instead.

    python3 import_checkpoint.py SOURCE TARGET

`build` runs it as a process of its own in the GPU image, which has torch and transformers; nothing else needs these.
"""

from __future__ import annotations

import sys


def main(source: str, target: str) -> None:
    """Read the folder `source`, and write the folder `target`."""
    import transformers  # only in the GPU image

    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype="auto", local_files_only=True)
    model.save_pretrained(target)
    transformers.AutoTokenizer.from_pretrained(source, local_files_only=True).save_pretrained(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
