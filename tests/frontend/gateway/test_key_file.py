"""Keys, the content of a key file, and how it is written."""

from __future__ import annotations

import base64
import hashlib
import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from frontend.gateway.key_file import (
    PREFIX,
    Key,
    KeyFileError,
    dump_keys,
    editing,
    hash_of,
    id_of,
    new_key,
    parse_keys,
    read_keys,
)

SHA = "a" * 64
FULL = {
    "name": "alice",
    "sha256": SHA,
    "role": "admin",
    "models": ["demo", "my-org/*"],
    "organizations": ["org-1"],
    "projects": ["p-1"],
    "limits": {"requests_per_minute": 60, "tokens_per_minute": 1000, "max_concurrent": 2, "max_priority": 3},
    "created_at": "2026-01-01T00:00:00Z",
    "expires_at": "2027-01-01T00:00:00+02:00",
}


def parsed(*entries: Any) -> tuple[Key, ...]:
    return parse_keys(json.dumps({"keys": entries}).encode(), Path("keys.json"))


def test_a_key_is_256_random_bits():
    keys = [new_key() for _ in range(100)]
    parts = [key.removeprefix(PREFIX) for key in keys]
    assert all(len(base64.urlsafe_b64decode(f"{part}=")) == 32 for part in parts)
    assert len({part[:8] for part in parts}) == len({part[-8:] for part in parts}) == len(keys)


def test_a_key_file_keeps_the_sha256_and_logs_its_beginning():
    key = new_key()
    kept = hash_of(key)
    assert kept == hashlib.sha256(key.encode()).hexdigest()
    assert kept.startswith(id_of(kept)) and len(id_of(kept)) == 16


def test_every_field_survives_being_written_and_read():
    keys = parsed(FULL, {"name": "bob", "sha256": "b" * 64})
    assert parse_keys(dump_keys(keys), Path("keys.json")) == keys
    assert keys[0].limits.tokens_per_minute == 1000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"role": "root"}, "Invalid enum value 'root' - at `$.keys[0].role`"),
        ({"limits": {"max_concurrent": 0}}, "Expected `int` >= 1 - at `$.keys[0].limits.max_concurrent`"),
        ({"limits": {"rpm": 1}}, "Object contains unknown field `rpm` - at `$.keys[0].limits`"),
        ({"models": "demo"}, "Expected `array`, got `str` - at `$.keys[0].models`"),
        ({"models": ["a", " b"]}, "Expected `str` matching regex"),
        ({"expires_at": "2027-01-01T00:00:00"}, "Expected `datetime` with a timezone component - at `$.keys[0].exp"),
        ({"sha256": SHA.upper()}, "Expected `str` matching regex"),
        ({"sha256": f"{SHA}\n"}, "Expected `str` matching regex"),
        ({"name": ""}, "Expected `str` matching regex"),
    ],
)
def test_a_broken_rule_is_reported_with_file_place_and_rule(change: dict[str, Any], message: str):
    with pytest.raises(KeyFileError) as refused:
        parsed(FULL | change)
    assert str(refused.value).startswith(f"keys.json: {message}")
    assert f"`$.keys[0].{next(iter(change))}" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "keys.json: is not JSON in UTF-8 (line 1, column 1)"),
        (b"\xff", "keys.json: is not JSON in UTF-8"),
        (b'{"keys": [}', "keys.json: is not JSON in UTF-8 (line 1, column 11)"),
        (b"[" * 100_000, "keys.json: is not JSON in UTF-8"),
        (b"{}", "keys.json: Object missing required field `keys`"),
        (b'{"keys": [], "more": 1}', "keys.json: Object contains unknown field `more`"),
        (
            b'{"keys": [{"name": "a", "role": "user", "role": "admin"}]}',
            "keys.json: an object has the field 'role' twice",
        ),
    ],
)
def test_other_content_is_refused(content: bytes, message: str):
    with pytest.raises(KeyFileError) as refused:
        parse_keys(content, Path("keys.json"))
    assert str(refused.value).startswith(message)


def test_two_keys_of_one_name_or_one_hash_are_refused():
    with pytest.raises(KeyFileError, match="key 'alice': name: another key has the same"):
        parsed(FULL, FULL | {"sha256": "b" * 64})
    with pytest.raises(KeyFileError, match="key 'bob': sha256: another key has the same"):
        parsed(FULL, FULL | {"name": "bob"})


@pytest.mark.parametrize("field", ["name", "sha256", "models", "organizations", "role", "key", "expires_at"])
def test_a_key_in_the_wrong_place_does_not_appear_in_the_message(field: str):
    text = new_key()
    with pytest.raises(KeyFileError) as refused:
        parsed(FULL | {field: [f" {text}"] if field in ("models", "organizations") else f"{text} "})
    assert text not in str(refused.value)
    assert PREFIX not in str(refused.value)


def test_a_file_is_created_for_its_owner_and_replaced_whole(tmp_path: Path):
    path = tmp_path / "keys.json"
    with editing(path) as keys:
        keys.append(Key(name="a", sha256=hash_of("x")))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    with pytest.raises(KeyFileError), editing(path) as keys:
        keys.append(keys[0])
    assert path.read_bytes() == before
    assert {each.name for each in tmp_path.iterdir()} == {"keys.json", ".keys.json.lock"}


def test_a_link_stays_a_link(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "keys.json")
    with editing(tmp_path / "link") as keys:
        keys.append(Key(name="a", sha256=hash_of("x")))
    assert (tmp_path / "link").is_symlink()
    assert [key.name for key in read_keys(tmp_path / "keys.json")] == ["a"]


def test_a_missing_folder_is_reported(tmp_path: Path):
    with pytest.raises(KeyFileError, match="cannot be written: No such file"), editing(tmp_path / "no" / "keys.json"):
        pass


def test_editors_at_the_same_time_lose_nothing(tmp_path: Path):
    path = tmp_path / "keys.json"
    command = [sys.executable, "-m", "frontend", "keys", "add", f"--file={path}", "--name"]
    editors = [
        subprocess.Popen([*command, f"k{number}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for number in range(4)
    ]
    assert [editor.wait(60) for editor in editors] == [0] * 4
    assert {key.name for key in read_keys(path)} == {"k0", "k1", "k2", "k3"}
