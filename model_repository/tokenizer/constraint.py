"""The form of a completion: the request's structured output, or the calls of its tools."""

from __future__ import annotations

import os
import queue
import resource

from model_repository.capabilities import callable_tools
from model_repository.contract.request import ChatPrompt, GenerationRequest, Params, StructuredOutput, ToolUse
from model_repository.errors import InvalidRequest, Unsupported
from model_repository.structured_output.grammar import rule_of, structured_output_to_grammar
from model_repository.structured_output.json_schema import enforceable_schema
from model_repository.system.bounded_process import BoundedProcess, TooCostly, memory_bytes
from model_repository.tokenizer.tool_grammar import tool_grammar
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
            prompt=ChatPrompt((), tool_use=tool_use),
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

    If tools must be called, there is no text, so the request's own structured output has no effect.

    Raises:
        InvalidRequest: the structured output or a tool is malformed.
        Unsupported: it cannot be enforced, or is a grammar beside tools that may be called or not.
    """
    structured_output = request.params.structured_output
    if (tool_use := callable_tools(request.prompt)) is not None:
        structured_output = _checked_tool_grammar(
            tool_use, tool_format, _content_rule(structured_output) if tool_use.choice == "auto" else None
        )
    elif structured_output is not None:
        structured_output_to_grammar(structured_output)
    if structured_output is not None and request.params.ignore_eos:
        raise InvalidRequest("true goes with neither structured output nor tools: they say where it ends", "ignore_eos")
    return structured_output


def _content_rule(structured_output: StructuredOutput | None) -> str | None:
    if structured_output is None:
        return None
    rule = rule_of(structured_output)
    if rule is None:
        text = f"{structured_output.format} needs tool_choice none or required, since tools may answer otherwise"
        raise Unsupported(text, "guided_decoding_guide_type")
    return rule


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
