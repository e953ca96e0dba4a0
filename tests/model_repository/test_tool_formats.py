"""The texts of tool calls, and tools for templates without tools."""

from __future__ import annotations

from typing import Any

import pytest

from model_repository.tool_formats import (
    DEEPSEEK,
    DEEPSEEK_V31,
    DEEPSEEK_V32,
    GEMMA4,
    GLM,
    GLM47,
    GRANITE,
    HARMONY,
    HERMES,
    KIMI_K2,
    LFM2,
    LLAMA3_JSON,
    LLAMA4,
    MINIMAX_M2,
    MISTRAL_V3,
    MISTRAL_V11,
    MISTRAL_V13,
    NEMOTRON,
    PHI4,
    QWEN_XML,
    detect_tool_format,
)


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        (
            HERMES,
            '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
            '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
        ),
        (
            QWEN_XML,
            "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n"
            "<tool_call>\n<function=g>\n</function>\n</tool_call>",
        ),
        (
            GLM,
            "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>",
        ),
        (
            GLM47,
            "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call><tool_call>g</tool_call>",
        ),
        (
            MINIMAX_M2,
            '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>\n'
            '<invoke name="g">\n</invoke>\n</minimax:tool_call>',
        ),
        (GEMMA4, "<|tool_call>call:f{a:1}<tool_call|><|tool_call>call:g{}<tool_call|>"),
        (LFM2, "<|tool_call_start|>[f(a=1), g()]<|tool_call_end|>"),
        (LLAMA4, "[f(a=1), g()]"),
        (
            DEEPSEEK_V32,
            '<|DSML|function_calls>\n<|DSML|invoke name="f">\n<|DSML|parameter name="a" string="false">1'
            '</|DSML|parameter>\n</|DSML|invoke>\n<|DSML|invoke name="g">\n</|DSML|invoke>\n</|DSML|function_calls>',
        ),
        (LLAMA3_JSON, '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}'),
        (
            MISTRAL_V13,
            '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}',
        ),
        (
            MISTRAL_V11,
            '[TOOL_CALLS]f[CALL_ID]call00000[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]call00001[ARGS]{}',
        ),
        (
            MISTRAL_V3,
            '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        ),
        (
            GRANITE,
            '<|tool_call|>[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        ),
        (
            PHI4,
            '<|tool_call|>[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]<|/tool_call|>',
        ),
        (
            NEMOTRON,
            '<TOOLCALL>[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]</TOOLCALL>',
        ),
        (
            KIMI_K2,
            '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}'
            "<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
            "<|tool_calls_section_end|>",
        ),
        (
            HARMONY,
            '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|end|>'
            "<|start|>assistant<|channel|>commentary to=functions.g <|constrain|>json<|message|>{}",
        ),
        (
            DEEPSEEK_V31,
            '<|tool_calls_begin|><|tool_call_begin|>f<|tool_sep|>{"a": 1}<|tool_call_end|>'
            "<|tool_call_begin|>g<|tool_sep|>{}<|tool_call_end|><|tool_calls_end|>",
        ),
        (
            DEEPSEEK,
            "<|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>f\n"
            '```json\n{"a": 1}\n```<|tool_call_end|>\n'
            "<|tool_call_begin|>function<|tool_sep|>g\n```json\n{}\n```<|tool_call_end|><|tool_calls_end|>",
        ),
    ],
)
def test_calls_are_written_as_the_models_do(tool_format: Any, text: str) -> None:
    written = tool_format.calls_text([("f", '{"a": 1}'), ("g", "{}")])
    if tool_format is DEEPSEEK_V32:
        text = text.replace("|DSML|", "\uff5cDSML\uff5c")
    if tool_format in (DEEPSEEK, DEEPSEEK_V31):
        text = text.replace("<|", "<\uff5c").replace("|>", "\uff5c>")
        for name in ("tool_calls_begin", "tool_calls_end", "tool_call_begin", "tool_call_end", "tool_sep"):
            text = text.replace(name, name.replace("_", "\u2581"))
    assert written == text
    quote = tool_format.notation.quote if tool_format.notation is not None else ""
    assert all(
        token in written for token in tool_format.special_tokens if token not in (tool_format.answer_prefix, quote)
    )


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (r"""{{- "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args>}\n</tool_call>" }}""", "hermes"),
        ("{%- set begin = ']<]minimax[>[' ~ '<tool_call>' %}{{ begin ~ call.name ~ call.arguments }}", "plain"),
        ("""{{- '<TOOLCALL>[' }}{{- '{"name": "' + fn.name + '", "arguments": ' }}{{- ']</TOOLCALL>' }}""", "nemotron"),
        ("{{- '\\n<tool_call>\\n<function=' + name }}{{- '<parameter=' + key + '>\\n' }}", "qwen_xml"),
        ("{{- '\\n<seed:tool_call>\\n<function=' + name }}{{- '<parameter=' + key + '>\\n' }}", "plain"),
        ("'\\n<tool_call>' + tc.name }}{% for k, v in _args.items() %}<arg_key>{{ k }}</arg_key>\n<arg_value>", "glm"),
        ("'<tool_call>' + tc.name -}}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value></tool_call>", "glm47"),
        ("{%- set toolcall_begin_token = '<minimax:tool_call>' -%}", "minimax_m2"),
        ("""{{- '<|tool_call>call:' + name + '{' }}{{- '<|"|>' + argument + '<|"|>' -}}""", "gemma4"),
        ("List of tools: <|tool_list_start|>[{{ tools | join(', ') }}]<|tool_list_end|>", "lfm2"),
        ("{{- '<|tool_call_start|>[' + (calls | join(', ')) + ']<|tool_call_end|>' -}}", "lfm2"),
        ("Use exact format: [func_name1(param1=value1), func_name2(...)]", "llama4"),
        ("{%- set dsml_token = '\uff5cDSML\uff5c' -%}<{{ dsml_token }}function_calls>", "deepseek_v32"),
        ("{%- set dsml_token = '\uff5cDSML\uff5c' -%}<{{ dsml_token }}tool_calls>", "deepseek_v4"),
        ("{{'<|python_tag|>' + tool_call.name + '.call('}}", "llama3_json"),
        ("""{{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}""", "llama3_json"),
        (r"""{{- "{\"name\": \"" + name + "\", \"parameters\": " }}""", "llama3_json"),
        (f"{{{{'{DEEPSEEK.trigger}' + '\\n```json'}}}} <tool_call>", "deepseek"),
        (f"{{{{'{DEEPSEEK.trigger}' + name + '{DEEPSEEK_V31.before_arguments}' + arguments}}}}", "deepseek_v31"),
        ("{{- '[TOOL_CALLS]' + tool['function']['name'] + '[ARGS]' + arguments }}", "mistral_v13"),
        ("{{- '[TOOL_CALLS]' + name + '[CALL_ID]' + call.id + '[ARGS]' + (arguments | tojson) }}", "mistral_v11"),
        ("{{- '[TOOL_CALLS] [' }}{{- ', \"id\": \"' + tool_call.id + '\"}' }}", "mistral_v3"),
        ("When a tool is needed, answer with <|tool_call|> and a JSON list of calls", "granite"),
        ("{{ '<|tool_call|>' + (call | tojson) + '<|/tool_call|>' }}", "phi4"),
        ("{{ '<|tool_call>call:' + name }}", "plain"),
        ("<|tool_calls_section_begin|>{% for call in message.tool_calls %}", "kimi_k2"),
        ("{% for message in messages %}{{'<start_of_turn>' + message['role']}}{% endfor %}", "plain"),
        ("{{ '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}", "harmony"),
        ("", "plain"),
    ],
)
def test_the_format_is_detected_in_the_template(template: str, name: str) -> None:
    assert detect_tool_format(template) == name
