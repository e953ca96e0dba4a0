"""The parsers of other servers, in a process of its own: most of what their packages import is replaced by stand-ins.

It reads one JSON object, `{"tools": [...], "texts": {format: [text, ...]}}`, and writes one,
`{oracle: {format: [[content, [[name, arguments], ...]], ...]}}`, with the arguments as JSON text.
"""

from __future__ import annotations

import importlib
import json
import logging
import signal
import sys
import types
from collections.abc import Callable, Iterable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any

from model_repository.tool_formats import TOOL_FORMATS

type Parsed = tuple[str, list[tuple[str, str]]]
type Parse = Callable[[str, str], Parsed]

# The names of each oracle's parsers, by our formats.
VLLM = {
    "hermes": "hermes",
    "llama3_json": "llama3_json",
    "deepseek": "deepseek_v3",
    "deepseek_v31": "deepseek_v31",
    "mistral_v3": "mistral",
    "mistral_v11": "mistral",
    "mistral_v13": "mistral",
    "kimi_k2": "kimi_k2",
    "granite": "granite",
    "qwen_xml": "qwen3_coder",
    "glm": "glm45",
    "glm47": "glm47",
    "minimax_m2": "minimax_m2",
    "deepseek_v32": "deepseek_v32",
    "deepseek_v4": "deepseek_v4",
    "gemma4": "gemma4",
    "lfm2": "lfm2",
    "llama4": "llama4_pythonic",
}
SGLANG = {
    "hermes": "qwen",
    "llama3_json": "llama3",
    "deepseek": "deepseekv3",
    "deepseek_v31": "deepseekv31",
    "mistral_v3": "mistral",
    "mistral_v11": "mistral",
    "mistral_v13": "mistral",
    "kimi_k2": "kimi_k2",
    "qwen_xml": "qwen3_coder",
    "glm": "glm45",
    "glm47": "glm47",
    "minimax_m2": "minimax-m2",
    "deepseek_v32": "deepseekv32",
    "deepseek_v4": "deepseekv4",
    "gemma4": "gemma4",
    "lfm2": "lfm2",
    "llama4": "pythonic",
}
TRANSFORMERS = {"hermes": "qwen3", "qwen_xml": "qwen3_5", "gemma4": "gemma4"}
MAX_S = 2.0  # for one text: a parser may not end
# Imported by the parsers' modules, and without effect on parsing.
STAND_INS = (
    *("IPython", "cbor2", "cloudpickle", "cpuinfo", "fastapi", "openai_harmony", "torch", "triton", "xgrammar"),
    *("vllm.config", "vllm.multimodal", "vllm.utils.torch_utils"),
)


class _StandInType(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn

    def __or__(cls, other: Any) -> Any:
        return cls

    def __ror__(cls, other: Any) -> Any:
        return cls


class StandIn(metaclass=_StandInType):
    """A class, a function, a decorator or a type hint."""

    def __init__(self, *args: Any, **options: Any) -> None: ...

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    def __call__(self, *args: Any, **options: Any) -> Any:
        return args[0] if args and callable(args[0]) else self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return importlib.import_module("pydantic_core").core_schema.any_schema()


class _StandInModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn


class _StandInFinder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        is_stand_in = any(name == module or name.startswith(f"{module}.") for module in STAND_INS)
        return ModuleSpec(name, self, is_package=True) if is_stand_in else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


def _without_package_code(*names: str) -> None:
    """Let modules of a package be imported without the code of the package itself."""
    for name in names:
        spec = find_spec(name)
        assert spec is not None
        package = types.ModuleType(name)
        package.__path__ = list(spec.submodule_search_locations or [])
        sys.modules[name] = package


def _tokenizer(special_tokens: Iterable[str]) -> Any:
    """Return a tokenizer of bytes and special tokens."""
    tokenizers = importlib.import_module("tokenizers")
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    vocabulary = {character: number for number, character in enumerate(sorted(byte_level.alphabet()))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special_tokens))
    return importlib.import_module("transformers").PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def vllm(tools: list[dict[str, Any]]) -> Parse:
    _without_package_code("vllm")
    manager = importlib.import_module("vllm.tool_parsers").ToolParserManager
    protocol = importlib.import_module("vllm.entrypoints.openai.chat_completion.protocol")
    request = protocol.ChatCompletionRequest(messages=[{"role": "user", "content": "Hi"}], model="m", tools=tools)
    parsers = {name: manager.get_tool_parser(parser) for name, parser in VLLM.items()}
    tokenizers = {name: _tokenizer(TOOL_FORMATS[name].special_tokens) for name in VLLM}

    def parse(format_name: str, text: str) -> Parsed:
        parser = parsers[format_name](tokenizers[format_name], request.tools)
        found = parser.extract_tool_calls(text, request=request)
        return found.content or "", [(call.function.name, call.function.arguments) for call in found.tool_calls]

    return parse


def sglang(tools: list[dict[str, Any]]) -> Parse:
    _without_package_code("sglang", "sglang.srt")
    parser_type = importlib.import_module("sglang.srt.function_call.function_call_parser").FunctionCallParser
    tool_type = importlib.import_module("sglang.srt.entrypoints.openai.protocol").Tool
    known = [tool_type(**tool) for tool in tools]

    def parse(format_name: str, text: str) -> Parsed:
        content, calls = parser_type(known, SGLANG[format_name]).parse_non_stream(text)
        return content, [(call.name, call.parameters) for call in calls]

    return parse


def transformers(tools: list[dict[str, Any]]) -> Parse:
    fallbacks = importlib.import_module("transformers.cli.serving.utils")._RESPONSE_TEMPLATE_FALLBACKS
    parse_response = importlib.import_module("transformers.utils.chat_parsing").parse_response
    templates = {name: template for names, template in fallbacks.items() for name in names}

    def parse(format_name: str, text: str) -> Parsed:
        message = parse_response(text, templates[TRANSFORMERS[format_name]], prefix="", tools=tools)
        functions = [call["function"] for call in message.get("tool_calls") or []]
        calls = [(function["name"], json.dumps(function["arguments"])) for function in functions]
        return message.get("content") or "", calls

    return parse


ORACLES = {"vllm": (VLLM, vllm), "sglang": (SGLANG, sglang), "transformers": (TRANSFORMERS, transformers)}


def _attempt(parse: Parse, format_name: str, text: str) -> Parsed:
    signal.setitimer(signal.ITIMER_REAL, MAX_S)
    try:
        return parse(format_name, text)
    except Exception as exc:  # it is an answer of the oracle
        return f"{type(exc).__name__}: {exc}", [("raised", "{}")]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _raise(*_: Any) -> None:
    raise TimeoutError


def main() -> None:
    logging.disable()
    signal.signal(signal.SIGALRM, _raise)
    sys.meta_path.insert(0, _StandInFinder())
    job = json.load(sys.stdin)
    results: dict[str, dict[str, list[Parsed]]] = {}
    for oracle, (formats, begin) in ORACLES.items():
        if find_spec(oracle) is not None:
            parse = begin(job["tools"])
            results[oracle] = {
                name: [_attempt(parse, name, text) for text in job["texts"].get(name, ())] for name in formats
            }
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
