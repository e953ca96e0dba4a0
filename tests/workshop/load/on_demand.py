"""Models on demand: three models at a server with room for one, ours and llama-server's router in turns.

`python -m tests.workshop.load.on_demand` serves SmolLM2, Gemma 3 270M and all-MiniLM, from the same GGUF files and with
the same slots, windows and threads at both servers. It measures a swap of each model with one client, and 8 clients at
random models. A second run has SmolLM2 and all-MiniLM only: two clients, each with a model of its own, then 7 clients
at SmolLM2 and one at all-MiniLM. Our server has memory for the largest model. The last table compares the swap
of SmolLM2 with Triton's load of three empty Python models.

llama-server is compiled into .conch/llama-server, once, in some ten minutes; where that fails, its rows are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from build_engines.artifact import Manifest
from frontend.launcher.triton_server import ADDRESS
from model_repository.arbiter.catalog import Catalog
from model_repository.system.cores import num_cores
from tests.raw_model import RawModel, real_embedder, real_model
from tests.workshop.load import empty_models, llama_router, peers
from tests.workshop.load.command import parsed, parser_of, say, say_heads, say_row
from tests.workshop.load.machine import describe_machine, summary_line
from tests.workshop.load.scenarios import OURS
from tests.workshop.load.servers import build, render, serving
from tests.workshop.load.swap_traffic import Alone, Answer, Model, figures, measure_alone, traffic

_ROUTER = f"llama-server b{llama_router.BUILD}"
_KEPT = Path(".conch")  # has the peer, and Gemma
_NUM_SLOTS, _SLOT_TOKENS = 8, 1024  # the embedder has its own window
_SMOLLM2, _MINILM = Model("smollm2", "chat/completions"), Model("minilm", "embeddings")
_GEMMA = Model("gemma", "completions")  # its file has no chat template


def main() -> int:
    """Run the command line; return 1 if a request failed at our server."""
    parser = parser_of("on_demand", __doc__)
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="of each traffic (%(default)s)")
    parser.add_argument("--clients", type=int, default=8, metavar="N", help="at random models (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the clients' choices (%(default)s)")
    parser.add_argument("--threads", type=int, default=num_cores(), metavar="N", help="of an engine (%(default)s)")
    parser.add_argument("--server", choices=("ours", "router"), help="only this one")
    options = parsed(parser)
    say(summary_line(describe_machine()))
    answers: dict[str, list[Answer]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        artifacts = _artifacts(Path(name))
        crowd, others = options.clients, options.clients - 1
        models, pair = [*artifacts], [_SMOLLM2, _MINILM]
        with _servers(Path(name) / "all", artifacts, options) as servers:
            times = _measure_alone(servers, models)
            answers |= _measure(f"{crowd} clients at random models", [models] * crowd, servers, times, options)
        with _servers(Path(name) / "pair", {model: artifacts[model] for model in pair}, options) as servers:
            own_times = _measure_alone(servers, pair)
            for title, clients in (
                ("two clients, each at one model", [[_SMOLLM2], [_MINILM]]),
                (f"{others} clients at one model, one at another", [*[[_SMOLLM2]] * others, [_MINILM]]),
            ):
                answers |= _measure(title, clients, servers, own_times, options)
        _compare(Path(name), artifacts[_SMOLLM2], {server: each[_SMOLLM2.name] for server, each in times.items()})
    records = {key: [asdict(each) for each in value] for key, value in answers.items()}
    (options.output / "on-demand.json").write_text(json.dumps(records))
    return int(any(each.error for key, value in answers.items() for each in value if key.startswith(OURS)))


def _artifacts(state_dir: Path) -> dict[Model, Path]:
    """Build the models, or those that can be installed."""
    window = ("--context-window", str(_SLOT_TOKENS))
    built = {_SMOLLM2: build(state_dir, _SMOLLM2.name, "--gguf", str(real_model()), *window)}
    try:
        built[_GEMMA] = build(state_dir, _GEMMA.name, "--gguf", str(peers.gemma(_KEPT / "gemma")), *window)
    except peers.Unavailable as exc:
        say(f"{_GEMMA.name} is left out: {exc}")
    built[_MINILM] = build(state_dir, _MINILM.name, "--checkpoint", str(real_embedder()))
    return built


@contextmanager
def _servers(state_dir: Path, artifacts: Mapping[Model, Path], options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Serve models until the end of the block; yield the URLs of the servers by their names."""
    state_dir.mkdir()
    with ExitStack() as stack:
        servers = {}
        if options.server != "router":
            servers[OURS] = stack.enter_context(_ours(state_dir, artifacts, options))
        if options.server != "ours":
            try:
                servers[_ROUTER] = stack.enter_context(_router(state_dir, artifacts, options))
            except peers.Unavailable as exc:
                say(f"{_ROUTER} is left out: {exc}")
        yield servers


