"""Python's retrieval frameworks: each embeds documents, finds the one that answers a question, and prints the answer.

python retrieval_clients.py CLIENT URL MODEL EMBEDDER QUESTION DOCUMENT..., in an environment with `requirements.txt`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

CLIENT, URL, MODEL, EMBEDDER, QUESTION, *DOCUMENTS = sys.argv[1:]
NUM_DIMENSIONS = 384  # of all-MiniLM-L6-v2


def prompt_with(document: str) -> str:
    return f"Answer with the document.\n\nDocument: {document}\n\nQuestion: {QUESTION}"


def langchain() -> str:
    from langchain_core.vectorstores import InMemoryVectorStore
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    embeddings = OpenAIEmbeddings(model=EMBEDDER, check_embedding_ctx_length=False)
    [found] = (
        InMemoryVectorStore.from_texts(DOCUMENTS, embeddings).as_retriever(search_kwargs={"k": 1}).invoke(QUESTION)
    )
    return ChatOpenAI(model=MODEL).invoke(prompt_with(found.page_content)).text


def langchain_token_ids() -> str:
    """Return the error of LangChain's default: token ids of OpenAI's tokenizer."""
    import litellm
    from langchain_openai import OpenAIEmbeddings
    from openai import BadRequestError

    # LangChain downloads this tokenizer. LiteLLM has it in a folder that tiktoken takes for its cache.
    os.environ["TIKTOKEN_CACHE_DIR"] = f"{os.path.dirname(litellm.__file__)}/litellm_core_utils/tokenizers"
    try:
        OpenAIEmbeddings(model=EMBEDDER).embed_documents(DOCUMENTS)
    except BadRequestError as exc:
        return exc.message
    raise AssertionError("the token ids are accepted")


def llama_index() -> str:
    from llama_index.core import Document, VectorStoreIndex
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    embeddings = OpenAILikeEmbedding(model_name=EMBEDDER, api_base=f"{URL}/v1", api_key="none")
    index = VectorStoreIndex.from_documents([Document(text=text) for text in DOCUMENTS], embed_model=embeddings)
    [found] = index.as_retriever(similarity_top_k=1).retrieve(QUESTION)
    return _answer(found.text)


def haystack() -> str:
    from haystack import Document
    from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.components.retrievers import InMemoryEmbeddingRetriever
    from haystack.dataclasses import ChatMessage
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    store = InMemoryDocumentStore()
    documents = [Document(content=text) for text in DOCUMENTS]
    store.write_documents(OpenAIDocumentEmbedder(model=EMBEDDER).run(documents)["documents"])
    embedding = OpenAITextEmbedder(model=EMBEDDER).run(QUESTION)["embedding"]
    [found] = InMemoryEmbeddingRetriever(store, top_k=1).run(embedding)["documents"]
    [reply] = OpenAIChatGenerator(model=MODEL).run([ChatMessage.from_user(prompt_with(found.content))])["replies"]
    return reply.text


def mem0() -> str:
    from mem0 import Memory

    memory = Memory.from_config(
        {
            "embedder": {"provider": "openai", "config": {"model": EMBEDDER, "embedding_dims": NUM_DIMENSIONS}},
            "llm": {"provider": "openai", "config": {"model": MODEL}},
            "vector_store": {
                "provider": "qdrant",
                "config": {"path": os.path.abspath("qdrant"), "embedding_model_dims": NUM_DIMENSIONS},
            },
        }
    )
    for text in DOCUMENTS:
        memory.add(text, user_id="cook", infer=False)
    [found] = memory.search(QUESTION, filters={"user_id": "cook"}, top_k=1)["results"]
    return _answer(found["memory"])


def pydantic_ai() -> str:
    from pydantic_ai import Embedder

    embedder = Embedder(f"openai:{EMBEDDER}")
    documents = embedder.embed_documents_sync(DOCUMENTS).embeddings
    return _answer(_nearest(embedder.embed_query_sync(QUESTION).embeddings[0], documents))


def litellm() -> str:
    import litellm

    data = litellm.embedding(model=f"openai/{EMBEDDER}", input=[QUESTION, *DOCUMENTS]).data
    question, *documents = (each["embedding"] for each in data)
    return _answer(_nearest(question, documents))


def litellm_cohere() -> str:
    return _litellm_rerank("cohere")


def litellm_jina() -> str:
    return _litellm_rerank("jina_ai")


def _litellm_rerank(provider: str) -> str:
    """Return the numbers of the documents, the best one first."""
    import litellm

    model = f"{provider}/{EMBEDDER}"
    answer = litellm.rerank(model=model, query=QUESTION, documents=DOCUMENTS, api_base=URL, api_key="none")
    return json.dumps([each["index"] for each in answer.results])


def _nearest(question: Any, documents: Any) -> str:
    import numpy as np

    return DOCUMENTS[int((np.array(documents) @ np.array(question)).argmax())]


def _answer(document: str) -> str:
    from openai import OpenAI

    messages: list[Any] = [{"role": "user", "content": prompt_with(document)}]
    return OpenAI().chat.completions.create(model=MODEL, messages=messages).choices[0].message.content or ""


os.environ |= {"OPENAI_BASE_URL": f"{URL}/v1", "OPENAI_API_KEY": "none", "MEM0_TELEMETRY": "False"}
sys.stdout.write(globals()[CLIENT]())
