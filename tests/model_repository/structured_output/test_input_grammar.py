"""Grammars of custom tools' inputs, as the constraint enforces them inside of a call."""

from __future__ import annotations

import re
from typing import Any

import pytest

from model_repository.contract.request import ToolUse
from model_repository.errors import InvalidRequest
from model_repository.structured_output.input_grammar import input_pattern
from model_repository.structured_output.json_schema import enforceable_schema
from model_repository.tokenizer.custom_tools import as_functions, input_grammars, input_patterns
from model_repository.tokenizer.tool_grammar import tool_grammar
from model_repository.tool_formats import TOOL_FORMATS
from tests.model_repository.structured_output.acceptance import accepts, accepts_json, canonical

# The language of Codex's tool apply_patch.
PATCH = r"""
start: opening section+ closing
opening: "*** Begin Patch" LF
closing: "*** End Patch" LF?
section: added | removed | changed  // one file

added: "*** Add File: " path LF ("+" /(.*)/ LF)+
removed: "*** Delete File: " path LF
changed: "*** Update File: " path LF ("*** Move to: " path LF)? lines?
path: /(.+)/
lines: (place | line)+ ("*** End of File" LF)?
place: ("@@" | "@@ " /(.+)/) LF
line: ("+" | "-" | " ") /(.*)/ LF -> changed_line

%import common.LF
"""
GOOD_PATCHES = [
    '*** Begin Patch\n*** Add File: a.txt\n+\n+"b" \\ 🙂\r\n*** End Patch',
    "*** Begin Patch\n*** Delete File: a b\n*** Update File: x\n*** Move to: y\n*** End Patch\n",
    "*** Begin Patch\n*** Update File: x\n@@ f()\n a\n-b\n+c\n@@\n+d\n*** End of File\n*** End Patch",
]
BAD_PATCHES = [
    "",
    "*** Begin Patch\n*** End Patch",
    "*** Begin Patch\n*** Add File: \n+a\n*** End Patch",
    "*** Begin Patch\n*** Add File: a\nb\n*** End Patch",
    "*** Begin Patch\n*** Delete File: a*** End Patch",
    "x" + GOOD_PATCHES[0],
    GOOD_PATCHES[0] + "x",
]


def custom_tool(definition: str, syntax: str = "lark") -> dict[str, Any]:
    form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    return {"type": "custom", "custom": {"name": "run", "format": form}}


@pytest.mark.parametrize("name", [name for name in TOOL_FORMATS if name != "plain"])
def test_only_inputs_of_the_grammar_can_be_written_in_a_call_of_any_format(name: str) -> None:
    custom = [custom_tool(PATCH)]
    tools = as_functions(custom, input_patterns(input_grammars(custom)))
    tool_format = TOOL_FORMATS[name]
    grammar = tool_grammar(ToolUse(tools=tools, choice="required"), tool_format, enforceable_schema)
    assert grammar is not None
    for text in GOOD_PATCHES + BAD_PATCHES:
        call = tool_format.calls_text([("run", canonical({"input": text}))])
        assert accepts(grammar, call) == (text in GOOD_PATCHES), text


