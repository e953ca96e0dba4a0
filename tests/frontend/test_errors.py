from __future__ import annotations

from frontend import errors
from frontend.errors import retry_headers, shown


def test_the_envelope_has_openais_four_fields_and_detail() -> None:
    error = errors.InvalidRequest("stop: too many", param="stop")
    assert error.envelope() == {
        "error": {
            "message": "stop: too many",
            "type": "invalid_request_error",
            "param": "stop",
            "code": "invalid_value",
        },
        "detail": "stop: too many",
    }


def test_a_value_is_shown_as_json_spells_it_and_short() -> None:
    assert [shown(None), shown(True), shown("5"), shown(5)] == ["null", "true", "'5'", "5"]
    assert len(shown("x" * 10_000)) < 100
    assert len(shown([["x" * 1000] * 1000] * 1000)) < 2000


def test_the_time_to_retry_has_both_units_and_is_rounded_up() -> None:
    assert retry_headers(1.2001) == {"Retry-After": "2", "retry-after-ms": "1201"}
    assert retry_headers(0) == {"Retry-After": "1", "retry-after-ms": "1"}
    assert retry_headers(None) == {"x-should-retry": "false"}
