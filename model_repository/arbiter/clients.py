"""The frontends that ask an arbiter: their requests as its events, and its actions as their answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from model_repository.arbiter.arbiter import Arbiter
from model_repository.arbiter.types import Action, Grant, LoadFailed, ModelTooLarge, Recall, Refuse
from model_repository.contract.arbiter import HELD_S, ArbiterAnswer, ArbiterRequest, GivenLease, HeldLease, LoadRefusal

GONE_S = 3.0  # a client without a request for this time has ended, or hangs
_EARLIER = "earlier"  # stands for the clients of an arbiter that has died, until they have had the time to ask this one

type Reply = Callable[[ArbiterAnswer], None]
type Fill = Callable[[ArbiterAnswer, str], ArbiterAnswer]  # adds what every client gets, for the catalog that it has


@dataclass(slots=True)
class _Client:
    leases: dict[str, GivenLease] = field(default_factory=dict)  # by model id
    held: dict[str, HeldLease] = field(default_factory=dict)  # as the client told last
    wishes: set[str] = field(default_factory=set)
    refusals: dict[str, LoadRefusal] = field(default_factory=dict)  # that the client has not heard
    request: ArbiterRequest = field(default_factory=ArbiterRequest)  # the last one
    reply: Reply | None = None  # answers it; None: it has its answer
    asked_s: float = 0.0  # when it came
    has_news: bool = False


class Clients:
    """Answers each request when there is news for its client, or after HELD_S.

    Args:
        arbiter: of the models.
        clock: monotonic seconds.
    """

    def __init__(self, arbiter: Arbiter, clock: Callable[[], float]) -> None:
        self._arbiter = arbiter
        self._clock = clock
        self._clients = {_EARLIER: _Client(asked_s=clock())}

    def ask(self, request: ArbiterRequest, reply: Reply, loaded: list[str]) -> list[Action]:
        """Take a client's request, which is answered by `answer`; return the actions that follow, for `tell` too.

        Args:
            loaded: ids of the loaded models; the client gets the leases of those that it may use.
        """
        client = self._clients.setdefault(request.client, _Client())
        if request.serial <= client.request.serial:
            reply(ArbiterAnswer())  # it was overtaken: its client does not read it
            return []
        if client.reply is not None:
            client.reply(ArbiterAnswer())
        client.has_news |= request.catalog != client.request.catalog or not client.request.client
        client.request, client.reply, client.asked_s = request, reply, self._clock()
        name, actions = request.client, list[Action]()
        for model, lease in list(client.leases.items()):
            held = request.leases.get(model)
            is_wished = model in request.wishes and not lease.is_recalled
            if is_wished or (held is not None and held.number != lease.number):
                client.has_news = True  # it has not heard of the lease
            elif held is None:
                del client.leases[model], client.held[model]
                actions += self._arbiter.release(name, model, lease.number)
            else:
                if _use_of(held) != _use_of(client.held[model]):
                    keep_alive_s = math.inf if (held.keep_alive_s or 0) < 0 else held.keep_alive_s
                    actions += self._arbiter.used(name, model, is_busy=held.is_busy, keep_alive_s=keep_alive_s)
                client.held[model] = held
        for model in client.wishes.difference(request.wishes):
            client.wishes.discard(model)
            actions += self._arbiter.unwant(name, model)
        for model, wish in request.wishes.items():
            if model in client.refusals or (model in client.leases and not client.leases[model].is_recalled):
                continue  # it has not heard of that
            if self._arbiter.knows(model):
                client.wishes.add(model)
                actions += self._arbiter.want(name, model, wish.sender, wish.waited_s)
            else:
                client.refusals[model] = LoadRefusal("load_failed", cause="it is not in the repository")
                client.has_news = True
        for model in loaded:
            if model not in client.leases and model not in client.wishes:
                actions += self._arbiter.lend(name, model)
        return actions

    def tell(self, action: Grant | Recall | Refuse) -> None:
        """Note an action of the arbiter for a client."""
        client = self._clients.get(action.client)
        if client is None:
            return
        client.has_news = True
        match action:
            case Grant(model=model, lease=number):
                client.leases[model] = GivenLease(number)
                client.held[model] = HeldLease(number, is_busy=action.is_busy)
                client.wishes.discard(model)
            case Recall(model=model, lease=number):
                if model in client.leases and client.leases[model].number == number:
                    client.leases[model] = GivenLease(number, is_recalled=True)
            case Refuse(model=model, error=error):
                client.wishes.discard(model)
                client.refusals[model] = refusal_of(error)

    def adopt(self, model: str) -> list[Action]:
        """Keep a model that was loaded before the arbiter's start until its clients tell of their leases."""
        if _EARLIER not in self._clients:
            return []
        return [*self._arbiter.lend(_EARLIER, model), *self._arbiter.used(_EARLIER, model, is_busy=True)]

    def forget(self, model: str) -> None:
        """Forget the leases of a model that was lost."""
        for client in self._clients.values():
            if client.leases.pop(model, None) is not None:
                del client.held[model]
                client.has_news = True

    def is_repairing(self, model: str) -> bool:
        """Whether a client reloads a stage of the model."""
        return any(model in each.held and each.held[model].is_repairing for each in self._clients.values())

    def answer(self, fill: Fill, *, is_news: bool) -> None:
        """Answer the clients for which there is news, or which have waited for long enough.

        Args:
            is_news: there is news for all.
        """
        for client in self._clients.values():
            client.has_news |= is_news  # also if the client has no open request now
            is_due = client.has_news or self._clock() - client.asked_s >= HELD_S
            if client.reply is not None and is_due:
                reply, client.reply = client.reply, None
                answer = ArbiterAnswer(leases=dict(client.leases), refusals=dict(client.refusals))
                reply(fill(answer, client.request.catalog))
                client.refusals.clear()
                client.has_news, client.asked_s = False, self._clock()

    def end_gone(self) -> list[Action]:
        """Forget the clients that have not asked for GONE_S; return the actions that follow."""
        gone = [
            name
            for name, client in self._clients.items()
            if client.reply is None and self._clock() - client.asked_s >= GONE_S
        ]
        actions = []
        for name in gone:
            del self._clients[name]
            actions += self._arbiter.gone(name)
        return actions

    @property
    def due_s(self) -> float:
        """Time of the next `answer` or `end_gone`; inf: there are no clients."""
        times = (each.asked_s + (GONE_S if each.reply is None else HELD_S) for each in self._clients.values())
        return min(times, default=math.inf)


def _use_of(lease: HeldLease) -> tuple[bool, int, float | None]:
    return lease.is_busy, lease.num_begun, lease.keep_alive_s


def refusal_of(error: ModelTooLarge | LoadFailed) -> LoadRefusal:
    """Return the error of a refused load as clients get it."""
    if isinstance(error, ModelTooLarge):
        return LoadRefusal(error.code, error.needed_bytes, error.total_bytes, error.pinned, device=error.kind)
    return LoadRefusal(error.code, cause=error.cause, retry_after_s=error.retry_after_s)
