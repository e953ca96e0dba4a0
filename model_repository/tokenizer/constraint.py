"""The form that a completion must have: the request's guide, or the calls of the tools that it offers."""

from __future__ import annotations

import dataclasses
import os
import queue
import resource

from model_repository import contract
from model_repository.errors import InvalidRequest, Unsupported
from model_repository.generation import ChatPrompt, GenerationRequest, Guide, SamplingParams, ToolUse
from model_repository.guides.bounded_process import BoundedProcess, TooCostly
from model_repository.guides.grammar import guide_to_grammar, rule_of
from model_repository.guides.json_schema import enforceable_schema
from model_repository.tokenizer.tool_guide import tool_guide
from model_repository.tool_formats import ToolFormat


def callable_tools(request: GenerationRequest) -> ToolUse | None:
    """Return the tools that the model may call; None where there are none."""
    tool_use = request.prompt.tool_use if isinstance(request.prompt, ChatPrompt) else None
    return tool_use if tool_use is not None and tool_use.choice != "none" else None


class ConstraintCompiler:
    """Checks constraints in processes of their own, so that a costly one fails its sender only.

    Args:
        num_processes: checks at the same time; further callers wait.
    """

    def __init__(self, num_processes: int) -> None:
        self._processes = [BoundedProcess(_compiled) for _ in range(num_processes)]
        self._idle: queue.SimpleQueue[BoundedProcess] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)

    def __call__(self, request: GenerationRequest, tool_format: ToolFormat) -> Guide | None:
        """Return what `constraint` returns, and how much memory it takes.

        Raises:
            InvalidRequest: as `constraint`, or checking it takes too much time or memory.
        """
        tool_use = callable_tools(request)
        needed = GenerationRequest(
            prompt=ChatPrompt((), tool_use=tool_use),
            max_tokens=request.max_tokens,
            sampling=SamplingParams(),
            guide=request.guide,
            ignore_eos=request.ignore_eos,
        )
        process = self._idle.get()
        try:
            guide: Guide | None = process.call((needed, tool_format))
        except TooCostly as exc:
            spec = contract.GUIDED_DECODING_GUIDE if tool_use is None else contract.TOOLS
            raise InvalidRequest(f"compiling it takes {exc}, which is the limit", spec.name) from exc
        finally:
            self._idle.put(process)
        return guide

    def close(self) -> None:
        """End the processes, once they are idle."""
        for process in self._processes:
            process.close()


def _compiled(argument: tuple[GenerationRequest, ToolFormat]) -> Guide | None:
    """Return the constraint of a request, with the memory that it took; only the first call in a process counts it."""
    before_bytes = _resident_bytes()
    guide = constraint(*argument)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return guide and dataclasses.replace(guide, num_bytes=max(1, peak_bytes - before_bytes))


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def constraint(request: GenerationRequest, tool_format: ToolFormat) -> Guide | None:
    """Return what the whole completion must look like, checked here so that a bad guide is the client's mistake.

    Where tools must be called, no text can come, so the request's own guide has nothing to hold for.

    Raises:
        InvalidRequest: the guide or a tool is malformed.
        Unsupported: it cannot be enforced, or is a grammar beside tools that may be called or not.
    """
    guide = request.guide
    if (tool_use := callable_tools(request)) is not None:
        guide = _tool_guide(tool_use, tool_format, _content_rule(guide) if tool_use.choice == "auto" else None)
    elif guide is not None:
        guide_to_grammar(guide)
    if guide is not None and request.ignore_eos:
        raise InvalidRequest(
            "true goes with neither structured output nor tools: they say where it ends", contract.IGNORE_EOS.name
        )
    return guide


def _content_rule(guide: Guide | None) -> str | None:
    if guide is None:
        return None
    rule = rule_of(guide)
    if rule is None:
        text = f"{guide.kind} goes with no tools that may be called or not: set tool_choice to none or required"
        raise Unsupported(text, contract.GUIDED_DECODING_GUIDE_TYPE.name)
    return rule


def _tool_guide(tool_use: ToolUse, tool_format: ToolFormat, content: str | None) -> Guide | None:
    try:
        guide = tool_guide(tool_use, tool_format, enforceable_schema, content=content)
        if guide is not None:
            guide_to_grammar(guide)
    except InvalidRequest as exc:
        if exc.field != contract.GUIDED_DECODING_GUIDE.name:
            raise
        raise type(exc)(exc.text, contract.TOOLS.name) from exc
    return guide
