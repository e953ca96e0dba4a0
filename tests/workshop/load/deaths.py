"""Streams while one of two engines dies or hangs: ours, and those of Dynamo.

`python -m tests.workshop.load.deaths` sends chats of several kinds at the same time, and a signal to one engine once a
quarter of the events has come. Ours are two Tritons with the demo model in f32; Dynamo has two mock engines, and runs
with its defaults and with migration. A stream is whole if it has the finish reasons, the number of tokens and the text
of the same chat alone. The texts of mock engines are never the same, so they are not compared.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from tests.waiting import wait_until
from tests.workshop.load import dynamo, peers
from tests.workshop.load.command import parsed, parser_of, say, say_heads, say_row
from tests.workshop.load.machine import describe_machine, summary_line
from tests.workshop.load.scenarios import DYNAMO, OURS
from tests.workshop.load.servers import CHECKPOINT, DYNAMO_DIR, build, render, replicas

_NUM_TOKENS, _LONGEST_S, _MAX_SEQUENCES = 400, 90.0, 64
_SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
_TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
_KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"ignore_eos": True, "temperature": 0},
    "seeded": {"ignore_eos": True, "temperature": 0.8, "seed": 11},
    "three choices": {"ignore_eos": True, "temperature": 0.8, "seed": 11, "n": 3},
    "log probabilities": {"ignore_eos": True, "temperature": 0, "logprobs": True, "top_logprobs": 2},
    "a tool": {"temperature": 0, "tools": [_TOOL]},
    "a schema": {
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": _SCHEMA}},
    },
}
_FAULTS = {"dies": signal.SIGKILL, "hangs": signal.SIGSTOP}


@dataclass(frozen=True, slots=True)
class _Server:
    """A server with two engines, and the processes of one of them."""

    url: str
    model: str
    engine: Callable[[], list[psutil.Process]]
    has_texts: bool  # to compare


@dataclass(slots=True, eq=False)
class _Read:
    """One stream, as its client reads it."""

    kind: str
    texts: dict[int, str] = field(default_factory=lambda: defaultdict(str))  # by choice
    finish_reasons: dict[int, str] = field(default_factory=dict)
    num_tokens: int = 0  # of the usage
    num_events: int = 0
    longest_pause_s: float = 0.0
    is_resumed: bool = False  # as our server says in a comment
    error: str = ""

    async def run(self, session: aiohttp.ClientSession, model: str) -> None:
        """Read the stream to its end."""
        body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": _NUM_TOKENS}
        body |= {"stream": True, "stream_options": {"include_usage": True}} | _KINDS[self.kind]
        try:
            async with asyncio.timeout(_LONGEST_S), session.post("/v1/chat/completions", json=body) as response:
                if response.status != 200:
                    self.error = f"status {response.status}"
                last_s = time.monotonic()
                async for line in response.content:
                    self.is_resumed |= line.startswith(b": x-resumed:")
                    if line.startswith(b"data: {"):
                        self._take(json.loads(line.removeprefix(b"data: ")))
                        self.longest_pause_s = max(self.longest_pause_s, time.monotonic() - last_s)
                        last_s = time.monotonic()
        except TimeoutError:
            self.error = "no end"
        except aiohttp.ClientError:
            self.error = "cut"

    def _take(self, event: dict[str, Any]) -> None:
        self.num_events += 1
        if "choices" not in event:
            self.error = "error event"
            return
        for choice in event["choices"]:
            calls = [call["function"] for call in choice["delta"].get("tool_calls") or []]
            pieces = [piece or "" for call in calls for piece in (call.get("name"), call.get("arguments"))]
            self.texts[choice["index"]] += "".join([choice["delta"].get("content") or "", *pieces])
            if choice.get("finish_reason"):
                self.finish_reasons[choice["index"]] = choice["finish_reason"]
        self.num_tokens = (event.get("usage") or {}).get("completion_tokens", self.num_tokens)

    def outcome(self, alone: _Read, *, has_texts: bool) -> str:
        """Return how it ended, beside the same chat alone."""
        if self.error:
            return self.error
        if self.finish_reasons.keys() != alone.finish_reasons.keys():
            return "no finish reason"
        is_same = self.num_tokens == alone.num_tokens and self.finish_reasons == alone.finish_reasons
        return "whole" if is_same and (self.texts == alone.texts or not has_texts) else "other tokens"


async def _under(number: signal.Signals, server: _Server, num_streams: int) -> list[list[str]]:
    """Return a row for each kind: how its streams ended, and their longest pause."""
    async with aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(limit=0)) as session:
        alone = {kind: _Read(kind) for kind in _KINDS}
        for each in alone.values():
            await each.run(session, server.model)
        kinds = [kind for kind, each in alone.items() if not each.error]
        reads = [_Read(kind) for kind in kinds for _ in range(num_streams)]
        running = asyncio.gather(*(each.run(session, server.model) for each in reads))
        quarter = sum(alone[each.kind].num_events for each in reads) / 4
        await asyncio.to_thread(wait_until, lambda: sum(each.num_events for each in reads) >= quarter, "a quarter came")
        for process in server.engine():
            process.send_signal(number)
        await running
    rows = []
    for kind, own in alone.items():
        ended = [each for each in reads if each.kind == kind]
        counts = Counter(each.outcome(own, has_texts=server.has_texts) for each in ended)
        text = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()) or f"alone: {own.error}"
        num_resumed = sum(each.is_resumed for each in ended)
        rows.append(
            [kind, text, str(num_resumed or "?"), f"{max((each.longest_pause_s for each in ended), default=0.0):.1f} s"]
        )
    return rows


@contextmanager
def _ours(folder: Path, repository: Path, log_path: Path) -> Iterator[_Server]:
    with replicas(repository, folder, log_path, 2) as fleet:
        yield _Server(fleet.url, "demo", partial(_stage, fleet.pids[0]), has_texts=True)


def _stage(pid: int) -> list[psutil.Process]:
    """Return the engine's process under a Triton."""
    children = psutil.Process(pid).children(recursive=True)
    return [each for each in children if any("__engine/" in word for word in each.cmdline())]


