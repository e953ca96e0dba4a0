"""What `serve` and `triton` do unless told otherwise: apart from them, so that no other command has to import them."""

from __future__ import annotations

from frontend.settings import Settings

ADDRESS = "127.0.0.1"  # where Triton listens: its APIs know no authentication
DEFAULT_FRONTEND = Settings(port=8000)
# Settings that the launcher decides: its Triton is on this machine's loopback, and nowhere else.
OF_TRITON = frozenset({"triton_endpoints", "triton_tls_ca", "triton_tls_cert", "triton_tls_key"})
