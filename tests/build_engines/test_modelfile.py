"""Ollama's Modelfile as a preset."""

from __future__ import annotations

import pytest

from build_engines.errors import BuildError
from build_engines.modelfile import Modelfile, read_modelfile


def test_every_line_that_a_preset_has_is_read() -> None:
    text = '''# A comment
FROM   org/model:Q4_K_M
  # Another one
system """
You answer  in one sentence.

# This is no comment.
"""

PARAMETER temperature 0.5
PARAMETER top_k 40
PARAMETER top_p 0.9
parameter min_p 0.05
PARAMETER seed 7
PARAMETER stop "User: "
PARAMETER stop END
PARAMETER stop """a
b"""
PARAMETER num_predict 20
PARAMETER repeat_penalty 1.1
PARAMETER presence_penalty -1
PARAMETER frequency_penalty 1.5
'''
    assert read_modelfile(text) == Modelfile(
        base="org/model:Q4_K_M",
        system="You answer  in one sentence.\n\n# This is no comment.",
        defaults={
            "temperature": 0.5,
            "top_k": 40,
            "top_p": 0.9,
            "min_p": 0.05,
            "seed": 7,
            "stop": ("User: ", "END", "a\nb"),
            "chat_max_tokens": 20,
            "completion_max_tokens": 20,
            "repetition_penalty": 1.1,
            "presence_penalty": -1,
            "frequency_penalty": 1.5,
        },
    )


@pytest.mark.parametrize(
    ("line", "system"),
    [
        ("SYSTEM Be brief.", "Be brief."),
        ('SYSTEM "Be brief."', "Be brief."),
        ('SYSTEM "Yes" or "no"', '"Yes" or "no"'),
        ('SYSTEM """Be "brief"."""', 'Be "brief".'),
        ('SYSTEM Quote with """ only.', 'Quote with """ only.'),
        ('SYSTEM Quote """ not.', 'Quote """ not.'),
        ("SYSTEM", ""),
    ],
)
def test_a_system_prompt_may_have_quotes(line: str, system: str) -> None:
    assert read_modelfile(f"FROM demo\n{line}\n") == Modelfile(base="demo", system=system)


@pytest.mark.parametrize("number", [-1, -2])
def test_no_limit_is_the_rest_of_the_window(number: int) -> None:
    defaults = {"chat_max_tokens": None, "completion_max_tokens": None}
    assert read_modelfile(f"FROM demo\nPARAMETER num_predict {number}").defaults == defaults


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "FROM: required, with the name of a model"),
        ("SYSTEM Be brief.", "FROM: required, with the name of a model"),
        ("FROM a\n\nFROM b", "line 3: FROM b: given twice"),
        ("FROM a\nSYSTEM b\nsystem c", "line 3: system c: given twice"),
        ('FROM a\nTEMPLATE """{{ .Prompt }}\nx"""', 'line 2: TEMPLATE """{{ .Prompt }} x""": a model has the chat'),
        ("FROM a\nADAPTER ./lora", "line 2: ADAPTER ./lora: `conch build MODEL --adapter NAME=DIR` adds an adapter to"),
        ("FROM a\nMESSAGE user Hi", "line 2: MESSAGE user Hi: clients send the whole conversation with each request"),
        ("FROM a\nLICENSE MIT", "line 2: LICENSE MIT: a preset has no license of its own"),
        ("FROM a\nSYSTM b", "line 2: SYSTM b: expected one of FROM, SYSTEM, PARAMETER; did you mean SYSTEM?"),
        (
            "FROM a\nPARAMETER num_ctx 4096",
            "line 2: PARAMETER num_ctx 4096: `conch build MODEL --context-window N` sets",
        ),
        ("FROM a\nPARAMETER num_thread 2", "line 2: PARAMETER num_thread 2: `conch build MODEL --num-threads N` sets"),
        ("FROM a\nPARAMETER mirostat 2", "line 2: PARAMETER mirostat 2: clients set it in a request"),
        ("FROM a\nPARAMETER repeat_last_n 64", "line 2: PARAMETER repeat_last_n 64: the penalty counts all tokens of"),
        (
            "FROM a\nPARAMETER main_gpu 1",
            "line 2: PARAMETER main_gpu 1: expected one of temperature, top_k, top_p, min_p",
        ),
        ("FROM a\nPARAMETER", "line 2: PARAMETER: expected one of temperature, "),
        ("FROM a\nPARAMETER temperature", "line 2: PARAMETER temperature: must be a number, at least 0, at most 2"),
        ("FROM a\nPARAMETER temperature 9", "line 2: PARAMETER temperature 9: must be a number, at least 0, at most 2"),
        ("FROM a\nPARAMETER top_k 1.5", "line 2: PARAMETER top_k 1.5: must be a whole number, at least -1"),
        ("FROM a\nPARAMETER seed -1", "line 2: PARAMETER seed -1: must be a whole number from 0 to 2^63 - 1"),
        (
            "FROM a\nPARAMETER num_predict 0",
            "line 2: PARAMETER num_predict 0: must be a whole number from 1 to 2147483647",
        ),
        ("FROM a\nPARAMETER stop", "line 2: PARAMETER stop: must be a text, or a list of at most 16 texts, none of"),
        ("FROM a\n" + "PARAMETER stop a\n" * 17, "line 18: PARAMETER stop a: must be a text, or a list of at most 16"),
        ("FROM a\nPARAMETER seed 1\nPARAMETER seed 2", "line 3: PARAMETER seed 2: given twice"),
        ('FROM a\nSYSTEM """b\nc', 'line 2: SYSTEM: """ without an end'),
        ('FROM a\nSYSTEM """b""" c', 'line 2: SYSTEM: a text behind the closing """'),
    ],
)
def test_what_a_preset_does_not_have_is_refused_by_line_value_and_rule(text: str, error: str) -> None:
    with pytest.raises(BuildError) as refusal:
        read_modelfile(text)
    assert str(refusal.value).startswith(error)


def test_a_long_value_is_cut_in_the_error() -> None:
    with pytest.raises(BuildError) as refusal:
        read_modelfile(f"FROM a\nLICENSE {'x' * 500}")
    assert len(str(refusal.value)) < 200