@contextmanager
def _dynamo(folder: Path, log_path: Path, *options: str) -> Iterator[_Server]:
    folder.mkdir()
    python = peers.installed_python(DYNAMO_DIR, dynamo.PINS)
    with (
        log_path.open("a") as log,
        dynamo.running(python, folder, CHECKPOINT, _MAX_SEQUENCES, log, *options, is_paced=True, num_engines=2) as (
            url,
            pids,
        ),
    ):
        time.sleep(5.0)  # until the frontend knows both
        yield _Server(url, dynamo.MODEL, lambda: [psutil.Process(pids["engine"])], has_texts=False)


def main() -> int:
    """Run the command line; return 1 if a stream of ours did not end whole."""
    parser = parser_of("deaths", __doc__)
    parser.add_argument("--streams", type=int, default=6, metavar="N", help="of each kind (%(default)s)")
    parser.add_argument("--server", choices=("ours", "dynamo"), help="only this one")
    options = parsed(parser)
    log_path = options.output / "deaths.log"
    say(summary_line(describe_machine()))
    is_whole = True
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        artifact = build(Path(name), "demo", "--precision", "f32")
        repository = render(Path(name) / "repository", [artifact], "--max-sequences", str(_MAX_SEQUENCES))
        for fault, number in _FAULTS.items():
            folder = Path(name) / fault
            folder.mkdir()
            servers = {}
            if options.server != "dynamo":
                servers[OURS] = _ours(folder, repository, log_path)
            if options.server != "ours":
                for words in ((), ("--migration-limit", "3")):
                    title = f"{DYNAMO} {' '.join(words) or 'as it comes'}"
                    servers[title] = _dynamo(folder / f"dynamo-{len(words)}", log_path, *words)
            say_heads([f"an engine {fault}", "kind", f"{options.streams} streams", "resumed", "longest pause"])
            for title, starting in servers.items():
                with starting as server:
                    for kind, text, num_resumed, pause in asyncio.run(_under(number, server, options.streams)):
                        say_row([title, kind, text, num_resumed, pause])
                        is_whole &= title != OURS or text == f"{options.streams} whole"
    return int(not is_whole)


if __name__ == "__main__":
    sys.exit(main())
