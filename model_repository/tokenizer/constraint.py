"""The form that a completion must have: the request's guide, or the calls of the tools that it offers."""

from __future__ import annotations

import os
import queue
import resource

from model_repository.contract.request import ChatPrompt, GenerationRequest, Params, StructuredOutput, ToolUse
from model_repository.errors import InvalidRequest, Unsupported
from model_repository.guides.bounded_process import BoundedProcess, TooCostly
from model_repository.guides.grammar import guide_to_grammar, rule_of
from model_repository.guides.json_schema import enforceable_schema
from model_repository.tokenizer.tool_guide import tool_guide
from model_repository.tool_formats import ToolFormat


def callable_tools(request: GenerationRequest) -> ToolUse | None:
    """Return the tools that the model may call; None where there are none."""
    tool_use = request.prompt.tool_use if isinstance(request.prompt, ChatPrompt) else None
    return tool_use if tool_use is not None and tool_use.choice != "none" else None


type CheckedOutput = tuple[StructuredOutput | None, int]  # and the memory that it takes compiled, in bytes


class ConstraintCompiler:
    """Checks constraints in processes of their own, so that a costly one fails its sender only.

    Args:
        num_processes: checks at the same time; further callers wait.
    """

    def __init__(self, num_processes: int) -> None:
        self._processes = [BoundedProcess(_measured_constraint) for _ in range(num_processes)]
        self._idle: queue.SimpleQueue[BoundedProcess] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)

    def __call__(self, request: GenerationRequest, tool_format: ToolFormat) -> CheckedOutput:
        """Return the same as `constraint`, and the memory that it takes.

        Raises:
            InvalidRequest: as `constraint`, or checking it takes too much time or memory.
        """
        tool_use, params = callable_tools(request), request.params
        needed = GenerationRequest(
            prompt=ChatPrompt((), tool_use=tool_use),
            params=Params(structured_output=params.structured_output, ignore_eos=params.ignore_eos),
        )
        process = self._idle.get()
        try:
            checked: CheckedOutput = process.call((needed, tool_format))
        except TooCostly as exc:
            field = "guided_decoding_guide" if tool_use is None else "tools"
            raise InvalidRequest(f"compiling it takes {exc}, which is the limit", field) from exc
        finally:
            self._idle.put(process)
        return checked

    def close(self) -> None:
        """End the processes, once they are idle."""
        for process in self._processes:
            process.close()


def unmeasured_constraint(request: GenerationRequest, tool_format: ToolFormat) -> CheckedOutput:
    """Return the same as `constraint`, in this process."""
    return constraint(request, tool_format), 0


def _measured_constraint(argument: tuple[GenerationRequest, ToolFormat]) -> CheckedOutput:
    """Return the constraint of a request, with the memory that it took; only the first call in a process counts it."""
    before_bytes = _resident_bytes()
    output = constraint(*argument)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return output, max(1, peak_bytes - before_bytes)


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def constraint(request: GenerationRequest, tool_format: ToolFormat) -> StructuredOutput | None:
    """Return what the whole completion must look like, checked here so that a bad guide is the client's mistake.

    Where tools must be called, no text can come, so the request's own guide has nothing to hold for.

    Raises:
        InvalidRequest: the guide or a tool is malformed.
        Unsupported: it cannot be enforced, or is a grammar beside tools that may be called or not.
    """
    guide = request.params.structured_output
    if (tool_use := callable_tools(request)) is not None:
        guide = _tool_guide(tool_use, tool_format, _content_rule(guide) if tool_use.choice == "auto" else None)
    elif guide is not None:
        guide_to_grammar(guide)
    if guide is not None and request.params.ignore_eos:
        raise InvalidRequest("true goes with neither structured output nor tools: they say where it ends", "ignore_eos")
    return guide


def _content_rule(guide: StructuredOutput | None) -> str | None:
    if guide is None:
        return None
    rule = rule_of(guide)
    if rule is None:
        text = f"{guide.format} goes with no tools that may be called or not: set tool_choice to none or required"
        raise Unsupported(text, "guided_decoding_guide_type")
    return rule


def _tool_guide(tool_use: ToolUse, tool_format: ToolFormat, content: str | None) -> StructuredOutput | None:
    try:
        guide = tool_guide(tool_use, tool_format, enforceable_schema, content=content)
        if guide is not None:
            guide_to_grammar(guide)
    except InvalidRequest as exc:
        if exc.field != "guided_decoding_guide":
            raise
        raise type(exc)(exc.text, "tools") from exc
    return guide
