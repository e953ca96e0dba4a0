import ast
import random

import pytest

from build_engines.demo.conversation import Document
from build_engines.demo.encoding import DocumentEncoder
from build_engines.demo.functions import FUNCTIONS, draw_completion, draw_function, draw_gap


@pytest.mark.parametrize("seed", range(50))
def test_functions_are_python(seed):
    rng = random.Random(seed)
    ast.parse(draw_function(rng))
    gap = draw_gap(rng)
    ast.parse(gap.prefix + gap.middle + gap.suffix)
    ast.parse("".join(draw_completion(rng)))


def test_a_name_belongs_to_one_function_or_to_one_number_of_arguments():
    names = [(name, len(function.arguments[0])) for function in FUNCTIONS for name in function.names]
    doubles = {name for name, _ in names if [other for other, _ in names].count(name) > 1}
    assert not doubles, doubles


def test_a_gap_lies_in_the_body_and_has_text_on_both_sides():
    rng = random.Random(7)
    for _ in range(300):
        gap = draw_gap(rng)
        assert "def " in gap.prefix
        assert gap.middle.strip()
        assert gap.suffix


def test_only_the_middle_and_the_end_are_learned():
    encoder = DocumentEncoder()
    document = Document("fill in the middle", prompt="def f(a):\n", completion="    return a", suffix="\n")
    encoded = encoder.encode(document)
    special = [id_ for id_ in encoded.token_ids if id_ >= 3054]
    assert special == [3057, 3058, 3059, 3054]
    learned = [id_ for id_, is_learned in zip(encoded.token_ids, encoded.is_learned, strict=True) if is_learned]
    assert learned == [*encoder.plain("    return a"), 3054]
