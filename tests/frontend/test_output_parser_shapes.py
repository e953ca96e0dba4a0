"""Answers as models write them, format by format: text, calls and their completeness, however the text is cut.

The source of a shape is a chat template (of llama.cpp's models/templates, or of vLLM's examples), a test of vLLM's
tests/tool_parsers, or a tokenizer's package. The texts are our own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from model_repository.tool_formats import HARMONY, PLAIN, TOOL_FORMATS
from tests.parsed_calls import ToolCall, parse_tool_calls


@dataclass(frozen=True, slots=True)
class Shape:
    """An answer, and what it says."""

    source: str
    text: str
    content: str
    calls: tuple[ToolCall, ...] = ()
    is_cut: bool = False  # by the limit of tokens


def shape(source: str, text: str, content: str, *calls: ToolCall, is_cut: bool = False) -> Shape:
    return Shape(source, text, content, calls, is_cut)


def prose(source: str, text: str, *, is_cut: bool = False) -> Shape:
    return shape(source, text, text, is_cut=is_cut)


def ended(name: str, arguments: str = "{}") -> ToolCall:
    return ToolCall(name, arguments, True)


def cut(name: str, arguments: str) -> ToolCall:
    return ToolCall(name, arguments, False)


def deepseek_block(name: str, arguments: str) -> str:
    return f"<|tool_call_begin|>function<|tool_sep|>{name}\n```json\n{arguments}\n```<|tool_call_end|>"


def kimi(*calls: str) -> str:
    return f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>"


def kimi_call(call_id: str, arguments: str) -> str:
    return f"<|tool_call_begin|>functions.{call_id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def with_deepseek_tokens(shapes: Sequence[Shape]) -> list[Shape]:
    """Put the bars and underscores of DeepSeek's tokens in place of ordinary ones."""

    def changed(text: str) -> str:
        text = text.replace("|DSML|", "\uff5cDSML\uff5c")
        return re.sub(r"<\|(\w+)\|>", lambda found: f"<\uff5c{found[1].replace('_', '\u2581')}\uff5c>", text)

    return [replace(row, text=changed(row.text), content=changed(row.content)) for row in shapes]


