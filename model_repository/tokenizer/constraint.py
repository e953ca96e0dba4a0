"""The form of a completion: the request's structured output, or the calls of its tools."""

from __future__ import annotations

import os
import queue
import resource
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from model_repository.capabilities import callable_tools
from model_repository.contract.request import ChatPrompt, GenerationRequest, Params, Prompt, ToolUse
from model_repository.errors import InvalidRequest
from model_repository.structured_output import input_grammar
from model_repository.structured_output.compilation import check
from model_repository.structured_output.grammar import lark_to_grammar, rule_of, structured_output_to_grammar
from model_repository.structured_output.json_schema import IgnoredKeywords, enforceable_schema
from model_repository.system.bounded_process import BoundedProcess, TooCostly, memory_bytes
from model_repository.tokenizer.custom_tools import InputGrammars, Patterns, input_patterns
from model_repository.tokenizer.tool_grammar import grammar_of_messages, tool_grammar
from model_repository.tool_formats import ToolFormat

# llguidance's own limits are not enough: 59 patterns in one `allOf` allocate 6 GB and abort the process.
MAX_CPU_S = 0.5
MAX_BYTES = 32 << 20
_NICENESS = 10  # a process gets a tenth of a contended core
_MIN_BYTES = 256 << 10  # a small grammar takes 170 kB in the engine
_TRIVIAL = 'start: %json {"type": "object"}'


@dataclass(frozen=True, slots=True)
class Form:
    """The form that the whole completion must have; see EngineRequest."""

    grammar: str = ""
    is_combined: bool = False
    num_bytes: int = 0  # memory of the compiled grammar; 0: not measured
    ignored_keywords: tuple[str, ...] = ()


class ConstraintChecker:
    """Reads the schemas and grammars of requests in separate processes, so that a costly one fails only its sender.

    Args:
        num_processes: the number of calls at the same time; further callers wait.
    """

    def __init__(self, num_processes: int) -> None:
        input_grammar.prepare()
        self._processes = [BoundedProcess(_run, max_cpu_s=MAX_CPU_S, max_bytes=MAX_BYTES) for _ in range(num_processes)]
        self._idle: queue.SimpleQueue[BoundedProcess] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)

    def form(self, request: GenerationRequest, tool_format: ToolFormat) -> Form:
        """Return the form of a completion, with its memory.

        Raises:
            InvalidRequest: from `form_of`, or the check exceeds its limits of time or memory.
        """
        tool_use, params = callable_tools(request.prompt), request.params
        needed = GenerationRequest(
            prompt=ChatPrompt((), tool_use=tool_use, add_generation_prompt=is_new_message(request.prompt)),
            params=Params(structured_output=params.structured_output, ignore_eos=params.ignore_eos),
        )
        field = "guided_decoding_guide" if tool_use is None else "tools"
        return self._call(partial(_measured_form, needed, tool_format), field)

    def patterns(self, grammars: InputGrammars) -> Patterns:
        """Return the patterns of custom tools' inputs.

        Raises:
            InvalidRequest: from `input_patterns`, or the work exceeds its limits of time or memory.
        """
        return self._call(partial(input_patterns, grammars), "tools")

    def _call[Result](self, function: Callable[[], Result], field: str) -> Result:
        process = self._idle.get()
        try:
            result: Result = process.call(function)
            return result
        except TooCostly as exc:
            raise InvalidRequest(f"compilation takes {exc}, which is the limit", field) from exc
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """End the idle processes."""
        for process in self._processes:
            process.close()


def is_new_message(prompt: Prompt) -> bool:
    """Whether a completion is a new message of a chat, which may have a head."""
    return isinstance(prompt, ChatPrompt) and prompt.add_generation_prompt


def _run(function: Callable[[], Any]) -> Any:
    os.nice(_NICENESS)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # an aborting llguidance prints many lines
    return function()


def _measured_form(request: GenerationRequest, tool_format: ToolFormat) -> Form:
    """Return the form of a completion, with its memory. Only the first call in a process measures it."""
    check(_TRIVIAL)  # the library's own pages are not the grammar's
    before_bytes = memory_bytes(1)
    form = form_of(request, tool_format)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return replace(form, num_bytes=max(_MIN_BYTES, peak_bytes - before_bytes))


def form_of(request: GenerationRequest, tool_format: ToolFormat) -> Form:
    """Return the form that the whole completion must have. Its tools are functions.

    If tools must be called, there is no text, so the request's own structured output has no effect. Where messages have
    heads, tools are called in new messages only, and the form includes the heads and the thinking.

    Raises:
        InvalidRequest: the structured output or a tool is malformed, or a text to go on must be a call.
        Unsupported: it cannot be enforced.
    """
    structured_output, ignored = request.params.structured_output, IgnoredKeywords()
    form = Form()
    has_heads = tool_format.has_messages and is_new_message(request.prompt)
    tool_use = callable_tools(request.prompt)
    if tool_use is not None and (has_heads or not tool_format.has_messages):
        has_content = structured_output is not None and tool_use.choice == "auto"
        content = rule_of(structured_output, ignored) if structured_output is not None and has_content else None
        form = Form(_checked_tool_grammar(tool_use, tool_format, content, ignored), is_combined=True)
    elif tool_use is not None and tool_use.choice != "auto":
        raise InvalidRequest(f"{tool_use.choice}: this model calls tools in new messages only", "tool_choice")
    elif structured_output is not None and has_heads:
        rules = grammar_of_messages(rule_of(structured_output, ignored))
        form = Form(lark_to_grammar(rules), is_combined=True)
    elif structured_output is not None:
        form = Form(structured_output_to_grammar(structured_output, ignored))
    if form.grammar and request.params.ignore_eos:
        raise InvalidRequest("true goes with neither structured output nor tools: they say where it ends", "ignore_eos")
    return replace(form, ignored_keywords=ignored.places)


def _checked_tool_grammar(
    tool_use: ToolUse, tool_format: ToolFormat, content: str | None, ignored: IgnoredKeywords
) -> str:
    try:
        prepare = partial(enforceable_schema, ignored=ignored, notation=tool_format.notation)
        rules = tool_grammar(tool_use, tool_format, prepare, content=content)
        return lark_to_grammar(rules) if rules else ""
    except InvalidRequest as exc:
        if exc.field != "guided_decoding_guide":
            raise
        raise type(exc)(exc.text, "tools") from exc
