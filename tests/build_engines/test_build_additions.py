"""Additions of a build: LoRA adapters, a tool-call format, names and defaults."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from build_engines import artifact
from build_engines.build import build
from build_engines.cpu_spec import CpuSpec
from build_engines.errors import BuildError
from build_engines.serving import Serving
from build_engines.text_files import detected_tool_call_format, template_fields
from model_repository.byte_table import load_byte_table
from tests import harmony
from tests.build_engines.tiny_adapter import random_pairs, tensors_of, write_adapter
from tests.build_engines.tiny_checkpoint import random_weights

WEIGHTS = random_weights()
PAIRS = random_pairs(WEIGHTS, ("q_proj", "k_proj"))


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter of the checkpoint."""
    return write_adapter(tmp_path / "adapter", tensors_of(PAIRS))


# --- adapters ---------------------------------------------------------------------------------------------------------


def test_an_adapter_is_in_the_artifact(checkpoint: Path, adapter: Path, artifacts: Path) -> None:
    adapters = {"org/formal": adapter, "casual": adapter}
    folder = build(CpuSpec(model_id="tiny", checkpoint=checkpoint, adapters=adapters), artifacts)
    manifest = artifact.verify(folder)
    assert manifest.adapters == {"org/formal": "adapters/org--formal.gguf", "casual": "adapters/casual.gguf"}
    assert set(manifest.adapters.values()) <= manifest.files.keys()
    assert "adapters/org--formal/adapter_config.json" in manifest.source


def test_other_adapters_are_another_artifact(checkpoint: Path, adapter: Path, artifacts: Path) -> None:
    def key(**adapters: Path) -> str:
        return artifact.verify(build(CpuSpec(model_id="tiny", checkpoint=checkpoint, adapters=adapters), artifacts)).key

    keys = [key(), key(formal=adapter), key(casual=adapter), key(formal=adapter, casual=adapter)]
    write_adapter(adapter, tensors_of(PAIRS), lora_alpha=9)
    keys.append(key(formal=adapter))
    write_adapter(adapter, {name: tensor + np.float32(1) for name, tensor in tensors_of(PAIRS).items()}, lora_alpha=9)
    keys.append(key(formal=adapter))
    assert len(set(keys)) == len(keys)


def test_a_bad_adapter_is_refused_before_the_weights_are_converted(
    checkpoint: Path, adapter: Path, artifacts: Path
) -> None:
    (checkpoint / "model.safetensors").write_bytes(b"none")  # which would be refused too
    write_adapter(adapter, tensors_of(PAIRS), use_dora=True)
    with pytest.raises(BuildError, match="use_dora=true"):
        build(CpuSpec(model_id="tiny", checkpoint=checkpoint, adapters={"formal": adapter}), artifacts)
    assert all(path.name.endswith(".lock") for path in artifacts.iterdir())


# --- the tool-call format ---------------------------------------------------------------------------------------------


@pytest.fixture
def tool_checkpoint(checkpoint: Path) -> Path:
    """A checkpoint whose second added token marks a tool call, as its template shows."""
    description = json.loads((checkpoint / "tokenizer.json").read_text())
    description["added_tokens"][0]["content"] = "<tool_call>"
    (checkpoint / "tokenizer.json").write_text(json.dumps(description))
    (checkpoint / "chat_template.jinja").write_text("""{{ '<tool_call>{"name": f, "arguments": a}' }}""")
    return checkpoint


def test_the_chat_template_names_the_tool_call_format(tool_checkpoint: Path, artifacts: Path) -> None:
    folder = build(CpuSpec(model_id="tiny", checkpoint=tool_checkpoint), artifacts)
    manifest = artifact.verify(folder)
    assert manifest.tool_call_format == "hermes"
    assert load_byte_table(folder / "byte_table.npz")[260:262] == [b"<tool_call>", b""]


def test_the_chat_template_names_the_reasoning_format_and_its_tokens_are_text(
    tool_checkpoint: Path, artifacts: Path
) -> None:
    description = json.loads((tool_checkpoint / "tokenizer.json").read_text())
    description["added_tokens"][1]["content"] = "</think>"
    (tool_checkpoint / "tokenizer.json").write_text(json.dumps(description))
    (tool_checkpoint / "chat_template.jinja").write_text("{{ '<think></think>' }}")
    folder = build(CpuSpec(model_id="tiny", checkpoint=tool_checkpoint), artifacts)
    assert artifact.verify(folder).reasoning_format == "think"
    assert load_byte_table(folder / "byte_table.npz")[261:262] == [b"</think>"]


