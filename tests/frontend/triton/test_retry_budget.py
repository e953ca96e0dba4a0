from __future__ import annotations

from frontend.triton.pool import MAX_SAVED, RetryBudget


def num_retries(budget: RetryBudget, num_requests: int) -> int:
    """Return how many of so many failing requests are sent again."""
    num_taken = 0
    for _ in range(num_requests):
        budget.count_request()
        num_taken += budget.try_spend()
    return num_taken


def test_an_outage_adds_no_more_than_the_share_and_what_was_saved() -> None:
    assert num_retries(RetryBudget(0.1), 1000) in (100 + int(MAX_SAVED) - 1, 100 + int(MAX_SAVED))


def test_a_few_requests_are_retried_at_once() -> None:
    assert num_retries(RetryBudget(0.1), 3) == 3


def test_no_share_is_no_retry() -> None:
    assert num_retries(RetryBudget(0.0), 100) == 0
