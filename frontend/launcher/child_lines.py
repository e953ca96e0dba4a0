"""How the lines of several processes stand in one log: each says whose it is."""

from __future__ import annotations

import json


def text_line(process: str, line: str) -> str:
    """Return a line for people."""
    return f"[{process}] {line}"


def json_line(process: str, line: str) -> str:
    """Return a line of JSON: the object that it is, with the process's name, or one around what is none."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        fields = {"message": line}
    return json.dumps({"process": process} | fields, ensure_ascii=False)