def test_the_tokens_of_messages_are_text_but_that_behind_a_call(tool_checkpoint: Path, artifacts: Path) -> None:
    description = json.loads((tool_checkpoint / "tokenizer.json").read_text())
    for added, name in zip(description["added_tokens"], ("<|channel|>", "<|call|>"), strict=False):
        added["content"] = name
    (tool_checkpoint / "tokenizer.json").write_text(json.dumps(description))
    (tool_checkpoint / "chat_template.jinja").write_text(harmony.TEMPLATE)
    folder = build(CpuSpec(model_id="tiny", checkpoint=tool_checkpoint), artifacts)
    manifest = artifact.verify(folder)
    assert (manifest.tool_call_format, manifest.reasoning_format) == ("harmony", "harmony")
    assert manifest.template_fields == ("message.thinking", "reasoning_effort")
    assert load_byte_table(folder / "byte_table.npz")[260:262] == [b"<|channel|>", b""]
    with pytest.raises(BuildError, match=r"--tool-call-format hermes: .*: harmony"):
        build(CpuSpec(model_id="tiny", checkpoint=tool_checkpoint, tool_call_format="hermes"), artifacts)


def test_the_template_for_tools_goes_before_the_other_one(tool_checkpoint: Path, artifacts: Path) -> None:
    templates = [{"name": "default", "template": "hello"}, {"name": "tool_use", "template": "<|python_tag|>"}]
    (tool_checkpoint / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    (tool_checkpoint / "chat_template.jinja").unlink()
    manifest = artifact.verify(build(CpuSpec(model_id="tiny", checkpoint=tool_checkpoint), artifacts))
    assert manifest.tool_call_format == "llama3_json"


def test_the_fields_that_the_chat_template_reads_are_known(tool_checkpoint: Path, artifacts: Path) -> None:
    template = "reasoning {% if effort or x is defined %}{{ messages[0]['reasoning_content'] }} thinking{% endif %}"
    (tool_checkpoint / "chat_template.jinja").write_text(template)
    manifest = artifact.verify(build(CpuSpec(model_id="tiny", checkpoint=tool_checkpoint), artifacts))
    assert manifest.template_fields == ("effort", "reasoning_content", "x")


NAMED = "{% for message in messages %}{% if message.role == 'tool' %}{{ message.name }}{% endif %}{% endfor %}"


@pytest.mark.parametrize(("template", "fields"), [(NAMED, ("name",)), ("{{ tools[0].function.name }}", ())])
def test_the_name_of_a_message_is_read_if_it_reaches_the_prompt(
    tool_checkpoint: Path, template: str, fields: tuple[str, ...]
) -> None:
    (tool_checkpoint / "chat_template.jinja").write_text(template)
    assert template_fields(tool_checkpoint) == fields


def test_the_format_that_is_detected_anyway_can_be_named(tool_checkpoint: Path, artifacts: Path) -> None:
    named = CpuSpec(model_id="tiny", checkpoint=tool_checkpoint, tool_call_format="hermes")
    assert build(named, artifacts) == build(CpuSpec(model_id="tiny", checkpoint=tool_checkpoint), artifacts)


def test_a_model_without_a_chat_template_is_plain(checkpoint: Path, artifacts: Path) -> None:
    (checkpoint / "tokenizer_config.json").write_text("{}")
    manifest = artifact.verify(build(CpuSpec(model_id="tiny", checkpoint=checkpoint), artifacts))
    assert (manifest.tool_call_format, manifest.template_fields) == ("plain", ())


# --- names and defaults -----------------------------------------------------------------------------------------------


def test_other_names_and_defaults_are_written_into_the_existing_artifact(checkpoint: Path, artifacts: Path) -> None:
    folder = build(CpuSpec(model_id="tiny", checkpoint=checkpoint), artifacts)
    before, written = artifact.verify(folder), (folder / "model.gguf").stat()
    serving = Serving.of(["gpt-4o"], {"chat_max_tokens": None})
    assert build(CpuSpec(model_id="tiny", checkpoint=checkpoint, serving=serving), artifacts) == folder
    after = artifact.verify(folder)
    assert (before.serving, after.serving) == (Serving(), serving)
    assert (after.key, after.created, after.files) == (before.key, before.created, before.files)
    assert (folder / "model.gguf").stat() == written
    assert build(CpuSpec(model_id="tiny", checkpoint=checkpoint), artifacts) == folder
    assert artifact.verify(folder) == before


CALLS = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}CALL{% endfor %}{% endfor %}{{ tools }}"


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ('<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments }}}</tool_call>', "hermes"),
        ('<tool_call>[{"tool": "{{ c.function.name }}"}]</tool_call>', "plain"),
        ('"parameters": {"tool_name": "{{ c.function.name }}"}', "plain"),
        ("<tool_call>{{ c.function.name }}{% for k in c.function.arguments %}<arg_key>{{ k }}{% endfor %}", "glm47"),
        ("<tool_call>{{ c.function.name }}\n{% for k in c.function.arguments %}<arg_key>{{ k }}{% endfor %}", "glm"),
        ("""{{ raise_exception('no') }}<tool_call>{"name": f, "arguments": a}""", "hermes"),
        (
            '<TOOLCALL>[{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments }}}]</TOOLCALL>',
            "nemotron",
        ),
    ],
)
def test_a_suggested_format_must_be_that_of_the_calls_that_the_template_writes(
    call: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": CALLS.replace("CALL", call)}))
    assert detected_tool_call_format(tmp_path) == name
