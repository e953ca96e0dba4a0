"""The bodies of OpenAI's Conversations API.

Source: https://platform.openai.com/docs/api-reference/conversations
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from frontend.protocol.body import Body
from frontend.protocol.responses import Items

MAX_NEW_ITEMS = 20

type ObjectMetadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]


class ConversationRequest(Body):
    """The body of POST /v1/conversations."""

    metadata: ObjectMetadata | None = None
    # OpenAI's Agents SDK sends an empty list.
    items: Annotated[
        Items | None, Field(max_length=MAX_NEW_ITEMS), BeforeValidator(lambda items: None if items == [] else items)
    ] = None


class MetadataRequest(Body):
    """The body of POST /v1/conversations/{id}."""

    metadata: ObjectMetadata


class NewItemsRequest(Body):
    """The body of POST /v1/conversations/{id}/items."""

    items: Annotated[Items, Field(min_length=1, max_length=MAX_NEW_ITEMS)]
