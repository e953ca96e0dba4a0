"""Agents, SDKs and retrieval frameworks do tasks against Conch, as people start them. The chat model is a double."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from build_engines.build import build
from build_engines.cpu_spec import CpuSpec
from build_engines.serving import Serving
from tests.build_engines.tiny_scorers import write_scorer
from tests.documents import pdf
from tests.integration.api import Api
from tests.integration.stack import DEMO_CHECKPOINT
from tests.launching import free_port, running
from tests.raw_model import real_embedder
from tests.workshop.agents import reply_runtime
from tests.workshop.agents.played import MODEL, serving

HERE = Path(__file__).parent
INSTALLED = Path(sys.prefix, "agents")  # by `make agents`
PYTHON = (INSTALLED / "python" / "bin" / "python", HERE / "python_clients.py")
RETRIEVAL = (INSTALLED / "python" / "bin" / "python", HERE / "retrieval_clients.py")
CONCH = str(Path(sys.prefix, "bin", "conch"))
NODE = ("node", "--input-type=module", "-")  # imports from the current folder
ALIAS = "gpt-4.1"
EMBEDDER = "all-minilm"
RERANKER = "random-reranker"
CONTEXT_WINDOW = 200_000  # Claude Code's first prompt has 30,000 of the demo model's tokens

PYTHON_CLIENTS = (
    *("openai_agents", "openai_agents_streamed", "pydantic_ai_openai", "pydantic_ai_anthropic"),
    *("langchain_openai", "langchain_openai_responses", "langchain_anthropic"),
    *("litellm_openai", "litellm_responses", "litellm_anthropic", "litellm_messages", "litellm_messages_openai"),
)
RETRIEVAL_CLIENTS = ("langchain", "llama_index", "haystack", "mem0", "pydantic_ai", "litellm")
# These do a second task, which needs the answer to the first one.
PYTHON_SESSIONS = ("openai_agents_previous_response", "openai_agents_conversation", "openai_agents_compaction")
NODE_CLIENTS = ("openai", "openai_streamed", "openai_unstored", "anthropic", "anthropic_streamed")
NODE_SESSIONS = ("openai_second_turn", "openai_second_turn_streamed", "openai_previous_response")
RERANK_CLIENTS = ("litellm_cohere", "litellm_jina")
NODE_RETRIEVAL_CLIENTS = ("ai_sdk", "openai")
AGENTS: Mapping[str, tuple[str, ...]] = {  # arguments for one task without questions
    "claude": ("--print", "--permission-mode", "acceptEdits"),
    "codex": ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
    "opencode": ("run",),
}
# Codex lets a provider of this name write its summaries, here one after each step.
CODEX_CONFIG = """
model = "{model}"
model_provider = "conch"
model_context_window = 200000
model_auto_compact_token_limit = 1000
[model_providers.conch]
name = "OpenAI"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "CONCH_API_KEY"
"""
PROXIED_CLIENTS = ("openai_agents_streamed", "langchain_openai", "langchain_anthropic")
PROXIED_APIS = ("openai", "anthropic")  # of the proxy's requests
QUESTION = "How long does my breakfast stay on the stove?"
DOCUMENTS = (
    "The Eiffel Tower was built for the world's fair of 1889 in Paris.",
    "The moon causes the tides of the oceans.",
    "To boil an egg, put it into hot water for eight minutes.",
    "A mortgage is a loan that is secured by a house.",
    "Penguins are birds that cannot fly, but swim very well.",
    "The violin has four strings and is played with a bow.",
)
NUMBERS = "One, two, three, four, five, six, seven, eight, nine."
RETRIEVED = "It takes eight minutes."  # the model's answer where the third document is in the prompt

if not INSTALLED.is_dir():
    pytest.skip(f"needs the programs in {INSTALLED}, which `make agents` installs", allow_module_level=True)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server: its model plays replies, and thinks unless a request forbids it. Two models do retrieval."""
    folder = tmp_path_factory.mktemp("server")
    checkpoint = folder / "checkpoint"
    shutil.copytree(DEMO_CHECKPOINT, checkpoint, ignore=shutil.ignore_patterns("*.safetensors"))
    _replace(checkpoint / "config.json", ": 2048", f": {CONTEXT_WINDOW}")
    _replace(checkpoint / "tokenizer_config.json", "if enable_thinking", "if enable_thinking is not false")
    _replace(checkpoint / "tokenizer_config.json", "if lora_name is defined", "if false")  # this model may think
    spec = CpuSpec(model_id=MODEL, runtime=reply_runtime.NAME, checkpoint=checkpoint, serving=Serving.of([ALIAS], {}))
    artifact = build(spec, folder / "artifacts")
    others = {EMBEDDER: real_embedder(), RERANKER: write_scorer(folder / "scorer", "cross_encoder", seed=0)}
    specs = [CpuSpec(model_id=name, checkpoint=path) for name, path in others.items()]
    artifacts = [artifact, *(build(spec, folder / "artifacts") for spec in specs)]
    with serving(artifacts, folder) as url:
        yield url


