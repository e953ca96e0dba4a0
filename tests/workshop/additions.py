"""Adds a made-up fact, runtime and task to a copy of this checkout, and counts the files that each of them needs.

`python -m tests.workshop.additions` prints a line for each. A tiny model is built with the addition and asked over HTTP
(the stages and a frontend run in one process, see request_path), and the golden files are written again: none may
change. The counts are those of source files. The tests and pages of a real addition come on top.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from build_engines.__main__ import main as build_engines
from build_engines.build import build
from build_engines.cpu_spec import CpuSpec
from tests.build_engines.tiny_checkpoint import write_checkpoint
from tests.workshop.request_path import ROOT, replace_triton, served

GOLDEN = pathlib.Path("tests", "golden")


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """A made-up addition, and a model and a request that use it."""

    changed: Mapping[str, Mapping[str, str]]  # path to the texts that are replaced, and their replacements
    new: Mapping[str, str]  # path to text
    model: Mapping[str, Any]  # fields of CpuSpec
    config: Mapping[str, Any]  # fields of the checkpoint's config.json
    path: str  # of the request
    body: Mapping[str, Any]
    answer: str  # part of the answer

    @property
    def files(self) -> list[str]:
        """The source files that it changes or adds."""
        return [*self.changed, *self.new]


CHAT = {"messages": [{"role": "user", "content": "A question."}], "max_tokens": 4}

ADDITIONS = {
    # A licence that the checkpoint names goes with each answer.
    "fact": Addition(
        changed={
            "model_repository/model_facts.py": {
                "    min_dimensions: int = 0": '    licence: str = ""\n    min_dimensions: int = 0'
            },
            "build_engines/cpu_spec.py": {
                "labels=scores.labels,": 'labels=scores.labels, licence=checkpoint.config["licence"],'
            },
            "frontend/handlers/call.py": {
                "    headers = ignored_header(ignored)\n": "    headers = ignored_header(ignored)\n"
                '    headers["x-licence"] = name.model.parameters.licence\n'
            },
        },
        new={},
        model={},
        config={"licence": "made up"},
        path="/v1/chat/completions",
        body=CHAT,
        answer="x-licence: made up",
    ),
    # A runtime repeats the prompt.
    "runtime": Addition(
        changed={
            "model_repository/runtimes.py": {
                "RUNTIMES = {\n": 'RUNTIMES = {\n    "parrot": RuntimeEntry('
                '"model_repository.engine.parrot.runtime:ParrotRuntime", frozenset()),\n'
            }
        },
        new={
            "model_repository/engine/parrot/__init__.py": "",
            "model_repository/engine/parrot/runtime.py": """\
from model_repository.engine.synthetic import SyntheticRuntime

class ParrotRuntime(SyntheticRuntime):
    def _completion(self, request):
        while True:
            yield from request.prompt_token_ids[-7:]
""",
        },
        model={"runtime": "parrot"},
        config={},
        path="/v1/completions",
        body={"prompt": "polly  ", "max_tokens": 14},
        answer='"text":"polly  polly  "',
    ),
    # A model's task is the number of its largest value.
    "task": Addition(
        changed={
            "model_repository/model_facts.py": {
                '    RANK = "rank"': '    PEAK = "peak"\n    RANK = "rank"',
                '    SCORE = "score"\n': '    SCORE = "score"\n    PEAK = "peak"\n',
                "        return cls.SCORE if": "        if pooling == Pooling.PEAK:\n"
                "            return cls.PEAK\n        return cls.SCORE if",
            },
            "model_repository/engine/llama_cpp/context.py": {
                "    Pooling.RANK: llama": "    Pooling.PEAK: llama.LLAMA_POOLING_TYPE_MEAN,\n    Pooling.RANK: llama"
            },
            "frontend/endpoints.py": {
                "from frontend.translate.embeddings import": "from frontend.translate.peaks import PeakReply\n"
                "from frontend.translate.embeddings import inputs_to_requests,",
                '    Endpoint(\n        path="/v1/rerank",': '    Endpoint(path="/v1/peak", cost=Cost.TOKENS, '
                "call=encoding(inputs_to_requests, PeakReply), tasks=(Task.PEAK,), body=EmbeddingRequest),\n"
                '    Endpoint(\n        path="/v1/rerank",',
            },
        },
        new={
            "frontend/translate/peaks.py": """\
