"""The load generator against a stub."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice, pairwise, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.raw_model import RawModel, real_model
from tests.workshop.load import __main__ as command
from tests.workshop.load import peers, runs
from tests.workshop.load.accounting import Processes, ProcessUse, Sample, cpu_between
from tests.workshop.load.http_stream import Exchange
from tests.workshop.load.load import Load, Target, agent_chats, requests
from tests.workshop.load.load_result import LoadResult, summarize
from tests.workshop.load.measures import (
    added_inter_token_s,
    kept_pace,
    latency_after_steps_s,
    lateness_s,
    token_arrivals,
)
from tests.workshop.load.runs import Run, Window, run_points
from tests.workshop.load.scenarios import DYNAMO, LLAMA_CPP, OURS, SUITE, Point, Setup, quick, setups_of
from tests.workshop.load.servers import Server, ServerFactory
from tests.workshop.load.stream_record import StreamRecord, read_embeddings, read_stream, timed_events
from tests.workshop.load.wide_vocabulary import write_wide_model


def event(fields: dict[str, Any] | str) -> bytes:
    return b"data: " + (fields if isinstance(fields, str) else json.dumps(fields)).encode() + b"\n\n"


def chat_events(texts: Sequence[str], *, num_tokens: int | None = None, finish_reason: str = "length") -> list[bytes]:
    """Return the events of a chat completion with usage and an end."""
    usage = {"completion_tokens": len(texts) if num_tokens is None else num_tokens}
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": {"content": text}}], "usage": None} for text in texts]
    last: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": finish_reason}]}
    return [event(each) for each in (*chunks, last, {"choices": [], "usage": usage})] + [event("[DONE]")]


class Handler(BaseHTTPRequestHandler):
    """Answers a chat at once; a token is an x. The model `short` ends too early."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        events = chat_events(["x"] * (body["max_tokens"] - (body["model"] == "short")))
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.wfile.write(head + b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in events) + b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.workshop.load", "--output", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_run_against_a_running_server_writes_its_report(tmp_path: Path, url: str) -> None:
    load = ["--streams", "2", "--window-s", "0.2", "--warmup-s", "0", "--repeat", "1"]
    done = run(tmp_path, "--url", url, "--model", "right", *load)
    assert done.returncode == 0, done.stdout + done.stderr
    [point] = json.loads((tmp_path / "results.json").read_text())["scenarios"][0]["points"]
    assert point["metrics"]["tokens_per_s"]["median"] > 0
    heading, _, row = (tmp_path / "tables.md").read_text().splitlines()[-3:]
    assert heading.startswith("|  | tokens/s |") and row.startswith("| 2 streams | ")
    assert "cpu_us_per_token" not in point["metrics"] and "CPU and memory are not measured" in done.stdout


def test_a_scenario_runs_on_the_real_server_and_has_plots(tmp_path: Path) -> None:
    done = run(tmp_path, "--quick", "--scenario", "unpaced", "--scenario", "grpc")
    assert done.returncode == 0, done.stdout + done.stderr
    scenarios = json.loads((tmp_path / "results.json").read_text())["scenarios"]
    point, *others = [point for scenario in scenarios for point in scenario["points"]]
    assert [each["metrics"]["num_failed"]["median"] for each in (point, *others)] == [0] * 5
    assert point["runs"][0]["cpu_s"].keys() >= {"frontend", "tritonserver", "tokenizer", "engine", "detokenizer"}
    assert b"too short for its figures to mean anything" in (tmp_path / "latency.png").read_bytes()


def test_a_server_with_wrong_answers_fails_the_command(tmp_path: Path, url: str) -> None:
    load = ["--streams", "2", "--window-s", "0.2", "--warmup-s", "0", "--repeat", "1"]
    done = run(tmp_path, "--url", url, "--model", "short", *load)
    assert done.returncode == 1 and "tokens by usage" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--streams", "8", "--rate", "5"], "--streams and --rate"),
        (["--url", "http://a"], "--url and --model"),
        (["--scenario", "nope"], "--scenario nope"),
        (["--streams", "0"], "num_streams=0: must be above 0"),
    ],
)
def test_a_wrong_command_line_has_status_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = run(tmp_path, *arguments)
    assert done.returncode == 2 and message in done.stderr


