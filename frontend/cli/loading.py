"""The commands `ps`, `load` and `unload`: what running servers hold, and orders to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TextIO

from frontend.cli.chat_client import ChatClient, ChatFailed, chosen
from model_repository.system.running_servers import RunningServer

# A small request for each task.
_REQUESTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "generate": ("/v1/completions", {"prompt": "Hello", "max_tokens": 1, "stream": True}),
    "embed": ("/v1/embeddings", {"input": "Hello"}),
    "score": ("/v1/rerank", {"query": "Hello", "documents": ["Hello"]}),
}
_POLL_S = 0.2
_LEAVE_S = 10.0  # time for a model without other requests

type Card = Mapping[str, Any]


def print_servers(servers: Iterable[RunningServer], key: str, out: TextIO) -> None:
    """Print a line for each server, and one for each of its models, if it tells."""
    for server in servers:
        process = str(server.pid) if server.is_here else "another container"
        print(f"{process:>7}  {server.url:28}  {', '.join(server.models)}  {server.folder}", file=out)
        try:
            cards = ChatClient(server.url, key, is_verified=False, timeout_s=2.0).cards()
        except ChatFailed:  # it starts, hangs, or wants another key
            continue
        for card in cards:
            if card["id"] == card["root"]:
                print("         " + "  ".join(_columns(card)).rstrip(), file=out)


def load(client: ChatClient, model: str, err: TextIO) -> None:
    """Have a server load a model, and return when it is loaded; meanwhile print why it waits.

    Raises:
        ChatFailed: the server has no such model, or does not load it.
    """
    path, body = _REQUESTS[_card(client, model)["task"]]
    for news in client.news(path, {**body, "model": model}):
        print(news, file=err, flush=True)


def unload(client: ChatClient, model: str, sleep: Callable[[float], None] = time.sleep) -> None:
    """Unload an unused model at a server; return when it is unloaded.

    Raises:
        ChatFailed: the server has no such model, the key may not decide it, or others use the model.
    """
    card = _card(client, model)
    if card["status"]["value"] not in ("loaded", "loading"):
        return
    path, body = _REQUESTS[card["task"]]
    list(client.news(path, {**body, "model": model, "keep_alive": 0}))
    if "keep_alive" in client.ignored:
        raise ChatFailed(f"{model}: the API key may not unload models: its role is not admin")
    for _ in range(round(_LEAVE_S / _POLL_S)):
        if _card(client, model)["status"]["value"] not in ("loaded", "unloading"):
            return
        sleep(_POLL_S)
    raise ChatFailed(f"{model}: it is pinned, or others use it; then it leaves after their last request")


def _card(client: ChatClient, model: str) -> Card:
    cards = {card["id"]: card for card in client.cards()}
    return cards[chosen(model, cards)]


def _columns(card: Card) -> Iterator[str]:
    status = card["status"]
    share = f" {status['progress']:.0%}" if "progress" in status else ""
    yield f"{card['id']:24}"
    yield f"{status['value'] + share:13}"
    on_devices = (f" + {size / 1e9:.1f} GB on {name}" for name, size in status.get("device_bytes", {}).items())
    yield f"{status.get('memory_bytes', 0) / 1e9:6.1f} GB{''.join(on_devices)}"
    yield f"{card['max_model_len']:>9,} tokens"
    yield f"idle for {_shown(status['idle_s'])}" if status["value"] == "loaded" and "idle_s" in status else ""
    yield f"leaves in {_shown(status['expires_s'])}" if "expires_s" in status else status.get("cause", "")


def _shown(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
