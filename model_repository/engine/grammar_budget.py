"""Limits the memory of the compiled grammars in use: of all senders together, and of each."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass

from model_repository.errors import Overloaded, TooManyWaiting

MAX_BYTES = 128 << 20  # all that are in use
MAX_SENDER_BYTES = MAX_BYTES // 2  # one sender's: two of the largest


@dataclass(frozen=True, eq=False)
class GrammarUse:
    """A grammar in use. The budget counts its bytes while a reference to this object exists."""

    num_bytes: int
    sender: str


class GrammarBudget:
    """Counts each grammar of a sender once, however many requests use it; for any number of threads."""

    def __init__(self) -> None:
        self._in_use: weakref.WeakValueDictionary[tuple[str, str], GrammarUse] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def use(self, grammar: str, sender: str, num_bytes: int) -> GrammarUse:
        """Count a grammar of a sender.

        Args:
            num_bytes: its memory when compiled, measured by the tokenizer stage.

        Raises:
            TooManyWaiting: the sender's grammars in use fill the memory for one sender.
            Overloaded: the grammars in use fill the memory for all senders.
        """
        with self._lock:
            used = self._in_use.get((sender, grammar))
            if used is None:
                self._check(sender, num_bytes)
                used = self._in_use[sender, grammar] = GrammarUse(num_bytes, sender)
            return used

    def _check(self, sender: str, num_bytes: int) -> None:
        in_use = list(self._in_use.values())
        if sum(each.num_bytes for each in in_use if each.sender == sender) + num_bytes > MAX_SENDER_BYTES:
            rule = f"the grammars of one sender that are in use may take {MAX_SENDER_BYTES >> 20} MiB"
            raise TooManyWaiting(rule)
        total_bytes = sum(each.num_bytes for each in in_use)
        if total_bytes + num_bytes > MAX_BYTES:
            raise Overloaded(f"the grammars in use take {total_bytes >> 20} MiB")
