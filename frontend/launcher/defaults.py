"""What `serve` and `triton` do unless told otherwise: apart from them, so that no other command has to import them."""

from __future__ import annotations

from frontend.settings import Settings

ADDRESS = "127.0.0.1"  # where Triton listens: its APIs know no authentication
DEFAULT_FRONTEND = Settings(port=8000)
