"""Draws the pictures of the documentation: `python -m tests.workshop.drawings docs/pictures`.

Each has a background of its own, so that it is legible on light and dark pages, and follows the reader's colour scheme.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

_STYLE = """\
<style>
.paper { fill: #ffffff; stroke: #d0d7de }
.box { fill: #eef4fb; stroke: #4a7ab5 }
.stage { fill: #fdf3e1; stroke: #b7832f }
.helper { fill: #f3f4f6; stroke: #8a929c }
.arrow { stroke: #57606a; stroke-width: 1.5; fill: none; marker-end: url(#tip) }
.line { stroke: #8a929c; stroke-dasharray: 4 3; fill: none }
.tip { fill: #57606a }
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.name { font-weight: 600 }
.note { font-size: 12px; fill: #57606a }
@media (prefers-color-scheme: dark) {
  .paper { fill: #161b22; stroke: #30363d }
  .box { fill: #1c2b3f; stroke: #5b8fce }
  .stage { fill: #382c17; stroke: #c9973f }
  .helper { fill: #22272e; stroke: #768390 }
  .arrow { stroke: #adbac7 }
  .line { stroke: #768390 }
  .tip { fill: #adbac7 }
  text { fill: #e6edf3 }
  .note { fill: #adbac7 }
}
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">\
<path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>"""
_WIDTH = 760
_LINE = 17  # height of a line of text


def drawings() -> Iterator[tuple[str, str]]:
    """Yield each picture's file name and its content."""
    yield (
        "serve.svg",
        _svg(
            "The processes of conch serve, and their ports",
            340,
            _box(20, 20, 92, 52, "operators", "Prometheus"),
            _arrow("M112 32 H535 V96"),
            _note(450, 24, "Triton's metrics 8002"),
            _arrow("M112 62 H290 V96"),
            _note(200, 54, "operations: --admin-port"),
            _box(20, 112, 92, 52, "clients"),
            _arrow("M112 138 H206"),
            _note(159, 130, "--port"),
            _note(159, 155, "8000"),
            _box(210, 100, 160, 76, "frontend", "one process for", "every four cores"),
            _arrow("M370 138 H466"),
            _note(418, 130, "gRPC 8001"),
            _note(418, 155, "loopback"),
            _box(470, 100, 130, 76, "tritonserver"),
            _arrow("M600 122 L636 72"),
            _arrow("M600 138 H636"),
            _arrow("M600 154 L636 204"),
            _note(556, 196, "shared memory"),
            _box(640, 40, 104, 50, "tokenizer", kind="stage"),
            _box(640, 113, 104, 50, "engine", kind="stage"),
            _box(640, 186, 104, 50, "detokenizer", kind="stage"),
            _note(692, 256, "three processes"),
            _note(692, 273, "for each model"),
            _line("M290 265 V176 M350 265 L500 176 M370 291 H470"),
            _box(210, 265, 160, 52, "conch serve", "starts and restarts both"),
            _box(470, 265, 150, 52, "guard", "ends all if serve dies", kind="helper"),
        ),
    )
    yield (
        "ensemble.svg",
        _svg(
            "A request in the ensemble of a model",
            225,
            _box(20, 78, 110, 70, "frontend", "reads HTTP,", "writes events"),
            _arrow("M130 113 H196"),
            _note(162, 105, "requests"),
            _box(200, 78, 130, 70, "tokenizer", "chat template,", "prompt to tokens", kind="stage"),
            _arrow("M330 113 H406"),
            _note(367, 105, "token ids"),
            _box(410, 78, 130, 70, "engine", "one batch for", "all sequences", kind="stage"),
            _arrow("M540 113 H616"),
            _note(577, 105, "output"),
            _note(577, 131, "batches"),
            _box(620, 78, 120, 70, "detokenizer", "tokens to text", kind="stage"),
            _arrow("M680 148 V198 H75 V152"),
            _note(377, 190, "chunks of text, with finish reason and counts of the engine"),
            _arrow("M75 78 V35 H475 V74"),
            _note(275, 27, "control: cancels, adapters, drain, statistics"),
        ),
    )
    yield (
        "bench.svg",
        _svg(
            "The two benches",
            300,
            '<text class="name" x="20" y="30">conch bench: how fast is a model here?</text>',
            _box(20, 45, 130, 60, "chats", "1, 4, 16 at a time"),
            _arrow("M150 75 H246"),
            _note(198, 67, "HTTP"),
            _box(250, 45, 150, 60, "a server", "running, or for this run", kind="stage"),
            _arrow("M400 75 H496"),
            _box(500, 45, 240, 60, "first token, tokens/s", "of all chats, and of one", kind="helper"),
            _line("M20 132 H740"),
            '<text class="name" x="20" y="162">make bench: what does serving cost around the engine?</text>',
            _box(20, 205, 130, 60, "load generator", "on the same cores"),
            _arrow("M150 225 L246 207"),
            _arrow("M150 245 L246 263"),
            _note(192, 200, "in turns"),
            _box(250, 178, 150, 50, "Conch", "synthetic engine", kind="stage"),
            _box(250, 238, 150, 50, "another server", "its mock engine", kind="stage"),
            _arrow("M400 207 L496 227"),
            _arrow("M400 263 L496 247"),
            _box(500, 205, 240, 60, "CPU of all its processes", "tokens/s, latencies, memory", kind="helper"),
        ),
    )


def _svg(title: str, height: int, *shapes: str) -> str:
    body = "\n".join(shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img">\n<title>{title}</title>\n{_STYLE}\n'
        f'<rect class="paper" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="8"/>\n{body}\n</svg>\n'
    )


def _box(x: int, y: int, width: int, height: int, name: str, *notes: str, kind: str = "box") -> str:
    first = y + height / 2 - _LINE / 2 * len(notes) + 4.5
    texts = [
        f'<text class="{"note" if i else "name"}" x="{x + width / 2:g}" y="{first + _LINE * i:g}" '
        f'text-anchor="middle">{text}</text>'
        for i, text in enumerate((name, *notes))
    ]
    return "\n".join([f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>', *texts])


def _arrow(path: str) -> str:
    return f'<path class="arrow" d="{path}"/>'


def _line(path: str) -> str:
    return f'<path class="line" d="{path}"/>'


def _note(x: int, y: int, text: str) -> str:
    return f'<text class="note" x="{x}" y="{y}" text-anchor="middle">{text}</text>'


if __name__ == "__main__":
    for name, content in drawings():
        (Path(sys.argv[1]) / name).write_text(content, encoding="utf-8")
