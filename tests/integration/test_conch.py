"""The command `conch` as a person uses it, on a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import psutil
import pytest

from build_engines.checkpoint import Checkpoint
from build_engines.llama_cpp.gguf_file import write_gguf
from build_engines.model_source import DEMO
from frontend.cli.chat import chat
from frontend.cli.chat_client import ChatClient, ChatFailed, Message, Piece
from frontend.settings import SettingsError
from tests.build_engines.stand_in_hub import Repository, stand_in_hub
from tests.integration.api import EMBEDDINGS, Api
from tests.launching import FREE_PORTS
from tests.processes import command_line
from tests.waiting import DEADLINE_S, wait_until

PROMPT = "> "
ANSWER = "The capital of"  # the rest is drawn: of 200 answers one does not go on with France
# The console script, on a terminal of its own.
CONCH = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.argv[0] = "conch"
from frontend.__main__ import main
sys.exit(main())
"""


class Terminal:
    """A command on a terminal of its own, at which the test types and reads."""

    def __init__(self, *words: str, **environment: str) -> None:
        self.text = ""
        self._seen = 0
        self._terminal, end = pty.openpty()
        command = [sys.executable, "-c", CONCH, *words]
        self._process = subprocess.Popen(
            command, stdin=end, stdout=end, stderr=end, start_new_session=True, env=os.environ | environment
        )
        os.close(end)

    @property
    def pid(self) -> int:
        """The command's."""
        return self._process.pid

    def wait_for(self, text: str) -> None:
        """Read until this text comes. The next call searches behind it."""
        while (found := self.text.find(text, self._seen)) < 0:
            assert select.select([self._terminal], [], [], DEADLINE_S)[0], f"no {text!r} after {self.text!r}"
            try:
                self.text += os.read(self._terminal, 4096).decode()
            except OSError as exc:  # the other side is closed
                raise AssertionError(f"it has ended, with no {text!r} after {self.text!r}") from exc
        self._seen = found + len(text)

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def kill(self, number: signal.Signals, child: bytes = b"") -> None:
        """Send a signal to the command, or to its child with these words."""
        pid = self.pid
        if child:
            pid = next(each.pid for each in psutil.Process(pid).children() if child in command_line(each.pid))
        os.kill(pid, number)

    def status(self) -> int:
        """Return the exit status, once it has ended."""
        try:
            while piece := os.read(self._terminal, 4096):
                self.text += piece.decode()
        except OSError:  # the other side is closed
            os.close(self._terminal)
        return self._process.wait(DEADLINE_S)


def test_a_gguf_file_of_the_hub_leads_to_a_conversation(tmp_path: Path) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    write_gguf(Checkpoint.load(DEMO / "checkpoint"), folder / "Qwen3-8B-Q4_K_M.gguf", "f16")
    shutil.copyfile(DEMO / "mmproj.gguf", folder / "mmproj-F16.gguf")
    with stand_in_hub({"Qwen/Qwen3-8B-GGUF": Repository(folder)}) as endpoint:
        hub = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hub")}
        terminal = Terminal("run", "qwen3:8b", f"--home={tmp_path / 'state'}", *FREE_PORTS, **hub)
        terminal.wait_for("qwen3:8b: Ctrl-C stops an answer, Ctrl-D ends the conversation,")
        terminal.wait_for(PROMPT)
        terminal.type("What is the capital of France?\n")
        terminal.wait_for(ANSWER)
        terminal.wait_for(PROMPT)
        terminal.type("\x04")
        assert terminal.status() == 0
    assert "Traceback" not in terminal.text and terminal.text.count("\n") <= 10


def test_a_script_learns_that_ctrl_c_ended_the_loading(tmp_path: Path) -> None:
    terminal = Terminal("run", "demo", "Hello!", f"--home={tmp_path}", *FREE_PORTS)
    terminal.wait_for("Starting Triton and the frontend.")
    terminal.kill(signal.SIGINT)
    assert terminal.status() == 128 + signal.SIGINT