def test_both_servers_get_the_sampling_fields_of_the_scenario() -> None:
    fields = {"cpu-engine-real": {"temperature"}, "cpu-engine-penalties": {"top_p", "frequency_penalty"}}
    for scenario in (scenario for scenario in SUITE if scenario.name in fields):
        for ours, peer in zip(scenario.points[::2], scenario.points[1::2], strict=True):
            assert (ours.server, peer.server) == (OURS, LLAMA_CPP) and ours.load == peer.load
            body = json.loads(next(requests(ours.load, Target(url="http://a", model="m"))).partition(b"\r\n\r\n")[2])
            assert fields[scenario.name] <= ours.load.fields.keys() and ours.load.fields.items() <= body.items()


def test_both_servers_get_the_same_arrivals_at_a_share_of_our_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []

    def measured(load: Load, target: Target, processes: Processes) -> tuple[LoadResult, Window]:
        loads.append(load)
        result = replace(summarize(load, target, [], 0.0), num_requests=500)
        return result, Window(duration_s=2.0, cpu_s={}, generator_cpu_s=0.0, memory={})

    monkeypatch.setattr(runs, "measure", measured)
    [scenario] = [scenario for scenario in SUITE if scenario.name == "one-by-one"]
    server = Server(target=Target(url="http://a", model="m"))
    for _ in run_points("", scenario.points, {OURS: server, DYNAMO: server}, num_repeats=2):
        pass
    closed, _, ours, peer, *second = loads
    assert closed.rate_per_s is None and ours.rate_per_s == pytest.approx(0.6 * 500 / 2.0)
    assert ours == peer and second[2] == second[3] == replace(ours, seed=second[2].seed)
    assert ours.seed != second[2].seed


def test_tokens_are_ungathered_by_a_field_that_only_our_server_knows() -> None:
    [scenario] = [scenario for scenario in SUITE if scenario.name == "ungathered"]
    ours, peer = (point.load for point in scenario.points)
    assert ours == replace(peer, fields={**peer.fields, "stream_interval_ms": 0})


def run_of(point: str) -> Run:
    """Return a run of a point without requests."""
    result = summarize(Load(), Target(url="http://a", model="m"), [], 0.0)
    return Run(
        scenario="", point=point, repeat=1, result=result, window_s=1, cpu_s={}, generator_cpu_s=0, memory={},
        added_token_ms=result.ttft_ms, engine_call_ms=math.nan,
    )  # fmt: skip


def test_a_missing_package_leaves_out_the_scenarios_that_need_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def running(factory: ServerFactory, setup: Setup) -> AbstractContextManager[dict[str, Server]]:
        if setup.weights == "minilm":
            raise ModuleNotFoundError("no package x")
        return nullcontext({OURS: Server(target=Target(url="http://127.0.0.1:1", model="m"))})

    def run(name: str, points: Sequence[Point], servers: object, num_repeats: int) -> Iterator[Run]:
        return (run_of(point.label) for point in points)

    monkeypatch.setattr(ServerFactory, "running", running)
    monkeypatch.setattr(command, "run_points", run)
    monkeypatch.setattr(sys, "argv", ["load", "--scenario=embeddings", "--scenario=unpaced", f"--output={tmp_path}"])
    assert command.main() == 1
    assert "left out: embeddings: no package x" in capsys.readouterr().out
    assert "unpaced" in (tmp_path / "results.json").read_text(encoding="utf-8")


def test_a_new_pin_replaces_an_installed_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = tmp_path / "pins.txt"
    monkeypatch.setattr("venv.create", lambda folder, **_: folder.mkdir(exist_ok=True))
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("subprocess.run", run)
    for content, num_installs in (("a==1", 1), ("a==1", 1), ("a==2", 2)):
        pins.write_text(content)
        peers.installed_python(tmp_path / "environment", pins)
        assert len(commands) == num_installs


def test_bounds_and_tables_use_metrics_of_a_run() -> None:
    for scenario in SUITE:
        labels = [point.label for point in scenario.points]
        assert all(bound.point in labels for bound in scenario.bounds), scenario.name
    ratios = {"cost_to_first", "ratio_to_peer", "cpu_ratio_to_peer", "ttft_ratio_to_peer"}
    metrics = run_of("").metrics().keys() | ratios
    assert {name for scenario in SUITE for name in scenario.metrics} <= metrics
    assert len(setups_of(quick(SUITE))) <= 7


