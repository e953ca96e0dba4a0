"""Refusals of structured outputs."""

import json
import time

import pytest

from model_repository.contract.request import OutputFormat, StructuredOutput
from model_repository.errors import InvalidRequest
from model_repository.structured_output.grammar import structured_output_to_grammar
from model_repository.structured_output.refusal import FIELD


def refusal(output_format: OutputFormat, content: str) -> InvalidRequest:
    start_s = time.process_time()
    with pytest.raises(InvalidRequest) as caught:
        structured_output_to_grammar(StructuredOutput(output_format, content))
    assert time.process_time() - start_s < 2, "a refusal must not take long"  # of computing: the machine may be busy
    assert caught.value.field == FIELD
    assert len(caught.value.text) < 500
    return caught.value


def schema_refusal(schema: object) -> InvalidRequest:
    return refusal(OutputFormat.JSON_SCHEMA, json.dumps(schema))
