"""The endpoints of the API, a row each. Routes, the OpenAPI document, the pages and the gateway read this table."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from aiohttp import web

from frontend.handlers import completions, conversations, messages, models, pages, responses, stored_chats, tokenization
from frontend.handlers.bodies import expect_later
from frontend.handlers.call import Call, answer_call
from frontend.handlers.encoders import encoding
from frontend.protocol import answers, response_objects
from frontend.protocol.body import Body, ModelBody
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.completion import CompletionRequest
from frontend.protocol.conversations import ConversationRequest, MetadataRequest, NewItemsRequest
from frontend.protocol.embeddings import EmbeddingRequest
from frontend.protocol.messages import CountTokensRequest, MessagesRequest
from frontend.protocol.responses import CompactRequest, InputTokensRequest, ResponsesRequest
from frontend.protocol.scores import ClassifyRequest, RerankRequest, ScoreRequest
from frontend.protocol.tokenization import DetokenizeRequest, TokenizeRequest
from frontend.translate.embeddings import EmbeddingReply, embedding_to_requests
from frontend.translate.scores import ClassifyReply, RerankReply, ScoreReply, pairs_to_requests, texts_to_requests
from model_repository.model_facts import Task


class Access(StrEnum):
    """Who may use an endpoint."""

    EVERYBODY = "everybody"
    KEY = "an API key"


class Cost(StrEnum):
    """What a request to an endpoint counts as in the limits of a key."""

    NOTHING = "nothing"
    REQUEST = "a request"
    TOKENS = "a request, with the tokens of its prompt and its completions"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Endpoint:
    """An endpoint: a question to the server, or a call of the model that its body names.

    Args:
        path: with the names of its parts in braces. A path for keys exists with and without /v1, below each root path.
        other_path: the same endpoint at another version.
        verb: the method; empty: POST with a body, else GET.
        ask: answers a question.
        call: answers a call.
        tasks: of the models that may be called; empty: any.
        answer: type of the answer; None: for people and health checks, not for clients.
        query: schemas of the query's fields.
        event: type of the events of a stream.
        has_names: each event has its type as its name, and the stream has no [DONE].
        error: type of the errors.
        example: a body, for the table of its fields.
    """

    path: str
    summary: str = ""
    other_path: str = ""
    access: Access = Access.KEY
    cost: Cost = Cost.NOTHING
    verb: str = ""
    ask: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
    call: Callable[[Call[Any]], Awaitable[web.StreamResponse]] | None = None
    tasks: Collection[Task] = ()
    body: type[Body] | None = None
    answer: Any = None
    query: Mapping[str, Any] = field(default_factory=dict)
    event: Any = None
    has_names: bool = False
    error: Any = answers.ErrorEnvelope
    example: Mapping[str, Any] = field(default_factory=dict)

    @property
    def method(self) -> str:
        return self.verb or ("GET" if self.body is None else "POST")

    @property
    def parts(self) -> list[str]:
        """The names of the path's parts."""
        return re.findall(r"{(\w+)}", self.path)

    @property
    def has_model(self) -> bool:
        """Whether it names a model, which may not exist."""
        return self.body is not None or bool(self.parts)

    def routes(self, root_paths: Iterable[str]) -> list[web.RouteDef]:
        """Return a route for each path of the endpoint."""
        path = self.path.replace("{id}", "{id:.+}")  # a model's id may have slashes
        paths = [path]
        if self.access is Access.KEY:
            short = path.removeprefix("/v1")
            paths = [f"{root}{version}{short}" for root in ("", *root_paths) for version in ("/v1", "")]
            paths += [f"{root}{self.other_path}" for root in ("", *root_paths) if self.other_path]
        if self.ask is None:
            return [web.post(each, self._answer_call, expect_handler=expect_later) for each in paths]
        if self.method == "GET":  # HEAD too
            return [web.get(each, self.ask) for each in paths]
        return [web.route(self.method, each, self.ask, expect_handler=expect_later) for each in paths]

    async def _answer_call(self, request: web.Request) -> web.StreamResponse:
        assert self.body is not None and issubclass(self.body, ModelBody) and self.call is not None
        return await answer_call(request, self.body, self.call, tasks=self.tasks, is_counted=self.cost is Cost.REQUEST)


_GENERATE, _SCORE = (Task.GENERATE,), (Task.SCORE,)

