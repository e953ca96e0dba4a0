"""The proof that a message comes from another stage of the same model."""

from __future__ import annotations

import pytest

from model_repository.contract.signature import SIGNATURE_BYTES, Signature
from model_repository.contract.tensors import KEY_VARIABLE
from model_repository.errors import EngineFailed, KeyRefused

KEY = "k" * 100


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)


@pytest.mark.parametrize("message", [b"", b"message"])
def test_a_signed_message_is_believed(message: bytes) -> None:
    signed = Signature("demo").sign(message)
    assert Signature("demo").verified(signed, "a") == message
    assert signed[SIGNATURE_BYTES:] == message


@pytest.mark.parametrize(
    "forge",
    [
        lambda message, signed: message,
        lambda message, signed: bytes(SIGNATURE_BYTES) + message,
        lambda message, signed: signed + b"x",
        lambda message, signed: signed[:-1],
        lambda message, signed: signed[: SIGNATURE_BYTES - 1],
        lambda message, signed: b"",
        lambda message, signed: Signature("other").sign(message),
    ],
)
def test_any_other_message_is_refused(forge: object) -> None:
    assert callable(forge)
    signature = Signature("demo")
    with pytest.raises(KeyRefused) as caught:
        signature.verified(forge(b"message", signature.sign(b"message")), "engine_requests")
    assert caught.value.field == "engine_requests"


def test_another_key_signs_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    signed = Signature("demo").sign(b"message")
    monkeypatch.setenv(KEY_VARIABLE, KEY[:-1])
    with pytest.raises(KeyRefused):
        Signature("demo").verified(signed, "a")


def test_a_stage_without_the_key_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty key would be known to everybody."""
    for key in ("", None):
        monkeypatch.delenv(KEY_VARIABLE) if key is None else monkeypatch.setenv(KEY_VARIABLE, key)
        with pytest.raises(EngineFailed, match="CONCH_TRITON_KEY is not set"):
            Signature("demo")
