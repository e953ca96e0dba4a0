"""Writing GGUF files."""

from __future__ import annotations

import gguf


def write_and_close(writer: gguf.GGUFWriter) -> None:
    """Write the file with all that has been added to the writer."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