ENDPOINTS = (
    Endpoint(
        path="/v1/chat/completions",
        summary="Continue a chat",
        cost=Cost.TOKENS,
        call=completions.continue_chat,
        tasks=_GENERATE,
        body=ChatCompletionRequest,
        answer=answers.ChatCompletion,
        event=answers.ChatCompletionChunk,
        example={"model": "demo", "messages": [{"role": "user", "content": "Count from 1 to 9."}]},
    ),
    Endpoint(
        path="/v1/chat/completions", summary="The stored chats", ask=stored_chats.list_chats, answer=answers.ChatList
    ),
    Endpoint(
        path="/v1/chat/completions/{completion_id}/messages",
        summary="The messages of a stored chat",
        ask=stored_chats.list_messages,
        answer=answers.MessageList,
    ),
    Endpoint(
        path="/v1/chat/completions/{completion_id}",
        summary="A stored chat",
        ask=stored_chats.get_chat,
        answer=answers.StoredChat,
    ),
    Endpoint(
        path="/v1/chat/completions/{completion_id}",
        summary="Change the metadata of a stored chat",
        ask=stored_chats.update_chat,
        body=MetadataRequest,
        answer=answers.StoredChat,
    ),
    Endpoint(
        path="/v1/chat/completions/{completion_id}",
        verb="DELETE",
        summary="Delete a stored chat",
        ask=stored_chats.delete_chat,
        answer=response_objects.Deleted,
    ),
    Endpoint(
        path="/v1/completions",
        summary="Continue a text",
        cost=Cost.TOKENS,
        call=completions.continue_text,
        tasks=_GENERATE,
        body=CompletionRequest,
        answer=answers.TextCompletion,
        event=answers.TextCompletion,
        example={"model": "demo", "prompt": "The capital of France is"},
    ),
    Endpoint(
        path="/v1/messages",
        summary="Continue a chat in Anthropic's form",
        cost=Cost.TOKENS,
        call=messages.create_message,
        tasks=_GENERATE,
        body=MessagesRequest,
        answer=answers.Message,
        event=answers.MessageEvent,
        has_names=True,
        error=answers.MessageError,
    ),
    Endpoint(
        path="/v1/messages/count_tokens",
        summary="The number of tokens of a prompt in Anthropic's form",
        cost=Cost.REQUEST,
        call=messages.count_tokens,
        tasks=_GENERATE,
        body=CountTokensRequest,
        answer=answers.MessageTokens,
        error=answers.MessageError,
    ),
    Endpoint(
        path="/v1/responses",
        summary="Continue a conversation of items",
        cost=Cost.TOKENS,
        call=responses.create_response,
        tasks=_GENERATE,
        body=ResponsesRequest,
        answer=response_objects.Response,
        event=response_objects.ResponseStreamEvent,
        has_names=True,
    ),
    Endpoint(
        path="/v1/responses/input_tokens",
        summary="The number of tokens of a prompt of items",
        cost=Cost.REQUEST,
        call=responses.count_input_tokens,
        tasks=_GENERATE,
        body=InputTokensRequest,
        answer=response_objects.InputTokens,
    ),
    Endpoint(
        path="/v1/responses/compact",
        summary="A conversation of items in short",
        cost=Cost.TOKENS,
        call=responses.compact,
        tasks=_GENERATE,
        body=CompactRequest,
        answer=response_objects.Compaction,
    ),
    Endpoint(
        path="/v1/responses/{response_id}/input_items",
        summary="The input of a stored answer",
        ask=responses.list_input_items,
        answer=response_objects.ItemList,
    ),
    Endpoint(
        path="/v1/responses/{response_id}/cancel",
        verb="POST",
        summary="Stop an answer in the background",
        ask=responses.cancel_response,
        answer=response_objects.Response,
    ),
    Endpoint(
        path="/v1/responses/{response_id}",
        summary="A stored answer, or the events of one with `background: true`",
        ask=responses.get_response,
        query={"stream": {"type": "boolean"}, "starting_after": {"type": "integer", "minimum": 0}},
        answer=response_objects.Response,
        event=response_objects.ResponseStreamEvent,
        has_names=True,
    ),
    Endpoint(
        path="/v1/responses/{response_id}",
        verb="DELETE",
        summary="Delete a stored answer",
        ask=responses.delete_response,
        answer=response_objects.Deleted,
    ),
    Endpoint(
        path="/v1/conversations",
        summary="Store a conversation",
        ask=conversations.create_conversation,
        body=ConversationRequest,
        answer=response_objects.Conversation,
    ),
    Endpoint(
        path="/v1/conversations/{conversation_id}/items/{item_id}",
        summary="An item of a stored conversation",
        ask=conversations.get_item,
        answer=response_objects.StoredItem,
    ),
    Endpoint(
        path="/v1/conversations/{conversation_id}/items/{item_id}",
        verb="DELETE",
        summary="Delete an item of a stored conversation",
        ask=conversations.delete_item,
        answer=response_objects.Conversation,
    ),
    Endpoint(
        path="/v1/conversations/{conversation_id}/items",
        summary="The items of a stored conversation",
        ask=conversations.list_items,
        answer=response_objects.ItemList,
    ),
    Endpoint(
        path="/v1/conversations/{conversation_id}/items",
        summary="Add items to a stored conversation",
        ask=conversations.add_items,
        body=NewItemsRequest,
        answer=response_objects.ItemList,
    ),
    Endpoint(
        path="/v1/conversations/{conversation_id}",
        summary="A stored conversation",
        ask=conversations.get_conversation,
        answer=response_objects.Conversation,
    ),
    Endpoint(
        path="/v1/conversations/{conversation_id}",
        summary="Change the metadata of a stored conversation",
        ask=conversations.update_conversation,
        body=MetadataRequest,
        answer=response_objects.Conversation,
    ),
    Endpoint(
        path="/v1/conversations/{conversation_id}",
        verb="DELETE",
        summary="Delete a stored conversation",
        ask=conversations.delete_conversation,
        answer=response_objects.Deleted,
    ),
    Endpoint(
        path="/v1/embeddings",
        summary="Texts to vectors",
        cost=Cost.TOKENS,
        call=encoding(embedding_to_requests, EmbeddingReply),
        tasks=(Task.EMBED,),
        body=EmbeddingRequest,
        answer=answers.EmbeddingList,
        example={"model": "embedder", "input": "The capital of France is Paris."},
    ),
    Endpoint(
        path="/v1/rerank",
        other_path="/v2/rerank",
        summary="Documents by their relevance for a query",
        cost=Cost.TOKENS,
        call=encoding(pairs_to_requests, RerankReply),
        tasks=_SCORE,
        body=RerankRequest,
        answer=answers.Ranking,
        example={"model": "reranker", "query": "Where is Paris?", "documents": ["In France.", "An apple."]},
    ),
    Endpoint(
        path="/v1/score",
        summary="Scores of pairs of texts",
        cost=Cost.TOKENS,
        call=encoding(pairs_to_requests, ScoreReply),
        tasks=_SCORE,
        body=ScoreRequest,
        answer=answers.Scores,
        example={"model": "reranker", "text_1": "Where is Paris?", "text_2": ["In France.", "An apple."]},
    ),
    Endpoint(
        path="/v1/classify",
        summary="Labels of texts",
        cost=Cost.TOKENS,
        call=encoding(texts_to_requests, ClassifyReply),
        tasks=_SCORE,
        body=ClassifyRequest,
        answer=answers.Classifications,
        example={"model": "classifier", "input": "This was fun."},
    ),
    Endpoint(path="/v1/models", summary="List the models", ask=models.list_models, answer=answers.AnyModelList),
    Endpoint(
        path="/v1/models/{id}", summary="One model, alias or adapter", ask=models.get_model, answer=answers.AnyModel
    ),
    Endpoint(
        path="/tokenize",
        summary="Text or messages to token ids",
        cost=Cost.REQUEST,
        call=tokenization.tokenize,
        body=TokenizeRequest,
        answer=answers.Tokenization,
    ),
    Endpoint(
        path="/detokenize",
        summary="Token ids to text",
        cost=Cost.REQUEST,
        call=tokenization.detokenize,
        body=DetokenizeRequest,
        answer=answers.Detokenization,
    ),
    Endpoint(path="/version", summary="The server's version", ask=models.version, answer=answers.Version),
    Endpoint(path="/", access=Access.EVERYBODY, ask=pages.playground),  # Claude Code asks for it
    Endpoint(path="/docs", access=Access.EVERYBODY, ask=pages.docs),
    Endpoint(path="/pages/{name}", access=Access.EVERYBODY, ask=pages.part),
    Endpoint(path="/health", access=Access.EVERYBODY, ask=models.health_ready),  # vLLM's path
    Endpoint(path="/health/live", access=Access.EVERYBODY, ask=models.health_live),
    Endpoint(path="/health/ready", access=Access.EVERYBODY, ask=models.health_ready),
)