def test_a_conversation_has_a_history_and_goes_on_after_a_crash_until_a_signal(tmp_path: Path) -> None:
    terminal = Terminal("run", "demo", f"--home={tmp_path}", *FREE_PORTS)
    terminal.wait_for("model       demo\r\n")
    terminal.wait_for("demo: 2 x 2,048 tokens, ")
    terminal.wait_for("demo: Ctrl-C stops an answer, Ctrl-D ends the conversation,")
    terminal.wait_for(PROMPT)
    for typed in ("What is the capital of France?\n", "\x1b[A\n"):  # the second is the arrow key up
        terminal.type(typed)
        terminal.wait_for(ANSWER)
        terminal.wait_for(PROMPT)
    terminal.type("half a question")
    terminal.wait_for("half a question")
    time.sleep(1.0)  # readline misses a signal between its prompt and its first look at the input
    terminal.type("\x03")
    terminal.wait_for("Ctrl-D ends the conversation.")
    terminal.wait_for(PROMPT)
    terminal.kill(signal.SIGKILL, b"frontend\0api\0")
    terminal.wait_for("frontend was killed by SIGKILL; restart in 1 s")
    num_before, give_up_at = terminal.text.count(ANSWER), time.monotonic() + DEADLINE_S
    while terminal.text.count(ANSWER) == num_before and time.monotonic() < give_up_at:
        time.sleep(0.5)
        terminal.type("What is the capital of France?\n")
        terminal.wait_for(PROMPT)
    assert terminal.text.count(ANSWER) > num_before
    time.sleep(1.0)  # as above
    terminal.kill(signal.SIGTERM)
    assert terminal.status() == 0
    assert "[triton]" not in terminal.text and "Traceback" not in terminal.text


def conch(*words: str) -> str:
    """Return what a command prints."""
    return subprocess.run([sys.executable, "-m", "frontend", *words], stdout=subprocess.PIPE, text=True).stdout


def test_a_model_is_served_with_its_options(tmp_path: Path) -> None:
    options = ("--context-window", "512", "--max-sequences=2", "--alias", "mine", "--default", "temperature=0.5")
    terminal = Terminal("serve", "demo", *options, f"--home={tmp_path}", *FREE_PORTS)
    terminal.wait_for("curl ")
    url = re.findall(r"(http://\S+) serves demo", terminal.text)[0]
    card = Api(url).get("/v1/models/mine").body
    assert (card["root"], card["max_model_len"], card["default_parameters"]) == ("demo", 512, {"temperature": 0.5})
    assert conch("ps", f"--home={tmp_path}").split()[:3] == [str(terminal.pid), url, "demo"]
    assert conch("list", f"--home={tmp_path}").splitlines()[1].endswith(url)
    assert conch("rm", "demo", f"--home={tmp_path}") == ""  # refused
    assert conch("stop", f"--home={tmp_path}") == f"{url} is asked to stop\n"
    assert terminal.status() == 0
    assert conch("ps", f"--home={tmp_path}") == ""
    assert conch("rm", "demo", f"--home={tmp_path}").startswith("removed     ")


def test_the_embedder_is_served_behind_the_models(tmp_path: Path) -> None:
    terminal = Terminal("serve", "demo", "--with-embedder", f"--home={tmp_path}", *FREE_PORTS)
    terminal.wait_for("/v1/chat/completions")
    url = re.findall(r"(http://\S+) serves demo, .*, demo-embedder,", terminal.text)[0]
    models = [card["id"] for card in Api(url).get("/v1/models").body["data"]]
    assert (models[0], models[-1]) == ("demo", "demo-embedder")
    texts = ["Where does the cat sleep?", "El gato duerme en el jardín.", "El gato bebe leche en la cocina."]
    answer = Api(url).post(EMBEDDINGS, {"model": "demo-embedder", "input": texts})
    question, right, wrong = (np.array(each["embedding"]) for each in answer.body["data"])
    assert question @ right > question @ wrong
    terminal.kill(signal.SIGTERM)
    assert terminal.status() == 0


def test_an_option_of_a_model_goes_with_a_model(tmp_path: Path) -> None:
    terminal = Terminal("serve", "--precision", "q8_0", f"--home={tmp_path}")
    assert terminal.status() == 2
    assert " --precision=q8_0: goes with a MODEL, which is built with it" in terminal.text


def test_a_model_that_does_not_exist_is_an_error_of_one_line(tmp_path: Path) -> None:
    terminal = Terminal("serve", "no-such-model", f"--home={tmp_path}")
    assert terminal.status() == 1
    _, said = terminal.text.splitlines()
    assert said.startswith("error: no-such-model: not in the catalog; ")
    assert said.endswith(" (a MODEL may also be OWNER/NAME of the hub, a folder or FILE.gguf)")


def lines(*texts: str) -> Callable[[str], str]:
    """Return a function that reads these lines, and then the end of the input."""
    left = list(texts)

    def read(prompt: str) -> str:
        if not left:
            raise EOFError
        return left.pop(0)

    return read