@pytest.mark.parametrize(
    ("definition", "good", "bad"),
    [
        ('start: "a.b" | /c|d/', ["a.b", "c", "d"], ["axb", "a.bd", ""]),
        ('start: "é\\n\\x41\\u00e9\\"\\\\"', ['é\nAé"\\'], ["é\\n"]),
        ('start: "\\d"', ["\\d"], ["1"]),
        ('start: "ab"i /c/i', ["aBC"], ["b"]),
        ('start: "a".."c"', ["b"], ["d", "-"]),
        ('start: "-".."]"', ["A", "]"], ["a"]),
        ('start: "a"? "b"* "c"+', ["c", "abbcc"], ["ab", "aac"]),
        ('start: "ab"~2', ["abab"], ["ab", "abb"]),
        ('start: ("a" | "b")~1..2 ["c"]', ["a", "bac"], ["", "aba"]),
        ('start: "a" |', ["a", ""], ["aa"]),
        ('start: one\n  | two  // or\n?one.2: "a"\n!two: B\nB: "b"', ["a", "b"], ["ab"]),
        ("start: /a.b/", ["a\rb"], ["a\nb"]),
        (r"start: /a.[.]\./s", ["a\n.."], ["a\n.a"]),
        ("%import common.INT -> N\n%import common (WS, CNAME)\nstart: N WS CNAME", ["1 _a"], ["1_a", "a 1"]),
        ("start: ESCAPED_STRING\n%import common.ESCAPED_STRING", ['""', r'"a\"\\"'], ['"a"b"', r'"\"']),
        ('start: expr\nexpr: F (" + " F)* -> sum\nF: /[0-9]/', ["1", "1 + 2"], ["1+2"]),
    ],
)
def test_a_lark_grammar_allows_the_same_texts_as_its_pattern(definition: str, good: list[str], bad: list[str]) -> None:
    schema = {"type": "string", "pattern": input_pattern("lark", definition)}
    assert [text for text in good + bad if accepts_json(schema, text)] == good


@pytest.mark.parametrize(
    ("definition", "good", "bad"),
    [
        ("a|b", ["a", "b"], ["ab", "xa"]),
        ("^a$", ["a"], ["aa"]),
        ("(?i)ab", ["AB"], ["ABC"]),
    ],
)
def test_an_expression_is_that_of_the_whole_input(definition: str, good: list[str], bad: list[str]) -> None:
    schema = {"type": "string", "pattern": input_pattern("regex", definition)}
    assert [text for text in good + bad if accepts_json(schema, text)] == good


@pytest.mark.parametrize(
    ("syntax", "definition", "rule"),
    [
        ("regex", "a)(b", "regex: a ) without a ("),
        ("regex", "(?=a)", "regex: look-ahead and look-behind are not enforced"),
        ("lark", "", "start: there is no rule of that name"),
        ("lark", "start: a", "a: there is no rule of that name"),
        ("lark", 'start: "(" start? ")"', "start: refers to itself, and only grammars without recursion are enforced"),
        ("lark", "start: a\na: b\nb: a", "a: refers to itself"),
        ("lark", 'start: "a', 'line 1, column 8: this is not Lark: start: "a'),
        ("lark", "start: /" + "\\" * 1000, "line 1, column 8: this is not Lark"),  # 2**1000 steps
        ("lark", 'start: "a"\nstart: "b"', "start: defined twice"),
        ("lark", 'start: a{"b"}\na{x}: x', "a: templates are not enforced"),
        ("lark", 'start: "a"\n%ignore " "', "%ignore is not enforced"),
        ("lark", "start: A\n%declare A", "%declare is not enforced"),
        ("lark", "start: A\n%import python.A", "%import python.A: only the terminals of `common` can be imported"),
        ("lark", "start: A\n%import common.A", "%import common.A: only the terminals of `common` can be imported"),
        ("lark", "start: /a)(b/", "start: /a)(b/: a ) without a ("),
        ("lark", "start: A\nA: /a(?!b)/", "A: /a(?!b)/: look-ahead and look-behind are not enforced"),
        ("lark", "start: /a/x", "start: /a/x: of the flags only i and s are enforced"),
        ("lark", 'start: "ab".."z"', "start: a range has one character at each end"),
        ("lark", 'start: "a"~-1', "start: a repetition has 0 to 100000 times"),
        ("lark", 'start: "a"~9999999999', "start: a repetition has 0 to 100000 times"),
        ("lark", f"start: {'[' * 2000}A{']' * 2000}\nA: /a/", "nested too deeply"),
        ("lark", "".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(20)) + 'r20: "a"\nstart: r0', "more than 5000 ch"),
    ],
)
def test_a_grammar_that_cannot_be_enforced_is_refused_by_rule(syntax: str, definition: str, rule: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(rule)):
        input_pattern(syntax, definition)
