"""The texts of models' tool calls: one table for the build, the constraint and the frontend's parser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from model_repository.notations import Notation
from model_repository.reasoning_formats import HARMONY_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """The text of an answer with tool calls: the parts around each call's name and arguments.

    The special tokens belong to that text. A vocabulary that has them renders and constrains them like other tokens.
    """

    name: str
    trigger: str  # begins calls after free text; empty: calls must begin the answer
    answer_prefix: str = ""  # may precede calls that begin the answer
    before_calls: str = ""
    before_name: str
    before_number: str = ""  # precedes a call's number, which follows its name; empty: calls have no number
    num_digits: int = 1  # of a number at least
    before_arguments: str
    notation: Notation | None = None  # of the arguments; None: a JSON object
    after_arguments: str
    between_calls: str
    after_calls: str = ""
    also_begins: str = ""  # a text that models write in place of `before_calls`; empty: there is none
    also_ends: str = ""  # the same behind calls
    other_before_name: str = ""  # of another form in which the model writes calls; empty: there is none
    other_before_arguments: str = ""
    has_messages: bool = False  # a call is a message with a head, see `reasoning_formats.head_at`, and the only one
    special_tokens: tuple[str, ...]
    history_id: str = ""  # of calls in a conversation: a format of `name` and `number`; empty: the client's ids
    other_forms: tuple[ToolFormat, ...] = ()  # in which models write calls of their own accord, where text is allowed

    @property
    def is_trigger_special(self) -> bool:
        """Whether the trigger has a special token. Another one begins calls at the start of a line only."""
        return any(token in self.trigger for token in self.special_tokens)

    def with_bare_calls(self, marker: str) -> ToolFormat:
        """Return the format with another form: calls without their outer marker, which begin at the inner one."""
        before_name = self.before_name[self.before_name.index(marker) :]
        bare = replace(self, trigger=marker, before_calls="", before_name=before_name)
        return replace(self, other_forms=(bare,))

    def calls_text(self, calls: Iterable[tuple[str, str]]) -> str:
        """Write calls, each a name and its arguments as JSON text, in this format."""
        texts = []
        for number, (name, arguments) in enumerate(calls):
            if self.notation is not None:
                arguments = self.notation.text(arguments)
            id_text = f"{self.before_number}{number:0{self.num_digits}}" if self.before_number else ""
            texts.append(f"{self.before_name}{name}{id_text}{self.before_arguments}{arguments}{self.after_arguments}")
        return f"{self.before_calls}{self.between_calls.join(texts)}{self.after_calls}"

    def call_heads(self, name: str, key: str) -> list[str]:
        """Return the forms in which calls with a name and a first key begin, up to the key."""
        text = self.calls_text([(name, json.dumps({key: 0}))])
        heads = [text[: text.index(key) + len(key)]]
        if self.other_before_name:
            heads.append(f'{self.other_before_name}{name}{self.other_before_arguments}{{"{key}')
        return heads


# Source: the chat templates of Qwen2.5 and Nous Hermes 2 Pro.
HERMES = ToolFormat(
    name="hermes",
    trigger="<tool_call>",
    before_name='<tool_call>\n{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}\n</tool_call>",
    between_calls="\n",
    special_tokens=("<tool_call>", "</tool_call>"),
)
# Source: the chat templates of Qwen3-Coder and Qwen3.5, and vLLM's tool_chat_template_qwen3coder.jinja.
QWEN_XML = replace(
    HERMES,
    name="qwen_xml",
    before_name="<tool_call>\n<function=",
    before_arguments=">\n",
    notation=Notation(before_key="<parameter=", after_key=">\n", after_value="\n</parameter>\n"),
    after_arguments="</function>\n</tool_call>",
).with_bare_calls("<function=")
# Source: the chat templates of GLM-4.5 and GLM-4.6, in llama.cpp's models/templates.
GLM = replace(
    HERMES,
    name="glm",
    before_name="<tool_call>",
    before_arguments="\n",
    notation=Notation(before_key="<arg_key>", after_key="</arg_key>\n<arg_value>", after_value="</arg_value>\n"),
    after_arguments="</tool_call>",
    special_tokens=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
# Source: the chat template of GLM-4.7-Flash, in public copies.
GLM47 = replace(
    GLM,
    name="glm47",
    before_arguments="",
    notation=Notation(before_key="<arg_key>", after_key="</arg_key><arg_value>", after_value="</arg_value>"),
    between_calls="",
)
# Source: the chat template of MiniMax-M2, in llama.cpp's models/templates.
MINIMAX_M2 = ToolFormat(
    name="minimax_m2",
    trigger="<minimax:tool_call>",
    before_calls="<minimax:tool_call>\n",
    before_name='<invoke name="',
    before_arguments='">\n',
    notation=Notation(before_key='<parameter name="', after_key='">', after_value="</parameter>\n"),
    after_arguments="</invoke>\n",
    between_calls="",
    after_calls="</minimax:tool_call>",
    special_tokens=("<minimax:tool_call>", "</minimax:tool_call>"),
).with_bare_calls('<invoke name="')
# For a template without tools: `messages_with_plain_tools` describes them in words.
PLAIN = replace(HERMES, name="plain")
# Source: the chat templates of Llama 3.1 and 3.2; "; " between calls as in vLLM's parser of that name.
LLAMA3_JSON = ToolFormat(
    name="llama3_json",
    trigger="",
    answer_prefix="<|python_tag|>",
    also_ends="<|python_end|>",
    before_name='{"name": "',
    before_arguments='", "parameters": ',
    after_arguments="}",
    between_calls="; ",
    special_tokens=("<|python_tag|>",),
)
_TYPED_JSON = replace(LLAMA3_JSON, before_name='{"type": "function", "name": "')
LLAMA3_JSON = replace(
    LLAMA3_JSON,
    other_forms=(_TYPED_JSON, replace(LLAMA3_JSON, before_calls="[", between_calls=", ", after_calls="]")),
)
# These tokens contain U+FF5C and U+2581, which resemble a bar and an underscore.
_CALLS_BEGIN, _CALL_BEGIN, _SEP, _CALL_END, _CALLS_END = (
    f"<\uff5c{words.replace(' ', '\u2581')}\uff5c>"
    for words in ("tool calls begin", "tool call begin", "tool sep", "tool call end", "tool calls end")
)
# Source: the chat template of DeepSeek-V2.5, the same in V3.
DEEPSEEK = ToolFormat(
    name="deepseek",
    trigger=_CALLS_BEGIN,
    before_calls=_CALLS_BEGIN,
    before_name=f"{_CALL_BEGIN}function{_SEP}",
    before_arguments="\n```json\n",
    after_arguments=f"\n```{_CALL_END}",
    between_calls="\n",
    after_calls=_CALLS_END,
    special_tokens=(_CALLS_BEGIN, _CALL_BEGIN, _SEP, _CALL_END, _CALLS_END),
).with_bare_calls(_CALL_BEGIN)
# Source: the chat template of DeepSeek-V3.1, in llama.cpp's models/templates.
DEEPSEEK_V31 = replace(
    DEEPSEEK,
    name="deepseek_v31",
    before_name=_CALL_BEGIN,
    before_arguments=_SEP,
    after_arguments=_CALL_END,
    between_calls="",
).with_bare_calls(_CALL_BEGIN)
# Source: the chat template of DeepSeek-V3.2, in llama.cpp's models/templates. The token has U+FF5C for bars.
_DSML = "\uff5cDSML\uff5c"
DEEPSEEK_V32 = ToolFormat(
    name="deepseek_v32",
    trigger=f"<{_DSML}function_calls>",
    before_calls=f"<{_DSML}function_calls>\n",
    before_name=f'<{_DSML}invoke name="',
    before_arguments='">\n',
    notation=Notation(
        before_key=f'<{_DSML}parameter name="',
        after_key='" string="true">',
        after_key_of_other='" string="false">',
        after_value=f"</{_DSML}parameter>\n",
    ),
    after_arguments=f"</{_DSML}invoke>\n",
    between_calls="",
    after_calls=f"</{_DSML}function_calls>",
    also_begins=f"<{_DSML}tool_calls>\n",
    also_ends=f"</{_DSML}tool_calls>",
    special_tokens=(_DSML,),
).with_bare_calls(f"<{_DSML}invoke")
# Source: the chat templates of DeepSeek-V4, in llama.cpp's models/templates.
DEEPSEEK_V4 = replace(
    DEEPSEEK_V32,
    name="deepseek_v4",
    trigger=f"<{_DSML}tool_calls>",
    before_calls=f"<{_DSML}tool_calls>\n",
    after_calls=f"</{_DSML}tool_calls>",
    also_begins=DEEPSEEK_V32.before_calls,
    also_ends=DEEPSEEK_V32.after_calls,
).with_bare_calls(f"<{_DSML}invoke")
# Source: the chat template of Gemma 4, in llama.cpp's models/templates.
GEMMA4 = ToolFormat(
    name="gemma4",
    trigger="<|tool_call>",
    before_name="<|tool_call>call:",
    before_arguments="{",
    notation=Notation(after_key=":", between=",", quote='<|"|>'),
    after_arguments="}<tool_call|>",
    between_calls="",
    special_tokens=("<|tool_call>", "<tool_call|>", '<|"|>'),
)
# Source: vLLM's tool_chat_template_llama4_pythonic.jinja and its parser llama4_pythonic.
LLAMA4 = ToolFormat(
    name="llama4",
    trigger="",
    answer_prefix="<|python_start|>",
    also_ends="<|python_end|>",
    before_calls="[",
    before_name="",
    before_arguments="(",
    notation=Notation(after_key="=", between=", ", quote='"', has_python_words=True),
    after_arguments=")",
    between_calls=", ",
    after_calls="]",
    special_tokens=("<|python_start|>",),
)
LLAMA4 = replace(
    LLAMA4,
    other_forms=(
        replace(_TYPED_JSON, answer_prefix=LLAMA4.answer_prefix),
        replace(LLAMA3_JSON, answer_prefix=LLAMA4.answer_prefix, other_forms=()),
    ),
)
# Source: the chat template of LFM2.5-8B-A1B, in llama.cpp's models/templates.
LFM2 = replace(
    LLAMA4,
    name="lfm2",
    trigger="<|tool_call_start|>",
    answer_prefix="",
    before_calls="<|tool_call_start|>[",
    after_calls="]<|tool_call_end|>",
    also_ends="",
    special_tokens=("<|tool_call_start|>", "<|tool_call_end|>"),
    other_forms=(),
)
# Source: the chat templates of Devstral-Small-2507 and Ministral-3-14B, in llama.cpp's models/templates. The versions
# are those of mistral-common's tokenizers.
MISTRAL_V13 = ToolFormat(
    name="mistral_v13",
    trigger="[TOOL_CALLS]",
    before_name="[TOOL_CALLS]",
    before_arguments="[ARGS]",
    after_arguments="",
    between_calls="",
    special_tokens=("[TOOL_CALLS]", "[ARGS]"),
    history_id="call{number:05}",  # templates refuse other than nine letters and digits
)
# Source: the chat template of Mistral-Small-3.2-24B-Instruct-2506, in llama.cpp's models/templates.
MISTRAL_V11 = replace(
    MISTRAL_V13,
    name="mistral_v11",
    before_number="[CALL_ID]call",
    num_digits=5,
    special_tokens=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
)
# Source: the chat templates of Mistral-Nemo-Instruct-2407 and Mistral-Small-3.1-24B-Instruct-2503, in llama.cpp's
# models/templates, and vLLM's tool_chat_template_mistral_official.jinja. In a conversation they add each call's id.
MISTRAL_V3 = replace(
    MISTRAL_V13,
    name="mistral_v3",
    before_calls="[TOOL_CALLS] [",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    between_calls=", ",
    after_calls="]",
    special_tokens=("[TOOL_CALLS]",),
)
# Source: the chat templates of Kimi-K2 and Kimi-K2-Thinking, in llama.cpp's models/templates.
KIMI_K2 = ToolFormat(
    name="kimi_k2",
    trigger="<|tool_calls_section_begin|>",
    before_calls="<|tool_calls_section_begin|>",
    before_name="<|tool_call_begin|>functions.",
    before_number=":",
    before_arguments="<|tool_call_argument_begin|>",
    after_arguments="<|tool_call_end|>",
    between_calls="",
    after_calls="<|tool_calls_section_end|>",
    special_tokens=(
        *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
        *("<|tool_call_end|>", "<|tool_calls_section_end|>"),
    ),
    history_id="functions.{name}:{number}",  # the template writes it in place of the name
).with_bare_calls("<|tool_call_begin|>")
# Source: the chat templates of Granite 3.2 and 3.3. Granite 4 has Hermes' format.
GRANITE = replace(
    MISTRAL_V3,
    name="granite",
    trigger="<|tool_call|>",
    before_calls="<|tool_call|>[",
    special_tokens=("<|tool_call|>",),
    history_id="",
)
# Source: the tokens of Phi-4-mini, and Ollama's template for it. The checkpoint's own template has no calls.
PHI4 = replace(
    GRANITE,
    name="phi4",
    after_calls="]<|/tool_call|>",
    special_tokens=("<|tool_call|>", "<|/tool_call|>"),
)
# Source: the chat templates of Nemotron Nano v2 and Llama 3.3 Nemotron Super v1.5, in llama.cpp's models/templates.
NEMOTRON = replace(
    GRANITE,
    name="nemotron",
    trigger="<TOOLCALL>",
    before_calls="<TOOLCALL>[",
    after_calls="]</TOOLCALL>",
    special_tokens=("<TOOLCALL>", "</TOOLCALL>"),
)
# Source: the chat template of gpt-oss, and docs/format.md of openai/harmony. The template writes one call of a message.
HARMONY = ToolFormat(
    name="harmony",
    trigger="",
    before_name="<|channel|>commentary to=functions.",
    before_arguments=" <|constrain|>json<|message|>",
    other_before_name=" to=functions.",
    other_before_arguments="<|channel|>commentary json<|message|>",
    after_arguments="",
    between_calls="<|end|><|start|>assistant",
    has_messages=True,
    special_tokens=HARMONY_TOKENS,
)

# The first format with all its marks in a template is that of the template.
_TEMPLATE_MARKS = (
    (DEEPSEEK_V4, (_DSML, "tool_calls>")),
    (DEEPSEEK_V32, (_DSML,)),
    (DEEPSEEK, (_CALLS_BEGIN, "```json")),
    (DEEPSEEK_V31, (_CALLS_BEGIN,)),
    (MISTRAL_V11, MISTRAL_V11.special_tokens),
    (MISTRAL_V13, MISTRAL_V13.special_tokens),
    (MISTRAL_V3, MISTRAL_V3.special_tokens),
    (KIMI_K2, (KIMI_K2.trigger,)),
    (GRANITE, (GRANITE.trigger, "a JSON list")),
    (PHI4, PHI4.special_tokens),
    (NEMOTRON, (NEMOTRON.trigger,)),
    (GEMMA4, (GEMMA4.trigger, '<|"|>')),
    (LFM2, (LFM2.trigger,)),
    (LFM2, ("<|tool_list_start|>",)),  # that of LFM2-8B-A1B, which writes no calls
    (MINIMAX_M2, (MINIMAX_M2.trigger,)),
    (GLM47, ("</arg_key><arg_value>",)),
    (GLM, ("<arg_key>",)),
    (QWEN_XML, (QWEN_XML.trigger, "<function=", "<parameter=")),
    (LLAMA4, ("[func_name1(",)),
    (HARMONY, ("<|start|>", "<|channel|>")),
)
TOOL_FORMATS: Mapping[str, ToolFormat] = {
    each.name: each for each in (*(tool_format for tool_format, _ in _TEMPLATE_MARKS), HERMES, LLAMA3_JSON, PLAIN)
}
_HERMES_ARGUMENTS = re.compile(r'\\?"arguments\\?"\s*:')  # other formats have its markers, too
_LLAMA3_MARKERS = re.compile(r'python_tag|\\?"parameters\\?"\s*:')


def detect_tool_format(chat_template: str) -> str:
    """Return the name of the format that a chat template teaches; `plain` for an unknown format."""
    for tool_format, marks in _TEMPLATE_MARKS:
        if all(mark in chat_template for mark in marks):
            return tool_format.name
    if HERMES.trigger in chat_template and _HERMES_ARGUMENTS.search(chat_template):
        return HERMES.name
    return LLAMA3_JSON.name if _LLAMA3_MARKERS.search(chat_template) else PLAIN.name
