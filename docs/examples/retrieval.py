"""Find the documents that are nearest to a question, with OpenAI's client and a model that embeds.

.venv/bin/python docs/examples/retrieval.py "Which animals live in Antarctica?"
.venv/bin/python docs/examples/retrieval.py --model nomic-embed-text:137m --prefix "search_query: " \
    --document-prefix "search_document: " "Which animals live in Antarctica?"
"""

from __future__ import annotations

import argparse

import numpy as np
from openai import OpenAI

DOCUMENTS = [
    "Penguins swim very well, but cannot fly.",
    "A mortgage is a loan that is secured by a house.",
    "The moon causes the tides of the oceans.",
    "Sourdough bread rises by wild yeast.",
]


def main() -> None:
    """Print the documents, the nearest one first, each with its similarity."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="all-minilm:22m")
    parser.add_argument("--prefix", default="", help="before the question, as the model wants it")
    parser.add_argument("--document-prefix", default="", help="before each document")
    parser.add_argument("question")
    options = parser.parse_args()
    texts = [options.document_prefix + each for each in DOCUMENTS] + [options.prefix + options.question]
    with OpenAI(base_url=options.url, api_key="none") as client:
        answer = client.embeddings.create(model=options.model, input=texts)
    vectors = np.array([each.embedding for each in answer.data])
    similarities = vectors[:-1] @ vectors[-1]  # of vectors of length 1
    for index in np.argsort(-similarities):
        print(f"{similarities[index]:.3f}  {DOCUMENTS[index]}")


if __name__ == "__main__":
    main()
