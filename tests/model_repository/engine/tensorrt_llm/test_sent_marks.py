"""The prompts that TensorRT-LLM may keep."""

from __future__ import annotations

from model_repository.engine.tensorrt_llm.sent_marks import SentMarks


def test_the_last_prompts_count_that_fit_the_cache_together() -> None:
    sent = SentMarks()
    for marks, num_tokens in ((b"a", 40), (b"b", 30), (b"", 90), (b"a", 50), (b"c", 20)):
        sent.add(marks, num_tokens, 100)
    assert sent.newest_first() == [b"c", b"a", b"b"]
    sent.add(b"cc", 25, 100)  # the next turn
    assert sent.newest_first() == [b"cc", b"a"]
    sent.add(b"d", 31, 100)
    assert sent.newest_first() == [b"d", b"cc"]
    sent.add(b"e", 101, 100)
    assert sent.newest_first() == []