CITY = '{"city": "Oslo"}'
F, G, OSLO = ended("f"), ended("g"), ended("get_weather", CITY)
TRAPS = '{"code": "if (a) { b[\\"}\\"] }\\n", "o": {"l": [[], {}, "é\\u00e9 \\ud83d\\ude00"]}, "n": -1.5e3, "z": null}'
SPREAD = '{\n  "city": "Oslo",\n  "days": [\n    1,\n    2\n  ]\n}'
PROPERTIES = {
    "text": {"type": "string"},
    "city": {"type": "string"},
    "count": {"type": "integer"},
    "number": {"type": "number"},
    "flag": {"type": "boolean"},
    "nothing": {"type": "null"},
    "list": {"type": "array"},
    "object": {"type": "object"},
}
# Of each tool: the parser reads raw values by them.
SCHEMAS = {name: {"type": "object", "properties": PROPERTIES} for name in ("f", "g", "get_weather")}
SHAPES: Mapping[str, Sequence[Shape]] = {
    "hermes": [
        shape("Qwen2.5", f'<tool_call>\n{{"name": "get_weather", "arguments": {CITY}}}\n</tool_call>', "", OSLO),
        shape(
            "Qwen3", 'One.\n\nTwo.\n\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n', "One.\n\nTwo.", F
        ),
        shape(
            "vLLM hermes",
            '<tool_call>{"name":"f","arguments":{"a":"b","c":[1,2]}}</tool_call>',
            "",
            ended("f", '{"a":"b","c":[1,2]}'),
        ),
        shape(
            "Reka-Edge",
            '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><tool_call>\n{"name": "g", "arguments": {}}\n'
            "</tool_call>\n\n",
            "",
            F,
            G,
        ),
        shape(
            "Hermes-2-Pro",
            "<scratch_pad>\nWeather first.\n</scratch_pad>\n"
            ' <tool_call> {"name":"f","arguments":{}}</tool_call> \n\n<tool_call>\n\n{ "name": "g" ,"arguments":{} }\n',
            "<scratch_pad>\nWeather first.\n</scratch_pad>",
            F,
            G,
        ),
        shape("Qwen2.5", f'<tool_call>\n{{"name": "f", "arguments": {TRAPS}}}\n</tool_call>', "", ended("f", TRAPS)),
        shape(
            "Granite 4",
            f'<tool_call>\n{{\n  "name": "f",\n  "arguments": {SPREAD}\n}}\n</tool_call>',
            "",
            ended("f", SPREAD),
        ),
        shape("vLLM hermes", '<tool_call>{"name": "f", "arguments": {}}\n</tool_call>\nDone. ', "Done. ", F),
        shape(
            "Qwen3",
            '<tool_call>\n{"name": "f", "arguments": "{\\"a\\": \\"b\\\\n\\"}"}\n</tool_call>',
            "",
            ended("f", '{"a": "b\\n"}'),
        ),
        shape(
            "Qwen3",
            '<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call> <tool_call> {"}}\n</tool_call>',
            "",
            ended("f", '{"a": "</tool_call> <tool_call> {"}'),
        ),
        # Broken ends: the arguments or the call's object never close, members that no call has, no end marker.
        shape("vLLM hermes", '<tool_call>{"name": "f", "arguments": {}}', "", F),
        shape("vLLM hermes", '<tool_call>{"name": "f", "arguments": {}}\n</tool_', "", F),
        shape("Qwen2.5", '<tool_call>{"name": "f", "arguments": {}\n</tool_call>', "", F),
        shape("Qwen2.5", '<tool_call>{"name": "f", "arguments": {"a": 1\n</tool_call>', "", ended("f", '{"a": 1\n')),
        shape("OpenAI", '<tool_call>{"name": "f", "arguments": {}, "id": {"x": "}"}}\n</tool_call>', "", F),
        shape("OpenAI", '<tool_call>{"name": "f", "arguments": {}, "id": \n</tool_call>', "", F),
        shape(
            "vLLM hermes",
            '<tool_call>\n{"name": "f", "arguments": {}] <tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
            "]",
            cut("f", "{}"),
            G,
        ),
        # Text that only begins like a call.
        prose("Qwen2.5", "Write <tool_call> and </tool_call> around it. "),
        prose("Qwen2.5", '<tool_call>\n{"arguments": {}, "name": "f"}\n</tool_call>'),
        prose("Qwen2.5", '<tool_call>\n{"arguments": {}}\n</tool_call>'),
        prose("Qwen2.5", '<tool_call>\n{"name": "f", "arguments": 5}\n</tool_call>'),
        prose("Qwen2.5", '<tool_call>\n{"name": "", "arguments": {}}\n</tool_call>'),
        prose("Qwen2.5", f'<tool_call>\n{{"name": "{"f" * 257}", "arguments": {{}}}}\n</tool_call>'),
        prose("Qwen2.5", "<tool_call>\nf(1)\n</tool_call>"),
        prose("Qwen2.5", '<tool_call>\n{"name": "f", "argu'),
        shape("Qwen2.5", '<tool_call><tool_call>{"name": "f", "arguments": {}}</tool_call>', "<tool_call>", F),
        # Cut by the limit.
        shape("Qwen2.5", 'Yes. <tool_call>\n{"name": "f", "argu', "Yes.", is_cut=True),
        prose("Qwen2.5", "Is 1 <", is_cut=True),
        shape("Qwen2.5", '<tool_call>\n{"name": "f", "arguments": {"a": "b\\', "", cut("f", '{"a": "b\\'), is_cut=True),
        shape("Qwen2.5", '<tool_call>\n{"name": "f", "arguments": {}', "", cut("f", "{}"), is_cut=True),
    ],
    "qwen_xml": [
        shape(
            "Qwen3-Coder",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
            "",
            OSLO,
        ),
        shape(
            "Qwen3.5",
            "Yes.\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>\n"
            '<tool_call>\n<function=g>\n<parameter=text>\nif (a) { b["}"] }\n\n<b>\\n &amp;</b> \n</parameter>\n'
            "</function>\n</tool_call>",
            "Yes.",
            F,
            ended("g", json.dumps({"text": 'if (a) { b["}"] }\n\n<b>\\n &amp;</b> '})),
        ),
        shape(
            "Nemotron-3-Nano",  # its template writes Python's words
            "<tool_call>\n<function=f>\n<parameter=count>\n-3\n</parameter>\n<parameter=number>\n1.5e3\n</parameter>\n"
            "<parameter=flag>\nTrue\n</parameter>\n<parameter=nothing>\nNone\n</parameter>\n<parameter=list>\n"
            '[1, "</parameter>", null]\n</parameter>\n<parameter=object>\n{"a": {"b": "}"}}\n</parameter>\n'
            "</function>\n</tool_call>",
            "",
            ended(
                "f",
                '{"count": -3, "number": 1.5e3, "flag": true, "nothing": null, "list": [1, "</parameter>", null], '
                '"object": {"a": {"b": "}"}}}',
            ),
        ),
        shape(
            "Step-3.5-Flash",
            "<tool_call>\n<function=f>\n</function>\n</tool_call><tool_call>\n<function=g>\n</function>\n</tool_call>",
            "",
            F,
            G,
        ),
        shape(
            "vLLM qwen3coder",
            "<tool_call><function=f><parameter=text>12</parameter><parameter=count>12</parameter>"
            "</function></tool_call> Done.",
            "Done.",
            ended("f", '{"text": "12", "count": 12}'),
        ),
        shape(
            "Qwen3-Coder",
            "<tool_call>\n<function=f>\n<parameter=text>\n\n</parameter>\n<parameter=other>\n5\n</parameter>\n"
            "<parameter=any>\nfive\n</parameter>\n</function>\n</tool_call>",
            "",
            ended("f", '{"text": "", "other": 5, "any": "five"}'),
        ),
        shape(
            "Qwen3-Coder",
            "<tool_call>\n<function=f>\n<parameter=text>\n<tool_call>\n</para\n</function>\n</parameter>\n</function>\n"
            "</tool_call>",
            "",
            ended("f", '{"text": "<tool_call>\\n</para\\n</function>"}'),
        ),
        prose("Qwen3-Coder", "Write <tool_call>, then <function=f>."),
        prose("Qwen3-Coder", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'),
        # Without the outer marker, a call begins a line and names an offered tool.
        shape("Ollama's issue 16686", "<function=f>\n</function>", "", F),
        shape(
            "Ollama's issue 16686",
            "I look.\n\n<function=f>\n<parameter=text>\n*.md\n</parameter>\n</function>\n</tool_call>",
            "I look.",
            ended("f", '{"text": "*.md"}'),
        ),
        shape(
            "vllm-mlx's pull 597",
            "<function=f>\n</function>\n<function=g>\n</function>\n</tool_call>",
            "",
            F,
            G,
        ),
        prose("Qwen3-Coder", "```\n<function=example>\n<parameter=text>\na\n</parameter>\n</function>\n```"),
        prose("Qwen3-Coder", "Write <function=f>\n<parameter=text>\na\n</parameter>\n</function>. "),
        shape("Qwen3-Coder", "Yes.\n\n<tool_call>\n<function=get_we", "Yes.", is_cut=True),
        shape(
            "Qwen3-Coder",
            '<tool_call>\n<function=f>\n<parameter=text>\nOs"\nl\n</par',
            "",
            cut("f", '{"text": "Os\\"\\nl'),
            is_cut=True,
        ),
        shape(
            "Qwen3-Coder",
            "<tool_call>\n<function=f>\n<parameter=count>\n1",
            "",
            cut("f", '{"count": '),
            is_cut=True,
        ),
    ],
    "glm": [
        shape(
            "GLM-4.6",
            "Yes.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>",
            "Yes.",
            OSLO,
        ),
        shape(
            "GLM-4.5",
            "<tool_call>f\n</tool_call>\n<tool_call>g\n<arg_key>count</arg_key>\n<arg_value>3</arg_value>\n"
            '<arg_key>object</arg_key>\n<arg_value>{"a": ["</arg_value>", null]}</arg_value>\n'
            "<arg_key>flag</arg_key>\n<arg_value>true</arg_value>\n</tool_call>",
            "",
            F,
            ended("g", '{"count": 3, "object": {"a": ["</arg_value>", null]}, "flag": true}'),
        ),
        shape(
            "Ling-3.0-flash",
            "<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>a\n <b>\\n</arg_value><arg_key>number</arg_key>\n"
            "<arg_value>1.5</arg_value>\n</tool_call>Done.",
            "Done.",
            ended("f", '{"text": "a\\n <b>\\\\n", "number": 1.5}'),
        ),
        shape(
            "vLLM glm4_moe",
            "<tool_call>f\n<arg_key>text</arg_key><arg_value>3</arg_value>\n</tool_call>",
            "",
            ended("f", '{"text": "3"}'),
        ),
        prose("GLM-4.6", "Write <tool_call> around it."),
        prose("GLM-4.6", '<tool_call>{"name": "f", "arguments": {}}</tool_call>'),
        shape("GLM-4.6", "Yes.\n<tool_call>get_we", "Yes.", is_cut=True),
        shape(
            "GLM-4.6",
            "<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>Os</arg_v",
            "",
            cut("f", '{"text": "Os'),
            is_cut=True,
        ),
    ],
    "glm47": [
        shape(
            "GLM-4.7-Flash",
            "Yes.<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>"
            "<tool_call>f</tool_call>",
            "Yes.",
            OSLO,
            F,
        ),
        shape(
            "vLLM glm47_moe",
            "  \n  <tool_call>f\n</tool_call>\n<tool_call>g\n<arg_key>text</arg_key><arg_value>  a\n</arg_value>\n"
            "</tool_call> Done.",
            "Done.",
            F,
            ended("g", '{"text": "  a\\n"}'),
        ),
        shape(
            "Spark 2.5",
            "<tool_call>f<arg_key>list</arg_key><arg_value>[1, 2]</arg_value><arg_key>flag</arg_key>"
            "<arg_value>false</arg_value></tool_call>",
            "",
            ended("f", '{"list": [1, 2], "flag": false}'),
        ),
        prose("GLM-4.7-Flash", "Write <tool_call> around it."),
        shape("GLM-4.7-Flash", "<tool_call>f<arg_key>te", "", cut("f", ""), is_cut=True),
    ],
    "minimax_m2": [
        shape(
            "MiniMax-M2",
            'Yes.\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Oslo</parameter>\n'
            "</invoke>\n</minimax:tool_call>",
            "Yes.",
            OSLO,
        ),
        shape(
            "MiniMax-M2",
            '<minimax:tool_call>\n<invoke name="f">\n</invoke>\n<invoke name="g">\n<parameter name="text">a "b" <c>\n'
            '{d} </parameter>\n<parameter name="list">[1, null]</parameter>\n<parameter name="flag">true</parameter>\n'
            "</invoke>\n</minimax:tool_call>",
            "",
            F,
            ended("g", '{"text": "a \\"b\\" <c>\\n{d} ", "list": [1, null], "flag": true}'),
        ),
        shape(
            "vLLM minimax_m2",
            '<minimax:tool_call><invoke name="f"><parameter name="text">Oslo</parameter>'
            '<parameter name="count">5</parameter></invoke><invoke name="g"></invoke></minimax:tool_call>Done.',
            "Done.",
            ended("f", '{"text": "Oslo", "count": 5}'),
            G,
        ),
        prose("MiniMax-M2", "<minimax:tool_call> begins calls, <invoke> one."),
        shape("MiniMax-M2", 'Yes.\n<invoke name="f">\n</invoke>\n</minimax:tool_call>', "Yes.", F),
        prose("MiniMax-M2", '<invoke name="example">\n</invoke>'),
        prose("MiniMax-M2", 'Write <invoke name="f"> and </invoke>.'),
        shape("MiniMax-M2", 'Yes.\n<minimax:tool_call>\n<invoke name="get', "Yes.", is_cut=True),
        shape(
            "MiniMax-M2",
            '<minimax:tool_call>\n<invoke name="f">\n<parameter name="text">Os</',
            "",
            cut("f", '{"text": "Os'),
            is_cut=True,
        ),
    ],
    "deepseek_v32": with_deepseek_tokens(
        [
            shape(
                "DeepSeek-V3.2",
                'Yes.\n\n<|DSML|function_calls>\n<|DSML|invoke name="get_weather">\n'
                '<|DSML|parameter name="city" string="true">Oslo</|DSML|parameter>\n</|DSML|invoke>\n'
                "</|DSML|function_calls>",
                "Yes.",
                OSLO,
            ),
            shape(
                "DeepSeek-V3.2",
                '<|DSML|function_calls>\n<|DSML|invoke name="f">\n</|DSML|invoke>\n<|DSML|invoke name="g">\n'
                '<|DSML|parameter name="text" string="true">12\n</b> </|DSML|parameter>\n'
                '<|DSML|parameter name="text2" string="false">{"a": [1, "x"]}</|DSML|parameter>\n'
                '<|DSML|parameter name="flag" string="false">true</|DSML|parameter>\n</|DSML|invoke>\n'
                "</|DSML|function_calls>",
                "",
                F,
                ended("g", '{"text": "12\\n</b> ", "text2": {"a": [1, "x"]}, "flag": true}'),
            ),
            shape(
                "vLLM deepseekv32",
                '<|DSML|function_calls><|DSML|invoke name="f"><|DSML|parameter name="count" string="false">3'
                "</|DSML|parameter></|DSML|invoke></|DSML|function_calls> Done.",
                "Done.",
                ended("f", '{"count": 3}'),
            ),
            prose("DeepSeek-V3.2", "<|DSML|function_calls> begins calls."),
            shape("DeepSeek-V3.2", 'Yes.\n\n<|DSML|function_calls>\n<|DSML|invoke name="f', "Yes.", is_cut=True),
            shape(
                "DeepSeek-V3.2",
                '<|DSML|function_calls>\n<|DSML|invoke name="f">\n<|DSML|parameter name="text" string="true">Os</',
                "",
                cut("f", '{"text": "Os'),
                is_cut=True,
            ),
        ]
    ),
    "deepseek_v4": with_deepseek_tokens(
        [
            shape(
                "DeepSeek-V4",
                'Yes.\n\n<|DSML|tool_calls>\n<|DSML|invoke name="get_weather">\n'
                '<|DSML|parameter name="city" string="true">Oslo</|DSML|parameter>\n</|DSML|invoke>\n'
                '<|DSML|invoke name="f">\n</|DSML|invoke>\n</|DSML|tool_calls>',
                "Yes.",
                OSLO,
                F,
            ),
            shape("DeepSeek-V3.2", '<|DSML|function_calls>\n<|DSML|invoke name="f">\n</|DSML|invoke>', "", F),
            shape("DeepSeek-V4", 'Yes.\n<|DSML|invoke name="f">\n</|DSML|invoke>\n</|DSML|tool_calls>', "Yes.", F),
            prose("DeepSeek-V4", 'Write <|DSML|invoke name="example"> or <|DSML|invoke name=.'),
        ]
    ),
    "gemma4": [
        shape("Gemma 4", '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>}<tool_call|>', "", OSLO),
        shape(
            "Gemma 4",
            '<|tool_call>call:f{}<tool_call|><|tool_call>call:g{text:<|"|>a "b" {c}\n,:<|"|>,count:3,flag:true,'
            'list:[<|"|>]<|"|>,null,-1.5],object:{l:[{}],s:<|"|><|"|>}}<tool_call|>',
            "",
            F,
            ended(
                "g",
                '{"text": "a \\"b\\" {c}\\n,:", "count": 3, "flag": true, "list": ["]", null, -1.5], '
                '"object": {"l": [{}], "s": ""}}',
            ),
        ),
        shape(
            "vLLM gemma4",
            'Yes. <|tool_call>call:f{text: <|"|>a<|"|>, nothing: None }<tool_call|>Done.',
            "Yes.Done.",
            ended("f", '{"text": "a", "nothing": null}'),
        ),
        prose("Gemma 4", "<|tool_call> begins a call, call:f{} is none."),
        shape("Gemma 4", "Yes.<|tool_call>call:get_we", "Yes.", is_cut=True),
        shape("Gemma 4", '<|tool_call>call:f{text:<|"|>Os<|"', "", cut("f", '{"text": "Os'), is_cut=True),
    ],
    "lfm2": [
        shape(
            "LFM2.5-8B-A1B",
            "Yes.<|tool_call_start|>[get_weather(city='Oslo'), f()]<|tool_call_end|>",
            "Yes.",
            OSLO,
            F,
        ),
        shape(
            "LFM2.5-8B-A1B",
            "<|tool_call_start|>[f(text='it\\'s \"b\" (c), [d]\\n', count=3, flag=True, nothing=None, "
            'list=[1, "]"], object={"a": {"b": false}})]<|tool_call_end|>',
            "",
            ended(
                "f",
                '{"text": "it\'s \\"b\\" (c), [d]\\n", "count": 3, "flag": true, "nothing": null, "list": [1, "]"], '
                '"object": {"a": {"b": false}}}',
            ),
        ),
        shape(
            "vLLM lfm2",
            '<|tool_call_start|>[f(text="a"),g( )]<|tool_call_end|>Done.',
            "Done.",
            ended("f", '{"text": "a"}'),
            G,
        ),
        prose("LFM2.5-8B-A1B", "<|tool_call_start|> begins [calls]."),
        shape("LFM2.5-8B-A1B", "<|tool_call_start|>[f(text='Os", "", cut("f", '{"text": "Os'), is_cut=True),
    ],
    "llama4": [
        shape("Llama 4", '[get_weather(city="Oslo")]', "", OSLO),
        shape(
            "vLLM llama4_pythonic",
            "<|python_start|>[f(), g(text='\"(])', count=-3, flag=False, nothing=None, list=['a', 2], "
            "object={'a': {'b': [True]}})]<|python_end|>",
            "",
            F,
            ended(
                "g",
                '{"text": "\\"(])", "count": -3, "flag": false, "nothing": null, "list": ["a", 2], '
                '"object": {"a": {"b": [true]}}}',
            ),
        ),
        *(
            shape("vLLM's issue 46863", f'{lead}{{{kind}"name": "f", "parameters": {CITY}}}{end}', "", ended("f", CITY))
            for kind in ("", '"type": "function", ')
            for lead, end in (("", ""), ("<|python_start|>", "<|python_end|>"), ("[", "]"))
        ),
        prose("Llama 4", '{"name": "Ann", "parameters": {}}'),
        prose("Llama 4", '{"name": "f", "age": 3}'),
        prose("Llama 4", "[example(1)]"),
        prose("vLLM's issue 22917", "I look.\n\n[f()]"),  # nothing tells it from code
        prose("Llama 4", "[1, 2] are numbers."),
        prose("Llama 4", "I call [f()]."),
        prose("Llama 4", "[See f](there)"),
        shape("Llama 4", '[f(text="Os', "", cut("f", '{"text": "Os'), is_cut=True),
    ],
    "llama3_json": [
        shape("Llama-3.1", f'{{"name": "get_weather", "parameters": {CITY}}}', "", OSLO),
        shape("Llama-3.2", f'\n\n{{"name": "get_weather", "parameters": {CITY}}}\n', "", OSLO),
        shape("vLLM llama3_json", f'{{"name": "f", "arguments": {TRAPS}}}', "", ended("f", TRAPS)),
        shape("vLLM llama3_json", f'{{"name": "f", "parameters": {SPREAD}}}', "", ended("f", SPREAD)),
        shape("vLLM llama3_json", '{"name": "f", "parameters": {}} ; {"name": "g", "parameters": {}}', "", F, G),
        shape("Llama 4", '{"name": "f", "parameters": {}}{"name": "g", "parameters": {}}', "", F, G),
        *(
            shape("Llama-3.1", f'{lead}{{"type": "function", "name": "f", "parameters": {{}}}}', "", F)
            for lead in ("", "<|python_tag|>")
        ),
        shape("Llama 4", '[{"name": "f", "parameters": {}}, {"name": "g", "parameters": {}}]', "", F, G),
        prose("Llama-3.1", '{"name": "Ann", "parameters": {}}'),
        prose("Llama-3.1", '{"type": "function", "function": {"name": "f", "parameters": {}}}'),
        prose("Llama-3.1", '[{"name": "Ann"}, {"name": "f"}]'),
        prose("Llama-3.1", '<|python_tag|>brave_search.call(query="Oslo")'),
        prose("vLLM llama3_json", 'So: {"name": "f", "parameters": {}} And then?'),
        prose("vLLM llama3_json", '{"parameters": {}}'),
        prose("vLLM llama3_json", '{"name": "f"}'),
        prose("vLLM llama3_json", '{"name": "f", "parameters": '),
        prose("Llama-3.1", ' {"name": "Ann", "age": 3}'),
        prose("Llama-3.1", '{"a": 1}; x'),
        prose("Llama-3.1", "  "),
        shape("Llama-3.1", '{"name": "f", "para', "", is_cut=True),
        shape(
            "Llama-3.1",
            '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"a',
            "",
            F,
            cut("g", '{"a'),
            is_cut=True,
        ),
    ],
    "deepseek": with_deepseek_tokens(
        [
            shape(
                "DeepSeek-V3",
                f"Yes.<|tool_calls_begin|>{deepseek_block('get_weather', CITY)}<|tool_calls_end|>",
                "Yes.",
                OSLO,
            ),
            shape(
                "DeepSeek-R1",
                f"<|tool_calls_begin|>{deepseek_block('f', '{}')}\n{deepseek_block('g', '{}')}<|tool_calls_end|>",
                "",
                F,
                G,
            ),
            shape(
                "vLLM deepseekv3",
                f"<|tool_calls_begin|>{deepseek_block('f', TRAPS)}{deepseek_block('g', SPREAD)}<|tool_calls_end|>Done.",
                "Done.",
                ended("f", TRAPS),
                ended("g", SPREAD),
            ),
            shape("R1-Distill-Qwen", f"Yes.\n{deepseek_block('f', '{}')}", "Yes.", F),
            shape(
                "R1-Distill-Qwen",
                "<|tool_calls_begin|>\n<|tool_call_begin|>function<|tool_sep|>f\n```json\n{}<|tool_call_end|>",
                "",
                F,
            ),
            shape(
                "vLLM deepseekv3",
                '<|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>f\n```json\n{"a": 1\n```<|tool_call_end|>',
                "",
                ended("f", '{"a": 1\n```'),
            ),
            prose("DeepSeek-V3", "In ```json\n{}\n``` <|tool_calls_begin|> is a token."),
            prose("DeepSeek-V3", "<|tool_calls_begin|><|tool_call_begin|>f<|tool_sep|>{}"),
            shape(
                "DeepSeek-V3",
                "Yes.<|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>f\n``",
                "Yes.",
                is_cut=True,
            ),
            shape(
                "DeepSeek-V3",
                '<|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>f\n```json\n{"a": "`',
                "",
                cut("f", '{"a": "`'),
                is_cut=True,
            ),
        ]
    ),
    "deepseek_v31": with_deepseek_tokens(
        [
            shape(
                "DeepSeek-V3.1",
                f"Yes.<|tool_calls_begin|><|tool_call_begin|>get_weather<|tool_sep|>{CITY}<|tool_call_end|><|tool_calls_end|>",
                "Yes.",
                OSLO,
            ),
            shape(
                "vLLM deepseekv31",
                "Yes.<|tool_calls_begin|><|tool_call_begin|>f<|tool_sep|>{}<|tool_call_end|>"
                f"<|tool_call_begin|>g<|tool_sep|>{SPREAD}<|tool_call_end|><|tool_calls_end|> Done.",
                "Yes.Done.",
                F,
                ended("g", SPREAD),
            ),
            shape(
                "deepseekv31 of vLLM's examples",
                "<|tool_calls_begin|><|tool_call_begin|>f<|tool_sep|>\n{}\n<|tool_call_end|>        "
                "<|tool_call_begin|>g<|tool_sep|>{}<|tool_call_end|>    <|tool_calls_end|>",
                "",
                F,
                G,
            ),
            shape(
                "DeepSeek-V3.1",
                '<|tool_calls_begin|><|tool_call_begin|>f<|tool_sep|>{"a": 1<|tool_call_end|><|tool_calls_end|>',
                "",
                ended("f", '{"a": 1'),
            ),
            shape("DeepSeek-V3.1", "Yes.<|tool_call_begin|>f<|tool_sep|>{}<|tool_call_end|>", "Yes.", F),
            prose("DeepSeek-V3.1", "<|tool_call_begin|>example<|tool_sep|>{}<|tool_call_end|>"),
            prose("DeepSeek-V3.1", "<|tool_calls_begin|> begins calls, <|tool_call_begin|> one."),
            prose("DeepSeek-V3.1", "<|tool_calls_begin|><|tool_call_begin|>f<|tool_sep|>[1]"),
            shape("DeepSeek-V3.1", "Yes.<|tool_calls_begin|><|tool_call_begin|>get_we", "Yes.", is_cut=True),
            shape(
                "DeepSeek-V3.1",
                "<|tool_calls_begin|><|tool_call_begin|>f<|tool_sep|>{}<|tool_call_end|><|tool_call_begin|>g<|tool_sep|>{",
                "",
                F,
                cut("g", "{"),
                is_cut=True,
            ),
        ]
    ),
    "mistral_v3": [
        shape("Mistral-Nemo", f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {CITY}}}]', "", OSLO),
        shape(
            "Mistral-7B-v0.3",
            '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "a1b2c3d"}, {"name": "g", "arguments": {}, "id": "}"}]',
            "",
            F,
            G,
        ),
        shape(
            "mistral-common v3",
            'Yes. [TOOL_CALLS][{"name":"f","arguments":{}} ,\n{"name": "g", "parameters": {}, "id": "a}b"} ] Done.',
            "Yes.Done.",
            F,
            G,
        ),
        shape("Mistral-Nemo", f'[TOOL_CALLS] [{{"name": "f", "arguments": {TRAPS}}}]\n', "", ended("f", TRAPS)),
        shape("Mistral-Nemo", '[TOOL_CALLS] [{"name": "f", "arguments": "{\\"a\\": 1}"}]', "", ended("f", '{"a": 1}')),
        shape("Mistral-Nemo", '[TOOL_CALLS] [{"name": "f", "arguments": {}}', "", F),
        prose("Mistral-Nemo", '[TOOL_CALLS] {"name": "f", "arguments": {}}'),
        prose("Mistral-Nemo", "The list [TOOL_CALLS] [1, 2] is [TOOL"),
        prose("Mistral-Nemo", "[TOOL_CALLS] []"),
        shape("Mistral-Nemo", "Yes. [TOOL_CALLS] [{", "Yes.", is_cut=True),
        shape("Mistral-Nemo", '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g"', "", F, is_cut=True),
    ],
    "mistral_v11": [
        shape("Mistral-Small-3.2", f"Yes.[TOOL_CALLS]get_weather[CALL_ID]call00000[ARGS]{CITY}", "Yes.", OSLO),
        shape(
            "Mistral-Small-3.2",
            "[TOOL_CALLS]f[CALL_ID]call00000[ARGS]{}[TOOL_CALLS]g[CALL_ID]call00001[ARGS]{}",
            "",
            F,
            G,
        ),
        shape(
            "mistral-common v11",
            "Yes. [TOOL_CALLS]f[CALL_ID]call00007[ARGS] {}\n[TOOL_CALLS]g[CALL_ID]call1[ARGS]{} Done.",
            "Yes.Done.",
            F,
            G,
        ),
        shape("Mistral-Small-3.2", f"[TOOL_CALLS]f[CALL_ID]call00000[ARGS]{TRAPS}", "", ended("f", TRAPS)),
        shape("Mistral-Small-3.2 without an id", f"[TOOL_CALLS]get_weather[ARGS]{CITY}", "", OSLO),
        prose("Mistral-Small-3.2", "Write [TOOL_CALLS]f, then [ARGS]{}."),
        prose("Mistral-Small-3.2", "[TOOL_CALLS]f[CALL_ID]call00000 {}"),
        shape("Mistral-Small-3.2", "Yes.[TOOL_CALLS]f[CALL_ID]call0", "Yes.", is_cut=True),
    ],
    "mistral_v13": [
        shape("Ministral-3", f"Yes.[TOOL_CALLS]get_weather[ARGS]{CITY}[TOOL_CALLS]f[ARGS]{{}}", "Yes.", OSLO, F),
        shape(
            "Devstral-Small",
            f"[TOOL_CALLS]f[ARGS]{SPREAD}\n[TOOL_CALLS]g[ARGS] {{}} Done.",
            "Done.",
            ended("f", SPREAD),
            G,
        ),
        shape("Ministral-3", f"[TOOL_CALLS]f[ARGS]{TRAPS}", "", ended("f", TRAPS)),
        prose("Ministral-3", '[TOOL_CALLS]f{"a": 1}'),
        prose("Ministral-3", "[TOOL_CALLS] and [ARGS] are tokens. [TOOL_CA"),
        shape("Ministral-3", "Yes.[TOOL_CALLS]get_wea", "Yes.", is_cut=True),
        shape(
            "Ministral-3",
            '[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{"a": "[TOOL',
            "",
            F,
            cut("g", '{"a": "[TOOL'),
            is_cut=True,
        ),
    ],
    "kimi_k2": [
        shape("Kimi-K2", "Yes." + kimi(kimi_call("get_weather:0", CITY)), "Yes.", OSLO),
        shape(
            "Kimi-K2-Thinking",
            kimi(kimi_call("f:0", "{}"), kimi_call("g:1", TRAPS)),
            "",
            F,
            ended("g", TRAPS),
        ),
        shape(
            "vLLM kimi_k2",
            f"Yes. {kimi(' ', kimi_call('f:3 ', '{} '), ' ', kimi_call('g:17\n', '\n{}'), ' ')} Done.",
            "Yes.Done.",
            F,
            G,
        ),
        shape(
            "Kimi-K2",
            kimi(kimi_call("f:0", '{"a": "<|tool_call_end|>"}')),
            "",
            ended("f", '{"a": "<|tool_call_end|>"}'),
        ),
        shape(
            "vLLM kimi_k2",
            kimi(kimi_call("f:0", '{"a": 1'), kimi_call("g:1", "{}")),
            "",
            ended("f", '{"a": 1'),
            G,
        ),
        shape("Kimi-K2", kimi(kimi_call("f.2:0", "{}")), "", ended("f.2")),
        shape("Kimi-K2", "<|tool_calls_section_begin|>" + kimi_call("f:0", "{}"), "", F),
        prose("vLLM kimi_k2", kimi(kimi_call("f.0", "{}"))),
        prose("vLLM kimi_k2", kimi("")),
        shape("vLLM's pull 32216", f"Hi {kimi_call('f:0', '{}')}", "Hi", F),
        shape(
            "vLLM's pull 32216", f"{kimi_call('f:0', '{}')}{kimi_call('g:1', '{}')}<|tool_calls_section_end|>", "", F, G
        ),
        prose("Kimi-K2", kimi_call("example:0", "{}")),
        prose("Kimi-K2", "<|tool_calls_section_begin|> is a token, <|tool_call_begin|> too."),
        shape("Kimi-K2", "Yes.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0", "Yes.", is_cut=True),
        shape(
            "vLLM kimi_k2",
            '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"city": "Os',
            "",
            cut("f", '{"city": "Os'),
            is_cut=True,
        ),
    ],
    "granite": [
        shape("Granite 3.3", f'<|tool_call|>[{{"name": "get_weather", "arguments": {CITY}}}]', "", OSLO),
        shape(
            "vLLM granite",
            'Yes.\n<|tool_call|> [\n  {"name": "f", "arguments": {}},\n  {"name": "g", "arguments": "{}"}\n]\nDone.',
            "Yes.Done.",
            F,
            G,
        ),
        shape(
            "granite of vLLM's examples",
            f'<|tool_call|>[\n    {{\n  "name": "f",\n  "arguments": {SPREAD}\n}}\n]',
            "",
            ended("f", SPREAD),
        ),
        shape("Granite 3.3", f'<|tool_call|>[{{"name": "f", "arguments": {TRAPS}}}]', "", ended("f", TRAPS)),
        shape("Granite 3.3", '<|tool_call|>[{"name": "f", "arguments": {}}, 5]', ", 5]", F),
        prose("vLLM granite", '<|tool_call|> {"name": "f", "arguments": {}}'),
        prose("vLLM granite", '<|tool_call|>[{"arguments": {}, "name": "f"}]'),
        prose("vLLM granite", 'See [{"name": "f", "arguments": {}}].'),
        shape("Granite 3.3", '<|tool_call|>[{"name": "f", "arguments": {"a": [', "", cut("f", '{"a": ['), is_cut=True),
    ],
    "phi4": [
        shape("Phi-4-mini", f'<|tool_call|>[{{"name": "get_weather", "arguments": {CITY}}}]<|/tool_call|>', "", OSLO),
        shape(
            "Ollama's phi4-mini",
            'Yes. <|tool_call|>[{"name": "f", "arguments": {}},{"name": "g", "arguments": {}}] <|/tool_call|> Done.',
            "Yes.Done.",
            F,
            G,
        ),
        shape(
            "Phi-4-mini", f'<|tool_call|>[{{"name": "f", "arguments": {TRAPS}}}]<|/tool_call|>', "", ended("f", TRAPS)
        ),
        shape("Phi-4-mini", '<|tool_call|>[{"name": "f", "arguments": {}}]', "", F),
        prose("Phi-4-mini", "<|tool_call|>[]<|/tool_call|>"),
        prose("vLLM phi4mini", 'functools[{"name": "f", "arguments": {}}]'),
        shape("Phi-4-mini", 'Yes. <|tool_call|>[{"name": "f"', "Yes.", is_cut=True),
    ],
    "nemotron": [
        shape(
            "Nemotron-Nano-v2",
            f'Yes.\n\n<TOOLCALL>[{{"name": "f", "arguments": {TRAPS}}}, {{"name": "g", "arguments": {{}}}}]</TOOLCALL>',
            "Yes.",
            ended("f", TRAPS),
            G,
        ),
        shape("vLLM's nemotron_json", '<TOOLCALL>[{"name": "f", "arguments": {}}]', "", F),
        prose("Nemotron-Nano-v2", "Write <TOOLCALL> and </TOOLCALL>, or <TOOLCALL>[]."),
    ],
}


@pytest.mark.parametrize(
    ("format_name", "shape"),
    [pytest.param(name, row, id=f"{name}-{row.source}") for name, rows in SHAPES.items() for row in rows],
)
@pytest.mark.parametrize("piece_size", [0, 1, 3])
def test_answers_of_models_are_read(format_name: str, shape: Shape, piece_size: int) -> None:
    parsed = parse_tool_calls(format_name, shape.text, is_cut=shape.is_cut, piece_size=piece_size, schemas=SCHEMAS)
    assert parsed == (shape.content, list(shape.calls))


def test_each_format_has_answers_of_models() -> None:
    elsewhere = {PLAIN.name, HARMONY.name}  # Hermes' format, and test_output_parser.py, with thinking
    assert {*SHAPES, *elsewhere} == set(TOOL_FORMATS)