def test_an_ended_child_counts_once() -> None:
    def use(name: str, parent: int, own_s: float, ended_s: float = 0.0, started_at: float = 1.0) -> ProcessUse:
        return ProcessUse(name, parent, own_s, ended_s, started_at)

    before = Sample(0.0, {1: use("server", 0, 10.0), 2: use("engine", 1, 5.0)})
    after = Sample(1.0, {1: use("server", 0, 10.5, ended_s=5.25)})  # the child used 0.25 more, then ended
    assert cpu_between(before, after) == pytest.approx({"server": 0.75})
    reused = Sample(1.0, {1: use("server", 0, 10.0, ended_s=5.0), 2: use("engine", 1, 0.3, started_at=9.0)})
    assert cpu_between(before, reused) == pytest.approx({"server": 0.0, "engine": 0.3})
    deep = Sample(0.0, {1: use("server", 0, 1.0), 2: use("worker", 1, 2.0), 3: use("worker", 2, 3.0)})
    gone = Sample(1.0, {1: use("server", 0, 1.0, ended_s=5.5)})
    assert cpu_between(deep, gone) == pytest.approx({"server": 0.5})


def test_cpu_of_a_process_and_of_its_ended_children_is_counted() -> None:
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    program = f"import subprocess, sys; input(); subprocess.run([sys.executable, '-c', {burn!r}]); print(); input()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        processes = Processes({"server": process.pid})
        before = processes.sample()
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        used = cpu_between(before, processes.sample())
        assert 0 < processes.memory()["server"].pss_bytes <= processes.memory()["server"].rss_bytes
        process.communicate("\n")
    assert 0.45 <= used["server"] < 0.9  # the start of Python counts too
    assert processes.memory() == {}


@pytest.mark.parametrize(
    ("chunk_times", "chunk_chars", "num_tokens", "token_ends", "expected"),
    [
        ([1.0, 2.0], [3, 6], 3, (1, 3, 9), [1, 1, 2]),
        ([1.0, 2.0], [2, 2], 2, (3, 4), [2, 2]),  # a token arrives with its last character
        ([1.0, 2.0, 3.0], [4, 4, 4], 6, (), [1, 1, 2, 2, 3, 3]),  # without ends, tokens are equally long
        ([], [], 3, (), []),
    ],
)
def test_tokens_arrive_with_their_chunk(chunk_times, chunk_chars, num_tokens, token_ends, expected) -> None:
    assert token_arrivals(chunk_times, chunk_chars, num_tokens, token_ends).tolist() == expected


def test_delays_are_against_the_pace_or_the_steps_of_the_engine() -> None:
    arrivals = np.array([0.0, 0.02, 0.02, 0.04])  # the engine makes a token every 10 ms
    assert added_inter_token_s(arrivals, 0.01) == pytest.approx([0.01, -0.01, 0.01])
    assert lateness_s(arrivals, 0.01) == pytest.approx([0, 0.01, 0, 0.01])
    assert kept_pace(arrivals, 0.01) == pytest.approx(0.75)
    steps = np.array([1.00, 1.02, 1.04])
    tokens = np.array([0.5, 1.001, 1.0199, 1.042, 1.081])  # the steps of the first and the last are missing
    assert latency_after_steps_s(tokens, steps, 0.02) == pytest.approx([0.001, -0.0001, 0.002])


def test_agents_have_sent_nine_tenths_of_their_chats_before() -> None:
    def num_chars(messages: Iterable[dict[str, str]]) -> int:
        return sum(len(message["content"]) for message in messages)

    def num_common(chat: list[dict[str, str]], earlier: list[dict[str, str]]) -> int:
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(chat, earlier, strict=False))
        return num_chars(message for message, _ in pairs)

    chats = list(islice(agent_chats(Load(num_streams=2, turn_chars=100)), 40))
    assert {num_chars(chat) for chat in chats} == {850, 950, 1050, 1150}
    known = [
        max(num_common(chat, earlier) for earlier in chats[:index]) for index, chat in enumerate(chats) if index > 1
    ]
    assert 0.88 < sum(known) / sum(map(num_chars, chats[2:])) < 0.92


def test_only_the_window_counts() -> None:
    def stream(sent_s: float, *times_s: float, error: str = "") -> StreamRecord:
        return StreamRecord(sent_s=sent_s, ended_s=times_s[-1], chunk_times_s=times_s, chunk_chars=(1,) * len(times_s),
                            num_tokens=len(times_s), error=error)  # fmt: skip

    def result_of(*records: StreamRecord, **load: float) -> LoadResult:
        target = Target(url="http://a", model="m")
        return summarize(Load(window_s=2.0, **load), target, records, window_start_s=10.0)  # type: ignore[arg-type]

    result = result_of(stream(9, 9.5, 10.0, 11.0, 12.0), stream(11, 11.5, 11.6), stream(11, 11.2, error="bad"))
    assert (result.num_tokens, result.num_chunks, result.num_requests, result.num_sent) == (4, 4, 1, 3)
    assert (result.num_failed, result.errors) == (1, {"bad": 1})
    assert result_of(stream(1, 2, 3)).ttft_ms.num_values == 0
    paced = result_of(stream(10.0, 10.1, 10.3, 10.4), itl_ms=100.0)
    assert (paced.ttft_ms.at(50), paced.added_itl_ms.at(100)) == pytest.approx((100, 100))
    assert LoadResult.from_json(paced.to_json()) == paced