import numpy as np

from frontend.translate.embeddings import EncoderReply

class PeakReply(EncoderReply):
    def __init__(self, body, name):
        super().__init__(body, name, "peak")

    def whole(self, chunks):
        vectors = [np.frombuffer(chunk.embedding, "<f4") for chunk in chunks]
        return {**self._shared(chunks), "peaks": [int(vector.argmax()) for vector in vectors]}
"""
        },
        model={"named_facts": {"pooling": "peak"}},
        config={},
        path="/v1/peak",
        body={"input": ["One text.", "One text."]},
        answer='"peaks":[',
    ),
}


def copy_with(addition: Addition, root: pathlib.Path) -> None:
    """Copy this checkout, with an addition.

    Raises:
        AssertionError: a text that it replaces is there no longer, or twice.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, root / name)
    for name, replacements in addition.changed.items():
        text = (root / name).read_text(encoding="utf-8")
        for old, new in replacements.items():
            assert text.count(old) == 1, (name, old)
            text = text.replace(old, new)
        (root / name).write_text(text, encoding="utf-8")
    for name, text in addition.new.items():
        assert not (root / name).exists(), name
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


async def answer(addition: Addition, folder: pathlib.Path) -> str:
    """Build a model, serve it, and return the headers and the body of the answer to the addition's request."""
    checkpoint = write_checkpoint(folder / "checkpoint", **addition.config)
    artifact = build(CpuSpec(model_id="tiny", checkpoint=checkpoint, **addition.model), folder / "artifacts")
    repository = folder / "repository"
    assert build_engines(["render", str(artifact), "--repository", str(repository)]) == 0
    async with (
        served(repository) as session,
        session.post(addition.path, json={"model": "tiny", **addition.body}) as response,
    ):
        headers = [f"{name}: {value}" for name, value in response.headers.items()]
        return "\n".join([*headers, await response.text()])


def num_changed(addition: Addition, root: pathlib.Path) -> int:
    """Return the number of golden files that another root has in another form."""
    paths = {path.relative_to(each) for each in (ROOT, root) for path in (each / GOLDEN).rglob("*.*")}
    return sum(_content(ROOT / path) != _content(root / path) for path in paths)


def _content(path: pathlib.Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def run(name: str) -> tuple[int, int]:
    """Try an addition; return the numbers of source files and of golden files that it changes or adds.

    Raises:
        AssertionError: the answer is another one.
        CalledProcessError: the copy does not work; its output is in stderr.
    """
    addition = ADDITIONS[name]
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder, "checkout")
        copy_with(addition, root)
        found = ""
        for command in (["tests.build_engines.test_render"], ["tests.workshop.additions", "--answer", name]):
            environment = os.environ | {"PYTHONPATH": str(root)}
            arguments = [sys.executable, "-m", *command]
            found = subprocess.run(
                arguments, cwd=root, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=300
            ).stdout
        assert addition.answer in found, found
        return len(addition.files), num_changed(addition, root)


def main() -> None:
    """Try the additions, or print the answer of one in this checkout."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--answer", choices=ADDITIONS, help="print the answer of a checkout that has the addition")
    options = parser.parse_args()
    if options.answer is None:
        for name, addition in ADDITIONS.items():
            num_files, num_golden = run(name)
            print(f"{name}: {num_files} source files, {num_golden} golden: {', '.join(addition.files)}")  # noqa: T201
        return
    replace_triton()
    with tempfile.TemporaryDirectory() as folder:
        print(asyncio.run(answer(ADDITIONS[options.answer], pathlib.Path(folder))))  # noqa: T201


if __name__ == "__main__":
    main()
