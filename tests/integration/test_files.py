"""Documents through the whole stack, by the official clients and by curl."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import anthropic
import pytest
from openai import OpenAI

from tests.documents import data_uri, pdf, pdf_with_image
from tests.integration.api import CHAT, COUNT_TOKENS, Api
from tests.integration.stack import PACED_MODEL, Stack
from tests.waiting import DEADLINE_S

NUM_PAGES = 100
WORDS = [f"w{page * 7919 % 1000:03d}" for page in range(1, NUM_PAGES + 1)]  # one for each page
REPORT = pdf(WORDS)
FILE = {"type": "file", "file": {"file_data": data_uri(REPORT), "filename": "report.pdf"}}
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def claude(stack: Stack) -> Any:
    with anthropic.Anthropic(base_url=stack.url, api_key="none", max_retries=0, timeout=DEADLINE_S) as client:
        yield client


def test_each_page_of_a_document_is_in_the_prompt_of_each_api(client: OpenAI, claude: Any, api: Api) -> None:
    """The tokens are equal in each API, and the second API finds them in the KV cache."""
    messages: Any = [{"role": "user", "content": [FILE, {"type": "text", "text": QUESTION}]}]
    tokens = api.post("/tokenize", {"model": "demo", "messages": messages}).body["tokens"]
    prompt = api.post("/detokenize", {"model": "demo", "tokens": tokens}).body["prompt"]
    assert [f"[Page {page}]\n{word}\n" in prompt for page, word in enumerate(WORDS, 1)] == [True] * NUM_PAGES
    chat = client.chat.completions.create(model="demo", messages=messages, max_tokens=1, temperature=0)
    file: Any = {"type": "input_file", "file_data": data_uri(REPORT), "filename": "report.pdf"}
    item: Any = {"role": "user", "content": [file, {"type": "input_text", "text": QUESTION}]}
    response = client.responses.create(model="demo", input=[item], max_output_tokens=1, temperature=0)
    source = {"type": "base64", "media_type": "application/pdf", "data": data_uri(REPORT).partition(",")[2]}
    block = {"type": "document", "source": source, "title": "report.pdf"}
    asked: Any = [{"role": "user", "content": [block, {"type": "text", "text": QUESTION}]}]
    message = claude.messages.create(model="demo", messages=asked, max_tokens=1)
    count = api.post(COUNT_TOKENS, {"model": "demo", "messages": asked}).body["input_tokens"]
    read = message.usage.input_tokens + message.usage.cache_read_input_tokens
    assert chat.usage is not None
    assert response.usage is not None
    assert [chat.usage.prompt_tokens, response.usage.input_tokens, read, count] == [len(tokens)] * 4
    assert response.usage.input_tokens_details.cached_tokens == len(tokens) - 1
    assert message.usage.cache_read_input_tokens == len(tokens) - 1


def test_a_page_with_a_picture_is_seen(client: OpenAI) -> None:
    file: Any = {"type": "file", "file": {"file_data": data_uri(pdf_with_image("cap")), "filename": "a.pdf"}}
    messages: Any = [{"role": "user", "content": [file, {"type": "text", "text": "What colour is it?"}]}]
    with_picture, without = (
        client.chat.completions.create(model=model, messages=messages, max_tokens=4).usage
        for model in ("demo-pictures", PACED_MODEL)
    )
    assert with_picture is not None
    assert without is not None
    assert with_picture.prompt_tokens > without.prompt_tokens


def test_a_damaged_document_is_refused_by_place(api: Api) -> None:
    file = {"type": "file", "file": {"file_data": data_uri(b"%PDF-1.7 damaged")}}
    answer = api.post(CHAT, {"model": "demo", "messages": [{"role": "user", "content": [file]}]})
    place = "messages[0].content[0].file.file_data"
    assert (answer.status, answer.body["error"]["param"]) == (400, place)
    assert answer.body["error"]["message"] == f"{place}: not a readable PDF"


def test_the_command_of_the_page_works(stack: Stack, tmp_path: Path) -> None:
    [command] = [block for block in Path("docs/documents.md").read_text().split("```") if block.startswith("sh\n")]
    (tmp_path / "report.pdf").write_bytes(pdf(["The capital of France is Paris."]))
    command = command.removeprefix("sh\n").replace("http://127.0.0.1:8000", stack.url)
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert '"finish_reason"' in done.stdout
