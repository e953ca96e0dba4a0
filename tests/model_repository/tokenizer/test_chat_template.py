"""The sandboxed chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from model_repository.errors import InvalidRequest
from model_repository.tokenizer.chat_template import ChatTemplate

MESSAGES = ({"role": "user", "content": "hi"},)


def render(source: str, variables: Mapping[str, Any] | None = None, **special_tokens: str) -> str:
    return ChatTemplate(source, special_tokens).render({"messages": MESSAGES, "tools": None} | dict(variables or {}))


def test_a_template_sees_messages_special_tokens_and_add_generation_prompt() -> None:
    source = "{{ bos_token }}{{ messages[0].content }}{% if add_generation_prompt %}assistant:{% endif %}"
    assert render(source, bos_token="<s>") == "<s>hiassistant:"


def test_json_is_plain() -> None:
    assert render("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", '{"b": "é", "a": [1, 2]}'),
        ("ensure_ascii=False", '{"b": "é", "a": [1, 2]}'),
        ("ensure_ascii=True", '{"b": "\\u00e9", "a": [1, 2]}'),
        ("separators=(',', ':')", '{"b":"é","a":[1,2]}'),
        ("sort_keys=True", '{"a": [1, 2], "b": "é"}'),
    ],
)
def test_tojson_accepts_the_arguments_of_transformers(arguments: str, expected: str) -> None:
    assert render("{{ {'b': 'é', 'a': [1, 2]} | tojson(" + arguments + ") }}") == expected


def test_escaped_json_is_escaped_as_json_does_it_but_for_the_marks() -> None:
    text = "aé\u2028🙂\x7f\n"
    source = "{{ messages[0].content | tojson(ensure_ascii=True) }}"
    assert render(source, {"messages": [{"content": text}]}) == json.dumps(text)
    assert render(source, {"messages": [{"content": "<\ufdd0s"}]}) == '"<\ufdd0s"'


def test_a_template_may_extend_its_own_lists() -> None:
    """Kimi-K2's does; transformers' sandbox, which forbids it, does not render that."""
    assert render("{% set a = [] %}{% set _ = a.append(messages[0].content) %}{{ a | join }}") == "hi"


def test_a_method_comes_before_an_item_of_its_name() -> None:
    """As in Jinja: a tool may have a parameter `items`."""
    parameters = {"content": "a", "items": 1}
    source = "{{ messages[0].items() | list }}{{ messages[0].content }}{{ messages[0].other is defined }}"
    assert render(source, {"messages": [parameters]}) == "[('content', 'a'), ('items', 1)]aFalse"


def test_a_generation_block_is_rendered_as_its_content() -> None:
    source = "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ messages[0].content }}{{ a }}{% endgeneration %}{{ a }}"
    assert render(source) == "hi21"
    in_loop = "{%- for message in messages %}{%- generation %}{{ message.content }}{%- endgeneration %}{%- endfor %}"
    assert render(in_loop) == "hi"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('only one system message') }}", "only one system message"),
        ("{{ messages[0].missing.more }}", "has no attribute 'missing'"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% for i in range(10**9) %}x{% endfor %}", "(?i)range"),
        ("{{ cycler() }}", "at least one item"),
    ],
)
def test_a_refusal_of_the_template_is_a_client_error(source: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        render(source)
    assert caught.value.field == "messages"
    assert caught.value.text.startswith("the model's chat template refuses it: ")


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("{% for m in messages %}{{ m.content }}", "line 1: Unexpected end of template"),
        ("\n{{ messages | unknown }}", "line 2: No filter named 'unknown'."),
        ("{% break %}", "'break' outside loop"),
        (f"{{{{ {'(' * 5000}1{')' * 5000} }}}}", "maximum recursion depth"),
        (f"{{{{ {'9' * 5000} }}}}", "Exceeds the limit"),
    ],
)
def test_a_template_that_does_not_compile_refuses_conversations(source: str, fault: str) -> None:
    """The stage did not load, and completions without a template were not served either."""
    with pytest.raises(InvalidRequest) as caught:
        render(source)
    assert caught.value.field == "messages"
    assert caught.value.text.startswith(f"this model's chat template is broken ({fault}")
    assert caught.value.text.endswith("): use a text prompt")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ('' | attr('__class__')).__mro__ }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ lipsum.__globals__.os }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ self._TemplateReference__context.environment.filters.clear() }}",
        "{{ messages.append.__self__.append(1) }}",
    ],
)
def test_a_template_reaches_neither_pythons_internals_nor_changes_its_arguments(source: str) -> None:
    with pytest.raises(InvalidRequest, match=r"unsafe|has no attribute"):
        render(source)


def test_a_template_that_fills_the_memory_is_refused() -> None:
    """A size beyond all address spaces, in place of a process with a limit."""
    with pytest.raises(InvalidRequest, match="template takes too much memory for it"):
        render("{{ 'a' * 10**18 }}")


def test_a_long_reason_of_a_template_is_cut() -> None:
    with pytest.raises(InvalidRequest) as caught:
        render("{{ raise_exception('a' * 10**6) }}")
    assert len(caught.value.text) < 1100


def test_a_template_that_recurses_without_end_is_the_clients_mistake() -> None:
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        render("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}")


# --- templates of models that read images -----------------------------------------------------------------------------

PARTS = "{% for m in messages %}{% for part in m.content %}{% if part.type == 'text' %}[{{ part.text }}]{% endif %}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (PARTS + "{% if part.type == 'image' %}<image>{% endif %}{% endfor %}{% endfor %}", "<image>[\na<]<image>[b]"),
        (PARTS + "{% if part.type == 'image' %}<|pad|>{% endif %}{% endfor %}{% endfor %}", "[<image>\na<<image>b]"),
        (
            "{% for m in messages %}{{ m.content if m.content is string else 'parts' }}{% endfor %}",
            "<image>\na<<image>b",
        ),
    ],
    ids=["image parts", "its own token for images", "texts"],
)
def test_a_content_has_the_form_that_the_template_reads(source: str, expected: str) -> None:
    assert render(source, {"messages": [{"role": "user", "content": "<image>\na<<image>b"}]}) == expected
