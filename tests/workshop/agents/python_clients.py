"""Python's SDKs on their default paths: each does the same task of two tools, some a second one, and prints its end.

python python_clients.py CLIENT URL MODEL, in an environment with `requirements.txt`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

CLIENT, URL, MODEL = sys.argv[1:]
QUESTION = "Which code is in my files?"
SECOND_QUESTION = "Which code is in other.txt?"
FILES = {"note.txt": "The code is 4217.", "other.txt": "The code is 5318."}
SCHEMAS = {
    "list_files": {"type": "object", "properties": {}},
    "read_file": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}
called: list[str] = []


def list_files() -> str:
    """List my files."""
    called.append("list_files")
    return "note.txt"


def read_file(path: str) -> str:
    """Read a file."""
    called.append(f"read_file {path}")
    return FILES[path]


def result(name: str, arguments: dict[str, Any]) -> str:
    return list_files(**arguments) if name == "list_files" else read_file(**arguments)


def openai_agents() -> str:
    from agents import Runner

    return Runner.run_sync(_agent(), QUESTION).final_output


async def openai_agents_streamed() -> str:
    from agents import Runner

    run = Runner.run_streamed(_agent(), QUESTION)
    async for _ in run.stream_events():
        pass
    return run.final_output


async def openai_agents_previous_response() -> str:
    from agents import Runner

    first = await Runner.run(_agent(), QUESTION)
    return (await Runner.run(_agent(), SECOND_QUESTION, previous_response_id=first.last_response_id)).final_output


async def openai_agents_conversation() -> str:
    from agents import OpenAIConversationsSession

    return await _two_turns(OpenAIConversationsSession())


async def openai_agents_compaction() -> str:
    """Compact the conversation after each answer. The session takes OpenAI's names of models only."""
    from agents import OpenAIResponsesCompactionSession, SQLiteSession

    options: Any = {"model": "gpt-4.1", "should_trigger_compaction": lambda _: True}
    return await _two_turns(OpenAIResponsesCompactionSession("reader", SQLiteSession("reader"), **options))


async def _two_turns(session: Any) -> str:
    from agents import Runner

    await Runner.run(_agent(), QUESTION, session=session)
    return (await Runner.run(_agent(), SECOND_QUESTION, session=session)).final_output


def _agent() -> Any:
    from agents import Agent, function_tool, set_tracing_disabled

    set_tracing_disabled(True)
    return Agent(name="Reader", model=MODEL, tools=[function_tool(list_files), function_tool(read_file)])


def langchain_openai() -> str:
    from langchain_openai import ChatOpenAI

    return _langchain(ChatOpenAI(model=MODEL, streaming=True))


def langchain_openai_responses() -> str:
    from langchain_openai import ChatOpenAI

    return _langchain(ChatOpenAI(model=MODEL, streaming=True, use_responses_api=True))


def langchain_anthropic() -> str:
    from langchain_anthropic import ChatAnthropic

    return _langchain(ChatAnthropic(model=MODEL, streaming=True))


def _langchain(model: Any) -> str:
    from langchain.agents import create_agent

    state = create_agent(model, [list_files, read_file]).invoke({"messages": [("user", QUESTION)]})
    return state["messages"][-1].text


def pydantic_ai_openai() -> str:
    return _pydantic_ai(f"openai:{MODEL}")


def pydantic_ai_anthropic() -> str:
    return _pydantic_ai(f"anthropic:{MODEL}")


def _pydantic_ai(model: str) -> str:
    from pydantic_ai import Agent

    return Agent(model, tools=[list_files, read_file]).run_sync(QUESTION).output


def litellm_openai() -> str:
    return _litellm_completion(f"openai/{MODEL}")


def litellm_anthropic() -> str:
    return _litellm_completion(f"anthropic/{MODEL}")


def _litellm_completion(model: str) -> str:
    import litellm

    functions = [{"name": name, "parameters": schema} for name, schema in SCHEMAS.items()]
    tools = [{"type": "function", "function": function} for function in functions]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        message = litellm.completion(model=model, messages=messages, tools=tools).choices[0].message
        messages.append(message)
        for call in message.tool_calls or ():
            content = result(call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
        if not message.tool_calls:
            return message.content


def litellm_responses() -> str:
    import litellm

    tools = [{"type": "function", "name": name, "parameters": schema} for name, schema in SCHEMAS.items()]
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        response = litellm.responses(model=f"openai/{MODEL}", input=items, tools=tools)
        items += response.output
        calls = [item for item in response.output if item.type == "function_call"]
        for call in calls:
            output = result(call.name, json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
        if not calls:
            return response.output_text


async def litellm_messages() -> str:
    return await _litellm_messages(f"anthropic/{MODEL}")


async def litellm_messages_openai() -> str:
    return await _litellm_messages(f"openai/{MODEL}")


async def _litellm_messages(model: str) -> str:
    import litellm

    tools = [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        message = await litellm.anthropic.messages.acreate(model=model, messages=messages, tools=tools, max_tokens=1000)
        calls = [block for block in message["content"] if block["type"] == "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": result(call["name"], call["input"])}
            for call in calls
        ]
        messages += [{"role": "assistant", "content": message["content"]}, {"role": "user", "content": results}]
        if not calls:
            return message["content"][-1]["text"]


os.environ |= {"OPENAI_BASE_URL": f"{URL}/v1", "OPENAI_API_KEY": "none"}
os.environ |= {"ANTHROPIC_BASE_URL": URL, "ANTHROPIC_API_KEY": "none"}
answer = globals()[CLIENT]()
answer = asyncio.run(answer) if asyncio.iscoroutine(answer) else answer
sys.stdout.write(json.dumps({"answer": answer, "called": called}))
