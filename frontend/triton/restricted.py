"""The APIs of Triton that want a key: with them a caller runs code, reads the memory of others or stops the service."""

from __future__ import annotations

APIS = "model-repository,shared-memory,trace,logging"  # Triton's names; the other APIs are open
HEADER = "conch-key"  # HTTP's
METADATA = f"triton-grpc-protocol-{HEADER}"  # gRPC's: Triton adds this prefix
