"""The limits of a hostile template."""

from __future__ import annotations

import itertools
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jinja2.exceptions import SecurityError

from model_repository.tokenizer.bounded_sandbox import MAX_RENDER_S, MAX_SIZE, BoundedSandbox

MAX_GROWTH_BYTES = 400 * 2**20  # some texts of the largest size at a time


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """Make an undetected template fail at once, instead of filling this machine."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    held_bytes = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (held_bytes + MAX_GROWTH_BYTES, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


def render(source: str, clock: Callable[[], float] = lambda: 0.0, **variables: Any) -> str:
    sandbox = BoundedSandbox({}, clock=clock)
    template = sandbox.from_string(source)
    sandbox.begin()
    return str(template.render(variables))


TOO_LARGE = {
    "a text many times": "{{ 'a' * 10**9 }}",
    "many times a text": "{{ 10**9 * 'a' }}",
    "a list many times": "{{ ([1] * 10**9) | length }}",
    "a huge number": "{{ 10 ** (10 ** 10) }}",
    "doubled by +": "{% set n = namespace(s='a') %}{% for i in range(64) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "doubled by ~": "{% set n = namespace(s='a') %}{% for i in range(64) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "a list that doubles": (
        "{% set n = namespace(s=[1]) %}{% for i in range(64) %}{% set n.s = n.s + n.s %}{% endfor %}"
    ),
    "a block that doubles": (
        "{% set n = namespace(s='a') %}{% for i in range(64) %}{% set s %}{{ n.s }}{{ n.s }}{% endset %}"
        "{% set n.s = s %}{% endfor %}"
    ),
    "a macro that doubles": (
        "{% macro twice(s) %}{{ s }}{{ s }}{% endmacro %}"
        "{% set n = namespace(s='a') %}{% for i in range(64) %}{% set n.s = twice(n.s) %}{% endfor %}"
    ),
    "what it writes": "{% set s = 'a' * 10**6 %}{% for i in range(99999) %}{{ s }}{% endfor %}",
    "padding": "{{ 'a'.center(10**9) }}",
    "zeros": "{{ 'a'.zfill(10**9) }}",
    "tabs": "{{ ('\t' * 10**6).expandtabs(10**6) }}",
    "bytes of a number": "{{ (1).to_bytes(10**9) }}",
    "every character replaced": "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
    "every character translated": "{{ 'aaaa'.translate({97: 'b' * 10**6}) }}",
    "a separator": "{{ ('b' * 10**6).join(['a'] * 10**6) }}",
    "a width in a format": "{{ '%999999999d' % 1 }}",
    "a width beside a format": "{{ '%*d' % (999999999, 1) }}",
    "a width in a field": "{{ '{:999999999}'.format(1) }}",
    "a width beside a field": "{{ '{:{}}'.format(1, 999999999) }}",
    "a width in a map": "{{ '{a:999999999}'.format_map({'a': 1}) }}",
    "a filter that pads": "{{ 'a' | center(10**9) }}",
    "a filter that pads with what it is told": "{{ 'a\nb' | indent('x' * 10**6) }}",
    "a filter that pads rows": "{{ [1] | batch(10**9, 0) | list | length }}",
    "a filter that rounds": "{{ 1.5 | round(10**9, 'ceil') }}",
    "a filter that formats": "{{ '%999999999d' | format(1) }}",
    "a filter that replaces": "{{ ('a' * 10**6) | replace('a', 'b' * 10**6) }}",
    "a filter that joins": "{{ range(99999) | map('string') | join('b' * 10**6) }}",
    "filters that make each other's text longer": (
        "{% set n = namespace(s='\"' * 99) %}{% for i in range(40) %}{% set n.s = n.s | tojson %}{% endfor %}"
    ),
}


@pytest.mark.parametrize("source", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_template_that_would_fill_the_memory_is_refused(source: str) -> None:
    with pytest.raises(SecurityError, match=r"too large|unsafe"):
        render(source)


ENDLESS = {
    "loops in loops": (
        "{% set r = range(9**5) %}{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}"
    ),
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    "loops that call themselves": (
        "{% for a in [[], []] recursive %}{% if loop.depth < 90 %}{{ loop([[], []]) }}{% endif %}{% endfor %}"
    ),
    "calls": "{% for a in range(99999) %}{{ 'a'.upper() }}{% endfor %}",
}


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
def test_an_endless_template_is_refused_after_its_time(source: str) -> None:
    ticks = iter(range(10**6))
    with pytest.raises(SecurityError, match=f"longer than {MAX_RENDER_S:g} seconds"):
        render(source, clock=lambda: next(ticks) / 1000)


def test_each_rendering_has_its_own_time() -> None:
    ticks = itertools.count()
    sandbox = BoundedSandbox({}, clock=lambda: next(ticks) * MAX_RENDER_S / 2)
    template = sandbox.from_string("{{ 'a'.upper() }}")
    for _ in range(3):
        sandbox.begin()
        assert template.render() == "A"


def test_ordinary_templates_are_not_limited() -> None:
    text = "x" * (MAX_SIZE // 8)
    assert render("{{ text + '!' }}", text=text) == text + "!"
    assert render("{{ 'a' ~ 1 ~ none ~ ['b'] }}") == "a1None['b']"
    assert (
        render("{% for a in [1, 2] %}{{ loop.last }}{% if not loop.last %}, {% endif %}{% endfor %}") == "False, True"
    )
    assert render("{% for a in [3, 4] if a > 3 %}{{ loop.length }}{{ a }}{% else %}none{% endfor %}") == "14"
    assert render("{{ '%-5s|' % 'a' }}{{ '{:>3}'.format('b') }}{{ 'a\nb' | indent(2) }}") == "a    |  ba\n  b"
    assert render("{{ ['a', 'b'] | join(', ') }}{{ 'abc' | join('-') }}{{ 'a-b'.replace('-', '+') }}") == "a, ba-b-ca+b"
    assert render("{{ 2 ** 10 }}{{ 7 % 4 }}{{ 1.5 * 2 }}{{ 'ab' * 2 }}{{ [1] * 2 }}") == "102433.0abab[1, 1]"
