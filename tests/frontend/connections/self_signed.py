"""Certificates of the tests' own."""

from __future__ import annotations

import subprocess
from pathlib import Path


def paths(folder: Path, name: str) -> tuple[str, str]:
    """Return where a certificate and its key are, or will be."""
    return str(folder / f"{name}.pem"), str(folder / f"{name}.key")


def make(folder: Path, name: str, names: str = "DNS:localhost,IP:127.0.0.1") -> tuple[str, str]:
    """Make a certificate that signs itself, or another one in its place; return its file and its key's.

    Args:
        names: that it is for.
    """
    cert, key = paths(folder, name)
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName={names}"]
    files = ["-keyout", key, "-out", cert, "-days", "2"]
    subprocess.run([*command, *subject, *files], check=True, capture_output=True)
    return cert, key