class RecordingClient(ChatClient):
    """Keeps the messages of each request."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked: list[list[Message]] = []

    def answer(self, body: dict[str, Any]) -> Iterator[Piece]:
        """Keep the messages and ask."""
        self.asked.append(list(body["messages"]))
        return super().answer(body)


def test_chat_remembers_the_conversation_and_goes_on_after_an_error(api: Api) -> None:
    client, out, err = RecordingClient(f"{api.url}/v1"), io.StringIO(), io.StringIO()
    said = lines("What is the capital of France?", "a" * 100_000, "And of Italy?", "/clear", "/bye", "Hello!")
    assert chat(client, "demo", out, err, said) == 0
    first, second = out.getvalue().splitlines()
    assert first.startswith(ANSWER) and second
    answered = [*client.asked[0], {"role": "assistant", "content": first}]
    assert client.asked[-1] == [*answered, {"role": "user", "content": "And of Italy?"}]
    _, full, error = err.getvalue().strip().splitlines()
    assert full.startswith("(The context window is full.") and error.startswith("error: ") and "2048" in error


def test_chat_leaves_out_the_oldest_messages_when_the_window_is_full(api: Api) -> None:
    out, err = io.StringIO(), io.StringIO()
    long = f"What is the capital of France? {'a ' * 1200}"
    assert chat(ChatClient(api.url), "demo", out, err, lines(long, long), is_interactive=False) == 0
    assert "The oldest question and its answer are left out" in err.getvalue() and "error:" not in err.getvalue()


def test_ctrl_c_ends_an_answer_and_the_conversation_goes_on(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    client, out = RecordingClient(api.url), io.StringIO()
    answer = client.answer

    def interrupted(body: dict[str, Any]) -> Iterator[Piece]:
        pieces = answer(body)
        yield next(pieces)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(client, "answer", interrupted)
    assert chat(client, "demo", out, io.StringIO(), lines("Count from 1 to 20.", "And on?")) == 0
    first, second = out.getvalue().splitlines()
    assert first and "20" not in first and second
    assert client.asked[1][:2] == [*client.asked[0], {"role": "assistant", "content": first}]


def test_an_answer_may_fill_the_window(api: Api) -> None:
    client = ChatClient(api.url)
    assert client.models()["demo"] == 2048
    question = {"role": "user", "content": "Count from 1 to 20."}
    list(client.answer({"model": "demo", "messages": [question], "max_tokens": 3}))
    assert client.finish_reason == "length"


FIGURES = (
    r"time to first token  [0-9.]+ s\n"
    r"prompt               \d+ tokens, \d+ of them cached; prefill [0-9.,]+ tokens/s\n"
    r"completion           \d+ tokens; decode [0-9.,]+ tokens/s\n"
    r"context window       \d+ of 2,048 tokens \([0-9.]+%\)\n"
)


def test_a_script_gets_answers_alone(api: Api) -> None:
    def ask(text: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "frontend", "chat", f"--url={api.url}", *words]
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=DEADLINE_S, check=False)

    answered = ask("What is the capital of France?\n\nAnd of Italy?\n", "--lines", "--model=demo")
    assert re.fullmatch(rf"{ANSWER}.+\n.+\n", answered.stdout)
    assert (answered.returncode, answered.stderr) == (0, "")
    for text, words in (("", ["What is the capital", "of France?"]), ("of France?\n", ["What is the capital"])):
        answered = ask(text, *words, "--stats")
        assert re.fullmatch(rf"{ANSWER}.+\n", answered.stdout)
        assert re.fullmatch(FIGURES, answered.stderr)
    failed = ask("Hello!", "--model=none")
    assert (failed.returncode, failed.stdout) == (1, "") and failed.stderr.startswith("error: model='none'")
    for text, words, name in (("", [], "QUESTION"), ("Hello!", ["Hello!", "--lines"], "--lines")):
        refused = ask(text, *words)
        assert (refused.returncode, refused.stdout) == (2, "") and refused.stderr.startswith(f"error: {name}: ")


def test_a_conversation_has_commands(api: Api, tmp_path: Path) -> None:
    terminal = Terminal("chat", f"--url={api.url}")
    typed = {
        "/set temperature 9": "temperature=9: ",
        "/set temperature 0": "",
        '/system """You are\n... formal."""': "",
        '"""What is the capital\n... of France?"""': ANSWER,
        "/retry": ANSWER,
        f"/save {tmp_path / 'saved.json'}": "(2 messages are in ",
        "/mode": "did you mean /model?",
        "/mode\t": "* demo",
    }
    for text, answer in typed.items():
        for line in text.splitlines():
            terminal.wait_for("... " if line.startswith("... ") else PROMPT)
            terminal.type(f"{line.removeprefix('... ')}\n")
        terminal.wait_for(answer)
    terminal.wait_for(PROMPT)
    terminal.type("/exit\n")
    assert terminal.status() == 0
    system, question, answered = json.loads((tmp_path / "saved.json").read_text())["messages"]
    assert system == {"role": "system", "content": "You are\nformal."}
    assert question == {"role": "user", "content": "What is the capital\nof France?"}
    assert answered["content"].startswith(ANSWER)


def test_a_person_edits_and_completes_and_finds_lines_again(tmp_path: Path) -> None:
    history, saved = tmp_path / "history", tmp_path / "my notes.json"
    saved.write_text("mine")
    event = {"choices": [{"delta": {"content": "so be it"}, "finish_reason": "stop"}]}
    models = {"data": [{"id": "m", "max_model_len": 9, "owned_by": "conch"}]}
    answer = f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode()
    with other_server(200, answer, json.dumps(models).encode()) as url:
        for _ in range(2):
            options = (f"--url={url}", f"--history={history}")
            terminal = Terminal("chat", *options, VISUAL="""sh -c 'echo " Why now?" >> "$0"'""")
            terminal.wait_for(PROMPT)
            for typed, shown in (
                ("\x1b[A\n" if history.stat().st_size else "Why?\n", "so be it"),  # the arrow key up
                ("/edit\n", "so be it"),
                ("/stats\n", "time to first token"),
                ("/sav\t", "/save "),
                (f"{tmp_path}/my\t", "my\\ notes.json "),
                ("\n", "Overwrite it? (y/N) "),
                ("y\n", "(4 messages are in "),
                ("Why?\n", "so be it"),
            ):
                terminal.type(typed)
                terminal.wait_for(shown)
                if typed.endswith("\n") and not shown.endswith("(y/N) "):
                    terminal.wait_for(PROMPT)
            terminal.type("\x04")
            assert terminal.status() == 0 and "Traceback" not in terminal.text
            questions = [each["content"] for each in json.loads(saved.read_text())["messages"][::2]]
            assert questions == ["Why?", "Why? Why now?"]
            saved.write_text("mine")
    save = f"/save {tmp_path}/my\\ notes.json "
    kept = ["Why?", "/edit", "/stats", save, "Why?"]
    assert [json.loads(line) for line in history.read_text().splitlines()] == [*kept, *kept[1:]]


@pytest.fixture
def tmux() -> Iterator[Callable[..., str]]:
    """A tmux without a window: a function that returns what one of its commands prints."""
    if shutil.which("tmux") is None:
        pytest.skip("needs the Debian package tmux")
    with tempfile.TemporaryDirectory() as folder:  # the path of a socket is short

        def run(*words: str) -> str:
            command = ["tmux", "-f", os.devnull, "-S", f"{folder}/socket", *words]
            return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout

        yield run
        run("kill-server")


def test_pasted_lines_are_one_question(api: Api, tmp_path: Path, tmux: Callable[..., str]) -> None:
    saved = tmp_path / "saved.json"
    tmux("new-session", "-d", "-x", "200", "-y", "50", sys.executable, "-m", "frontend", "chat", f"--url={api.url}")

    def wait_for_prompt(number: int) -> None:
        wait_until(lambda: re.findall("^>", tmux("capture-pane", "-p"), re.MULTILINE)[number - 1 :], f"prompt {number}")

    wait_for_prompt(1)
    tmux("set-buffer", "What is the capital\nof Spain?\n")
    tmux("paste-buffer", "-p")  # in brackets, if the program has asked for them, as every terminal pastes
    tmux("send-keys", "Enter")
    wait_for_prompt(2)
    tmux("send-keys", f"/save {saved}", "Enter")
    wait_for_prompt(3)
    question, _ = json.loads(saved.read_text())["messages"]
    assert question == {"role": "user", "content": "What is the capital\nof Spain?\n"}


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_unicode_shows_question_marks(encoding: str) -> None:
    command = [sys.executable, "-m", "frontend", "chat"]
    events = b'data: {"choices": [{"delta": {"content": "5 \\u2265 4"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    models = {"data": [{"id": "m", "max_model_len": 9, "owned_by": "conch"}]}
    with other_server(200, events, json.dumps(models).encode()) as url:
        environment = os.environ | {"PYTHONIOENCODING": encoding}
        done = subprocess.run(
            [*command, f"--url={url}"], input="größer?".encode(), capture_output=True, env=environment
        )
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, [b"5 ? 4"], b"")


@contextmanager
def other_server(status: int, content: bytes, answer_to_get: bytes = b"") -> Iterator[str]:
    """Answer every request with this, or a GET with something else, and yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer_to_get if self.command == "GET" and answer_to_get else content)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("status", "content", "message"),
    [
        (200, b"<html>", "not the answer of an OpenAI server"),
        (200, b'{"data": []}', "the server has no models"),
        (404, b"<html>", "HTTP status 404, and not from an OpenAI server: is this its URL?"),
        (401, b'{"error": {"message": "no key"}}', "no key (`conch` takes it from OPENAI_API_KEY)"),
    ],
)
def test_another_server_is_named_as_that(status: int, content: bytes, message: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    with other_server(status, content) as url:
        assert chat(ChatClient(url), "", out, err, lines()) == 1
    assert err.getvalue().startswith("error: ") and err.getvalue().endswith(f"{message}\n")


def test_an_answer_without_its_end_is_an_error() -> None:
    event = b'data: {"choices": [{"delta": {"content": "half"}, "finish_reason": null}]}\n\n'
    with other_server(200, event) as url, pytest.raises(ChatFailed, match=r"^the answer broke off$"):
        list(ChatClient(url).answer({}))


@pytest.mark.parametrize("url", ["http://h:abc", "http://[::1", "ftp://h", ""])
def test_a_malformed_url_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match=r"^URL="):
        ChatClient(url)


