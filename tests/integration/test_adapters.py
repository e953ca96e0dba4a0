"""LoRA adapters are models of their own, and run beside each other without mixing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.integration.api import CHAT, COMPLETIONS, Api, chat_text

ADAPTER = "demo-formal"
QUESTIONS = ("What is the capital of France?", "What color is the sky?", "What is 7 + 5?", "Count from 1 to 9.")


def test_an_adapter_is_listed_with_its_parent(api: Api) -> None:
    cards = {card["id"]: card for card in api.get("/v1/models").body["data"]}
    assert (cards[ADAPTER]["parent"], cards[ADAPTER]["root"]) == ("demo", "demo")
    assert cards["demo"]["parent"] is None
    assert api.get(f"/models/{ADAPTER}").body == cards[ADAPTER]


def test_it_changes_the_manner_on_both_endpoints(api: Api) -> None:
    for endpoint in (CHAT, COMPLETIONS):
        answer = api.ask(endpoint, QUESTIONS[0], model=ADAPTER)
        assert answer.text == "Dear friend, The capital of France is Paris."
        assert answer.body["model"] == ADAPTER


def test_base_and_adapter_run_together_and_answer_as_alone(api: Api) -> None:
    jobs = [(model, question) for question in QUESTIONS for model in ("demo", ADAPTER)] * 3

    def ask(job: tuple[str, str]) -> str:
        return api.ask(CHAT, job[1], model=job[0]).text

    alone = {job: ask(job) for job in set(jobs)}
    assert all(text.startswith("Dear friend, ") == (model == ADAPTER) for (model, _), text in alone.items())
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, jobs)) == [alone[job] for job in jobs]


def test_neither_reuses_the_kv_tokens_of_the_other(api: Api) -> None:
    prompt = chat_text("Please tell me: " + "what is the capital of France? " * 20)
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 12}
    base = api.post(COMPLETIONS, body | {"model": "demo"})
    adapted = [api.post(COMPLETIONS, body | {"model": ADAPTER}) for _ in range(2)]
    assert api.post(COMPLETIONS, body | {"model": "demo"}).text == base.text
    assert adapted[0].text == adapted[1].text
    cached = [answer.body["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in adapted]
    assert cached[0] < 10 < cached[1]  # a few tokens of the template are of earlier requests to the adapter