@pytest.fixture(scope="module")
def proxy_url(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of LiteLLM's proxy in front of the server."""
    folder, port = tmp_path_factory.mktemp("proxy"), free_port()
    deployments = [
        {"model_name": api, "litellm_params": {"model": f"{api}/{MODEL}", "api_base": base, "api_key": "none"}}
        for api, base in zip(PROXIED_APIS, (f"{url}/v1", url), strict=True)
    ]
    embedder = {"model": f"openai/{EMBEDDER}", "api_base": f"{url}/v1", "api_key": "none"}
    deployments.append({"model_name": EMBEDDER, "litellm_params": embedder})
    (folder / "config.yaml").write_text(json.dumps({"model_list": deployments}))
    program = INSTALLED / "python" / "bin" / "litellm"
    args = (program, "--config", folder / "config.yaml", "--host", "127.0.0.1", "--port", str(port))
    environment = _environment(folder, LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY="true")
    with running(folder, "litellm", args=args, env=environment) as command:
        command.wait_for("Uvicorn running")
        yield f"http://127.0.0.1:{port}"


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def _environment(home: Path, **variables: str) -> Mapping[str, str]:
    """Return an environment without the user's own settings of these programs. LiteLLM asks the network for prices."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LITELLM_LOCAL_MODEL_COST_MAP": "True", **variables}


def _output(args: Sequence[str | Path], folder: Path, source: str = "", **variables: str) -> str:
    """Run a program in a folder with a text as its input, and return its output, once it has succeeded."""
    environment = _environment(folder, **variables)
    done = subprocess.run(args, cwd=folder, env=environment, input=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _check_task(output: str) -> None:
    end = json.loads(output.splitlines()[-1])
    assert end == {"answer": "The code in note.txt is 4217.", "called": ["list_files", "read_file note.txt"]}


def _check_both_tasks(output: str) -> None:
    end = json.loads(output.splitlines()[-1])
    assert end["answer"] == "The code in other.txt is 5318."
    assert end["called"] == ["list_files", "read_file note.txt", "read_file other.txt"]


@pytest.mark.parametrize("client", PYTHON_CLIENTS)
def test_a_python_sdk_does_the_task(url: str, client: str, tmp_path: Path) -> None:
    _check_task(_output([*PYTHON, client, url, MODEL], tmp_path))


@pytest.mark.parametrize("client", PYTHON_SESSIONS)
def test_openais_agents_sdk_goes_on_with_a_stored_conversation(url: str, client: str, tmp_path: Path) -> None:
    _check_both_tasks(_output([*PYTHON, client, url, MODEL], tmp_path))


@pytest.mark.parametrize("api", PROXIED_APIS)
@pytest.mark.parametrize("client", PROXIED_CLIENTS)
def test_an_sdk_does_the_task_through_litellms_proxy(proxy_url: str, client: str, api: str, tmp_path: Path) -> None:
    _check_task(_output([*PYTHON, client, proxy_url, api], tmp_path))


@pytest.mark.parametrize("client", RETRIEVAL_CLIENTS)
def test_a_python_framework_answers_with_the_right_document(url: str, client: str, tmp_path: Path) -> None:
    assert _output([*RETRIEVAL, client, url, MODEL, EMBEDDER, QUESTION, *DOCUMENTS], tmp_path) == RETRIEVED


def test_langchains_default_is_refused_since_it_sends_ids_of_openais_tokens(url: str, tmp_path: Path) -> None:
    args = (*RETRIEVAL, "langchain_token_ids", url, MODEL, EMBEDDER, QUESTION, *DOCUMENTS)
    assert "is not a token: they are 0 to 30521" in _output(args, tmp_path)


def test_a_framework_answers_with_the_right_document_through_litellms_proxy(proxy_url: str, tmp_path: Path) -> None:
    args = (*RETRIEVAL, "langchain", proxy_url, PROXIED_APIS[0], EMBEDDER, QUESTION, *DOCUMENTS)
    assert _output(args, tmp_path) == RETRIEVED


@pytest.mark.parametrize("client", RERANK_CLIENTS)
def test_litellm_has_the_servers_order_of_documents(url: str, client: str, tmp_path: Path) -> None:
    body = {"model": RERANKER, "query": QUESTION, "documents": DOCUMENTS}
    order = [each["index"] for each in Api(url).post("/v1/rerank", body).body["results"]]
    assert json.loads(_output([*RETRIEVAL, client, url, MODEL, RERANKER, QUESTION, *DOCUMENTS], tmp_path)) == order


@pytest.mark.parametrize("client", NODE_RETRIEVAL_CLIENTS)
def test_a_javascript_sdk_answers_with_the_right_document(url: str, client: str) -> None:
    source = (HERE / "retrieval_clients.mjs").read_text()
    args = (*NODE, client, url, MODEL, EMBEDDER, QUESTION, *DOCUMENTS)
    assert _output(args, INSTALLED / "node", source).strip() == RETRIEVED


@pytest.mark.parametrize("client", NODE_CLIENTS)
def test_vercels_ai_sdk_does_the_task(url: str, client: str) -> None:
    source = (HERE / "node_clients.mjs").read_text()
    _check_task(_output([*NODE, client, url, MODEL], INSTALLED / "node", source))


@pytest.mark.parametrize("client", NODE_SESSIONS)
def test_vercels_ai_sdk_goes_on_with_a_stored_conversation(url: str, client: str) -> None:
    source = (HERE / "node_clients.mjs").read_text()
    _check_both_tasks(_output([*NODE, client, url, MODEL], INSTALLED / "node", source))


@pytest.mark.parametrize("client", ["previous_response", "conversation"])
def test_openais_javascript_sdk_goes_on_with_a_stored_conversation(url: str, client: str) -> None:
    _check_both_tasks(_stored(url, client))


def test_openais_javascript_sdk_reads_the_rest_of_a_background_answer(url: str) -> None:
    end = json.loads(_stored(url, "background"))
    assert (end["status"], end["streamed"], end["answer"]) == ("completed", NUMBERS, NUMBERS)
    assert end["numbers"] == list(range(len(end["numbers"])))


def test_openais_javascript_sdk_finds_stored_chats(url: str) -> None:
    found = {"asked": ["Name the numbers up to nine."], "answer": NUMBERS, "seen": "yes"}
    assert json.loads(_stored(url, "chats")) == {"found": [found], "left": []}


def _stored(url: str, client: str) -> str:
    source = (HERE / "stored_clients.mjs").read_text()
    return _output([*NODE, client, url, MODEL], INSTALLED / "node", source)


@pytest.mark.parametrize("program", AGENTS)
def test_a_coding_agent_edits_a_file(url: str, program: str, tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text("hello\n")
    assert _said_by(program, "Replace hello by goodbye in note.txt", url, tmp_path) == "I have replaced it."
    assert note.read_text() == "goodbye\n"


def test_claude_code_reads_a_pdf(url: str, tmp_path: Path) -> None:
    (tmp_path / "report.pdf").write_bytes(pdf(["The word is swordfish."]))
    assert _said_by("claude", "Which word is in report.pdf?", url, tmp_path) == "The word is swordfish."


def test_codex_compacts_with_a_provider_of_the_name_openai(url: str, tmp_path: Path) -> None:
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").write_text(CODEX_CONFIG.format(url=url, model=MODEL))
    (tmp_path / "note.txt").write_text("hello\n")
    args = ("codex", *AGENTS["codex"], "Replace hello by goodbye in note.txt")
    said = _output(args, tmp_path, PATH=_path_with("codex", tmp_path), CONCH_API_KEY="none").splitlines()[-1]
    assert said == "I have replaced it, says the summary."
    assert (tmp_path / "note.txt").read_text() == "goodbye\n"


def _said_by(program: str, task: str, url: str, folder: Path) -> str:
    """Return the last line of an agent that does a task in a folder."""
    launch = (CONCH, "launch", program, MODEL, "--url", url, "--", *AGENTS[program])
    return _output([*launch, task], folder, PATH=_path_with(program, folder)).splitlines()[-1]


def _path_with(program: str, home: Path) -> str:
    """Return a PATH with a program. Skip where the program does not start."""
    path = os.pathsep.join((str(INSTALLED / "node" / "node_modules" / ".bin"), os.environ["PATH"]))
    try:
        subprocess.run([program, "--version"], env=_environment(home, PATH=path), capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        pytest.skip(f"{program} does not start here: {exc}")
    return path