def test_chat_without_a_server_says_so() -> None:
    out, err = io.StringIO(), io.StringIO()
    assert chat(ChatClient("127.0.0.1:9"), "", out, err, lines()) == 1
    assert err.getvalue() == "error: no server at http://127.0.0.1:9: `conch serve` starts one\n"


def test_launch_becomes_the_program_with_the_servers_first_model(tmp_path: Path) -> None:
    program = tmp_path / "claude"
    printer = "import json, os, sys\njson.dump([os.getpid(), sys.argv[3:], dict(os.environ)], sys.stdout)"
    program.write_text(f"#!{sys.executable}\n{printer}")
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    models = {"data": [{"id": name, "max_model_len": 65536, "owned_by": "conch"} for name in ("b", "a")]}
    with other_server(200, b"", json.dumps(models).encode()) as url:
        command = [sys.executable, "-m", "frontend", "launch", "claude", f"--url={url}/v1", "--", "-p", "--", "--url"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PATH": path}) as process:
            out, _ = process.communicate(timeout=DEADLINE_S)
    pid, arguments, environment = json.loads(out)
    assert (pid, arguments) == (process.pid, ["-p", "--", "--url"])
    names = ("ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL", "CLAUDE_CODE_MAX_CONTEXT_TOKENS")
    assert [environment[name] for name in names] == [url, "b", "65536"]


def test_launch_knows_the_window_of_the_servers_model(api: Api) -> None:
    command = [sys.executable, "-m", "frontend", "launch", "codex", "demo", f"--url={api.url}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 1 and done.stderr.startswith("error: demo has a window of 2,048 tokens, and codex needs")


def test_bench_measures_two_models_in_turns(api: Api) -> None:
    command = [sys.executable, "-m", "frontend", "bench", api.url, "--model=demo-formal", f"--beside={api.url}/v1"]
    command += ["--streams=1,3", "--seconds=0.5", "--prompt-tokens=150", "--tokens=20", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert [row["streams"] for row in found["rows"]] == [1, 1, 3, 3]
    assert [ratio["streams"] for ratio in found["ratios"]] == [1, 3]
    for row in found["rows"]:
        assert (row["url"], row["model"], row["failed"]) == (api.url, "demo-formal", 0)
        assert row["requests"] >= row["streams"] and row["answer_tokens"] == 20
        assert 100 < row["prompt_tokens"] < 200
        assert min(row["ttft_ms_median"], row["tokens_per_s"], row["tokens_per_s_of_one"]) > 0


def test_bench_serves_a_model_for_the_measurement(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "frontend", "bench", "demo", "--alias=mine", "--model=mine"]
    command += ["--streams=2", "--seconds=0.5", "--tokens=8", "--json"]
    environment = os.environ | {"CONCH_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)["rows"]
    assert (row["model"], row["streams"], row["answer_tokens"]) == ("mine", 2, 8)
    assert conch("ps", f"--home={tmp_path}") == ""


def test_doctor_says_what_is_there_and_what_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "frontend", "doctor", "--json", f"--home={tmp_path / 'none'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    found = {each["subject"]: each for each in json.loads(done.stdout)}
    of_machine = {"Python", "limits", "ports", "CPU", "GPU", "disk"}
    assert set(found) == of_machine | {"Triton", "home", "TensorRT-LLM", "llama.cpp", "models"}
    assert found["Triton"]["text"].endswith("/bin/tritonserver")
    assert found["models"]["text"].startswith("none yet")
    assert done.returncode == int(not all(each["is_well"] for each in found.values()))