def test_events_are_the_same_in_any_pieces() -> None:
    events = chat_events(["a", "bc", "ü\u2028"])
    body = b": ping\r\n\r\n" + b"".join(events)
    whole = [data for _, data in timed_events([(0, body)])]
    assert len(whole) == len(events)
    for cut in range(len(body)):
        pieces = [(float(n), body[a:b]) for n, (a, b) in enumerate(pairwise([0, cut, len(body)]))]
        assert [data for _, data in timed_events(pieces)] == whole


def response_events(status: str) -> list[bytes]:
    delta = event({"type": "response.output_text.delta", "delta": "a"})
    return [delta, event({"type": f"response.{status}", "response": {"error": None, "usage": {"output_tokens": 3}}})]


def message_events(stop_reason: str) -> list[bytes]:
    delta = event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}})
    end = event({"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": {"output_tokens": 3}})
    return [delta, end, event({"type": "message_stop"})]


@pytest.mark.parametrize(
    ("events", "error"),
    [
        (chat_events(["a", "b", "c"]), ""),
        (chat_events(["a", "b", "c"])[:-1], "without its last event"),
        (chat_events(["a"], num_tokens=2), "after 2 tokens by usage, 3 requested"),
        (chat_events(["a"], num_tokens=3, finish_reason="stop"), "finish_reason stop"),
        ([event({"error": {"message": "no room"}}), event("[DONE]")], "no room"),
        ([event("{"), event("[DONE]")], "not JSON"),
        (response_events("incomplete"), ""),
        (response_events("completed"), "finish_reason stop"),
        (response_events("incomplete")[:-1], "without its last event"),
        ([event({"type": "error", "message": "no room"})], "no room"),
        (message_events("max_tokens"), ""),
        (message_events("end_turn"), "finish_reason stop"),
        (message_events("max_tokens")[:-1], "without its last event"),
    ],
)
def test_a_wrong_stream_names_its_mistake(events: list[bytes], error: str) -> None:
    record = read_stream(Exchange(0.0, 200, [(1.0, b"".join(events))], 1.0), 3, may_stop_early=False)
    assert (error in record.error) if error else record.error == ""
    missing = read_stream(Exchange(0.0, 404, [(1.0, b"no such model")], 1.0), 3, may_stop_early=False)
    assert missing.error == "status 404: no such model"


def test_requests_for_embeddings_have_texts_of_unlike_lengths() -> None:
    load = Load(api="embeddings", num_inputs=3, min_prompt_words=2, prompt_words=60, fields={})
    for request in islice(requests(load, Target(url="http://a", model="m")), 3):
        head, _, body = request.partition(b"\r\n\r\n")
        assert head.startswith(b"POST /v1/embeddings ")
        fields = json.loads(body)
        lengths = [len(text.split()) for text in fields["input"]]
        assert fields.keys() == {"model", "input"}
        assert len(set(lengths)) > 1 and all(2 <= length <= 60 for length in lengths)


@pytest.mark.parametrize(
    ("vectors", "error"), [([[0.6], [0.8]], ""), ([[0.6]], "1 vectors for 2"), ([[0.6], []], "1 vectors for 2")]
)
def test_each_text_gets_a_vector(vectors: list[list[float]], error: str) -> None:
    body = json.dumps({"data": [{"embedding": vector} for vector in vectors]}).encode()
    record = read_embeddings(Exchange(0.0, 200, [(1.0, body[:9]), (2.0, body[9:])], 2.0), num_inputs=2)
    assert (error in record.error) if error else (record.error, record.num_tokens) == ("", 2)


def test_a_wide_vocabulary_repeats_rows_and_changes_no_prompt(tmp_path: Path) -> None:
    write_wide_model(real_model(), tmp_path / "wide.gguf", num_rows=50_000)
    wide, source = RawModel(tmp_path / "wide.gguf"), RawModel(real_model())
    token_ids = source.tokenize("50000 49152 words")
    assert wide.tokenize("50000 49152 words") == token_ids
    [row], [expected] = wide.logprobs(token_ids)[-1:], source.logprobs(token_ids)[-1:]
    assert row - row.max() == pytest.approx(np.resize(expected - expected.max(), 50_000))
