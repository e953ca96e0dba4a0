"""The form of a completion: the request's structured output, or the calls of its tools."""

from __future__ import annotations

import os
import queue
import resource

from model_repository.capabilities import callable_tools
from model_repository.contract.request import ChatPrompt, GenerationRequest, Params, Prompt, StructuredOutput, ToolUse
from model_repository.errors import InvalidRequest
from model_repository.structured_output.grammar import rule_of, structured_output_to_grammar
from model_repository.structured_output.json_schema import enforceable_schema
from model_repository.system.bounded_process import BoundedProcess, TooCostly, memory_bytes
from model_repository.tokenizer.tool_grammar import grammar_of_messages, tool_grammar
from model_repository.tool_formats import ToolFormat

# llguidance's own limits are not enough: 59 patterns in one `allOf` allocate 6 GB and abort the process.
MAX_CPU_S = 0.5
MAX_BYTES = 32 << 20
_NICENESS = 10  # a process gets a tenth of a contended core

type CheckedOutput = tuple[StructuredOutput | None, int]  # the number: bytes of memory when compiled


class ConstraintChecker:
    """Checks constraints in separate processes, so that a costly one fails only its sender.

    Args:
        num_processes: the number of checks at the same time; further callers wait.
    """

    def __init__(self, num_processes: int) -> None:
        self._processes = [
            BoundedProcess(_measured_constraint, max_cpu_s=MAX_CPU_S, max_bytes=MAX_BYTES) for _ in range(num_processes)
        ]
        self._idle: queue.SimpleQueue[BoundedProcess] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)

    def __call__(self, request: GenerationRequest, tool_format: ToolFormat) -> CheckedOutput:
        """Return the constraint of a request, and its memory.

        Raises:
            InvalidRequest: from `constraint`, or the check exceeds its limits of time or memory.
        """
        tool_use, params = callable_tools(request.prompt), request.params
        needed = GenerationRequest(
            prompt=ChatPrompt((), tool_use=tool_use, add_generation_prompt=is_new_message(request.prompt)),
            params=Params(structured_output=params.structured_output, ignore_eos=params.ignore_eos),
        )
        process = self._idle.get()
        try:
            checked: CheckedOutput = process.call((needed, tool_format))
        except TooCostly as exc:
            field = "guided_decoding_guide" if tool_use is None else "tools"
            raise InvalidRequest(f"compilation takes {exc}, which is the limit", field) from exc
        finally:
            self._idle.put(process)
        return checked

    def close(self) -> None:
        """End the idle processes."""
        for process in self._processes:
            process.close()


def is_new_message(prompt: Prompt) -> bool:
    """Whether a completion is a new message of a chat, which may have a head."""
    return isinstance(prompt, ChatPrompt) and prompt.add_generation_prompt


def unmeasured_constraint(request: GenerationRequest, tool_format: ToolFormat) -> CheckedOutput:
    """Return the constraint of a request, checked in this process."""
    return constraint(request, tool_format), 0


def _measured_constraint(argument: tuple[GenerationRequest, ToolFormat]) -> CheckedOutput:
    """Return the constraint of a request, with its memory. Only the first call in a process measures it."""
    os.nice(_NICENESS)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # an aborting llguidance prints many lines
    before_bytes = memory_bytes(1)
    output = constraint(*argument)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return output, max(1, peak_bytes - before_bytes)


def constraint(request: GenerationRequest, tool_format: ToolFormat) -> StructuredOutput | None:
    """Return the form that the whole completion must have.

    If tools must be called, there is no text, so the request's own structured output has no effect. Where messages have
    heads, tools are called in new messages only, and the form includes the heads and the thinking.

    Raises:
        InvalidRequest: the structured output or a tool is malformed, or a text to go on must be a call.
        Unsupported: it cannot be enforced.
    """
    structured_output = request.params.structured_output
    has_heads = tool_format.has_messages and is_new_message(request.prompt)
    tool_use = callable_tools(request.prompt)
    if tool_use is not None and (has_heads or not tool_format.has_messages):
        content = rule_of(structured_output) if structured_output is not None and tool_use.choice == "auto" else None
        structured_output = _checked_tool_grammar(tool_use, tool_format, content)
    elif tool_use is not None and tool_use.choice != "auto":
        raise InvalidRequest(f"{tool_use.choice}: this model calls tools in new messages only", "tool_choice")
    elif structured_output is not None and has_heads:
        structured_output = grammar_of_messages(rule_of(structured_output))
    elif structured_output is not None:
        structured_output_to_grammar(structured_output)
    if structured_output is not None and request.params.ignore_eos:
        raise InvalidRequest("true goes with neither structured output nor tools: they say where it ends", "ignore_eos")
    return structured_output


def _checked_tool_grammar(tool_use: ToolUse, tool_format: ToolFormat, content: str | None) -> StructuredOutput | None:
    try:
        structured_output = tool_grammar(tool_use, tool_format, enforceable_schema, content=content)
        if structured_output is not None:
            structured_output_to_grammar(structured_output)
    except InvalidRequest as exc:
        if exc.field != "guided_decoding_guide":
            raise
        raise type(exc)(exc.text, "tools") from exc
    return structured_output
