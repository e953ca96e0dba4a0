"""The APIs of Triton that want a key: with them a caller runs code, reads the memory of others or stops the service."""

from __future__ import annotations

APIS = "model-repository,shared-memory,trace,logging"  # as Triton calls them; the others are open
HEADER = "conch-key"  # of HTTP
METADATA = f"triton-grpc-protocol-{HEADER}"  # of gRPC: Triton puts this before the name
