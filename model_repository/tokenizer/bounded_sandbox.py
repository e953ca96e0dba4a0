"""Jinja's sandbox with limits of time and memory for chat templates.

Jinja's sandbox keeps a template from files, processes and Python's internals. This one also limits memory and time.
Models' templates stay far below each limit.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from model_repository.tokenizer.result_sizes import size_of_call, size_of_filter, size_of_operation

MAX_SIZE = 2**25  # characters of a text, items of a list, bits of an integer
MAX_RENDER_S = 10.0

_STEP, _JOIN = "a further turn", "joined texts"  # our own filters, with names that no template can write


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """A sandbox whose templates raise SecurityError beyond a limit. `begin` comes before each rendering.

    Args:
        filters: added to Jinja's, or in their place.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(
        self,
        filters: Mapping[str, Callable[..., Any]],
        *,
        clock: Callable[[], float] = time.monotonic,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._clock = clock
        self._rendering = threading.local()
        del self.globals["lipsum"]  # it writes any number of words
        self.filters = {name: _bounded(name, function) for name, function in {**self.filters, **filters}.items()}
        self.filters[_STEP] = pass_context(lambda context, nothing: self._step())  # else Jinja runs it only once
        self.filters[_JOIN] = lambda parts: self.concat(map(str, parts))

    def from_string(self, source: str | nodes.Template, *arguments: Any, **options: Any) -> Any:
        """Compile a template, with its loops and its `~` rewritten: Jinja shows a sandbox only operators and calls."""
        tree = self.parse(source) if isinstance(source, str) else source
        for loop in tree.find_all(nodes.For):
            loop.body.insert(0, nodes.ExprStmt(_filtered(nodes.Const(None), _STEP)).set_lineno(loop.lineno))
        for concat in tree.find_all(nodes.Concat):
            concat.nodes = [_filtered(nodes.List(concat.nodes), _JOIN)]
        tree.set_environment(self)
        return super().from_string(tree, *arguments, **options)

    def begin(self) -> None:
        """Start the time limit of this thread's next rendering."""
        self._rendering.until_s = self._clock() + MAX_RENDER_S

    def concat(self, parts: Iterable[str]) -> str:
        """Join the parts that a template, a macro or a block has written."""
        written = list(parts)
        _require_size(sum(map(len, written)))
        return "".join(written)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an operation of limited size. It needs no step: only loops and calls can be endless."""
        if size_of_operation(operator, left, right) > MAX_SIZE:
            raise TooLarge()
        return self.binop_table[operator](left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function with a result of limited size."""
        __self._step()
        _require_size(size_of_call(__obj, [*args, *kwargs.values()]))
        return super().call(__context, __obj, *args, **kwargs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Allow an attribute except `translate`, which replaces a character by a text of any length."""
        return attr != "translate" and super().is_safe_attribute(obj, attr, value)

    def _step(self) -> None:
        if self._clock() > self._rendering.until_s:
            raise SecurityError(f"it takes longer than {MAX_RENDER_S:g} seconds")


def _filtered(expression: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(expression, name, [], [], None, None)


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter with results of limited size."""
    num_passed = int(hasattr(function, "jinja_pass_arg"))  # Jinja's own arguments before the value

    @functools.wraps(function)  # keeps Jinja's notes on it
    def bounded(*arguments: Any, **named: Any) -> Any:
        value, *rest = arguments[num_passed:]
        value, size = size_of_filter(name, value, [*rest, *named.values()])
        _require_size(size)
        result = function(*arguments[:num_passed], value, *rest, **named)
        if isinstance(result, str):
            _require_size(len(result))
        return result

    return bounded


def _require_size(size: int) -> None:
    if size > MAX_SIZE:
        raise TooLarge()


class TooLarge(SecurityError):
    def __init__(self) -> None:
        super().__init__("it makes something too large")