@contextmanager
def _ours(state_dir: Path, artifacts: Mapping[Model, Path], options: argparse.Namespace) -> Iterator[str]:
    engine = ("--max-sequences", str(_NUM_SLOTS), "--num-threads", str(options.threads))
    repository = render(state_dir / "repository", list(artifacts.values()), *engine)
    largest_bytes = max(entry.memory_bytes for entry in Catalog.read(repository).entries.values())
    words = [f"--home={state_dir / 'serve'}", f"--model-memory={largest_bytes}"]
    with serving(repository, options.output / "on-demand.log", *words) as (port, _):
        yield f"http://{ADDRESS}:{port}"


@contextmanager
def _router(state_dir: Path, artifacts: Mapping[Model, Path], options: argparse.Namespace) -> Iterator[str]:
    presets: dict[str, dict[str, object]] = {"*": {"threads": options.threads, "parallel": _NUM_SLOTS}}
    for model, folder in artifacts.items():
        num_tokens = _NUM_SLOTS * Manifest.load(folder).context_window
        presets[model.name] = {"model": folder / "model.gguf", "ctx-size": num_tokens}
    presets[_MINILM.name]["embedding"] = "true"
    with (options.output / "llama-server.log").open("w") as log:
        program = llama_router.compiled(_KEPT / "llama-server")
        with llama_router.running(program, state_dir / "router", presets, log) as url:
            yield url


def _measure_alone(servers: Mapping[str, str], models: Sequence[Model]) -> dict[str, dict[str, Alone]]:
    """Print and return each server's times with one client."""
    times = {server: asyncio.run(measure_alone(url, models)) for server, url in servers.items()}
    rows = [
        [server, name, f"{each.warm_s:.2f} s", f"{each.swap_s:.2f} s"]
        for server, by_name in times.items()
        for name, each in by_name.items()
    ]
    _print_table(["", "one client", "first token, loaded", "first token, with a swap"], rows)
    return times


def _measure(
    title: str,
    clients: Sequence[Sequence[Model]],
    servers: Mapping[str, str],
    times: Mapping[str, Mapping[str, Alone]],
    options: argparse.Namespace,
) -> dict[str, list[Answer]]:
    """Print a table of one traffic; return the answers of each server."""
    answers, rows = {}, []
    for server, url in servers.items():
        answers[f"{server}, {title}"] = found = asyncio.run(traffic(url, clients, options.seconds, options.seed))
        row = figures(found, times[server])
        rows.append([server, *row.values()])
    _print_table([title, *row], rows)
    return answers


def _compare(folder: Path, artifact: Path, swap_times: Mapping[str, Alone]) -> None:
    """Compare a swap of SmolLM2 with its parts."""
    (folder / "empty").mkdir()
    turns = empty_models.load_and_unload_s(folder / "empty")
    load_s, unload_s = (statistics.median(times) for times in zip(*turns, strict=True))
    begin_s = time.monotonic()
    RawModel(artifact / "model.gguf").logprobs([1])
    own_s = time.monotonic() - begin_s
    seconds = {
        "three empty Python models at Triton, until ready": load_s,
        "their unload, until their processes have ended": unload_s,
        "SmolLM2 in llama.cpp alone, until its first logits": own_s,
        "1.5 times (empty models ready + SmolLM2 alone)": 1.5 * (load_s + own_s),
    }
    for server, times in swap_times.items():
        seconds[f"swap at {server}: unload of another model, and load"] = times.load_s
    if (peer := swap_times.get(_ROUTER)) is not None:
        seconds["1.5 times (empty models ready + the swap there)"] = 1.5 * (load_s + peer.load_s)
    _print_table(["warm swap of SmolLM2", "s"], [[name, f"{each:.2f}"] for name, each in seconds.items()])


def _print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    say_heads(heads)
    for row in rows:
        say_row(row)
    say("")


if __name__ == "__main__":
    sys.exit(main())
