"""The API keys in force, also after the file changes."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from frontend.errors import AuthenticationFailed
from frontend.gateway.key_file import Key, KeyFileError, dump_keys, hash_of, id_of, new_key
from frontend.gateway.key_ring import KeyRing

NOW = datetime(2026, 11, 22, tzinfo=UTC)
ALICE, BOB = new_key(), new_key()


def written(path: Path, **keys: str) -> Path:
    path.write_bytes(dump_keys([Key(name=name, sha256=hash_of(text)) for name, text in keys.items()]))
    return path


def names(ring: KeyRing, *texts: str) -> list[str]:
    """Return the names of the keys, a dash for one that is refused."""
    found = []
    for text in texts:
        try:
            found.append(ring.authenticate(text).name)
        except AuthenticationFailed:
            found.append("-")
    return found


def test_only_the_keys_of_the_file_are_accepted(tmp_path: Path) -> None:
    ring = KeyRing(written(tmp_path / "k", alice=ALICE))
    near = [ALICE[:-1], ALICE + "x", ALICE.lower(), "", hash_of(ALICE), "ключ", "\udcff"]
    assert names(ring, ALICE, BOB, *near) == ["alice", *["-"] * (1 + len(near))]


def test_a_key_is_found_by_its_owner_until_it_expires(tmp_path: Path) -> None:
    path, clock = tmp_path / "k", [NOW]
    expires_at = NOW + timedelta(hours=1)
    path.write_bytes(
        dump_keys(
            [
                Key(name="alice", sha256=hash_of(ALICE), owner="a" * 32),
                Key(name="bob", sha256=hash_of(BOB), expires_at=expires_at),
            ]
        )
    )
    ring = KeyRing(path, lambda: clock[0])
    assert [ring.of_owner(owner).name for owner in ("a" * 32, ring.authenticate(BOB).id)] == ["alice", "bob"]
    clock[0] = expires_at
    for owner in ("b" * 32, "", hash_of(BOB)[:16]):
        with pytest.raises(AuthenticationFailed):
            ring.of_owner(owner)


def test_a_hash_that_agrees_only_in_its_first_half_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "k"
    path.write_bytes(dump_keys([Key(name="alice", sha256=hash_of(ALICE)[:32] + "0" * 32)]))
    assert names(KeyRing(path), ALICE) == ["-"]


def test_whole_hashes_are_compared_in_constant_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, str]] = []

    def compare(kept: str, sent: str) -> bool:
        compared.append((kept, sent))
        return kept == sent

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert names(KeyRing(written(tmp_path / "k", alice=ALICE)), ALICE) == ["alice"]
    assert compared == [(hash_of(ALICE), hash_of(ALICE))]


def test_a_key_expires_at_its_time(tmp_path: Path) -> None:
    path, now = tmp_path / "k", NOW
    path.write_bytes(dump_keys([Key(name="alice", sha256=hash_of(ALICE), expires_at=NOW + timedelta(hours=1))]))
    ring = KeyRing(path, clock=lambda: now)
    assert names(ring, ALICE) == ["alice"]
    now += timedelta(hours=1)
    with pytest.raises(AuthenticationFailed, match="expired"):
        ring.authenticate(ALICE)


def test_a_mounted_secret_that_is_swapped_takes_effect(tmp_path: Path) -> None:
    """Kubernetes writes a new folder and swaps a link to it, so the file itself never changes."""
    for folder, keys in (("first", {"alice": ALICE}), ("second", {"bob": BOB})):
        (tmp_path / folder).mkdir()
        written(tmp_path / folder / "keys.json", **keys)
    (tmp_path / "..data").symlink_to("first")
    (tmp_path / "keys.json").symlink_to("..data/keys.json")
    ring = KeyRing(tmp_path / "keys.json")
    assert names(ring, ALICE, BOB) == ["alice", "-"]
    (tmp_path / "new").symlink_to("second")
    os.rename(tmp_path / "new", tmp_path / "..data")
    ring.reload()
    assert names(ring, ALICE, BOB) == ["-", "bob"]


@pytest.mark.parametrize("content", [b"{", b"", b'{"keys": [{"name": "a"}]}', None])
def test_a_bad_new_file_leaves_the_old_keys_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    path = written(tmp_path / "k", alice=ALICE)
    ring = KeyRing(path)
    path.unlink() if content is None else path.write_bytes(content)
    caplog.clear()
    ring.reload_or_log()
    ring.reload_or_log()
    assert names(ring, ALICE) == ["alice"]
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and str(path) in record.getMessage()
    with pytest.raises(KeyFileError):
        ring.reload()
    written(path, bob=BOB)
    ring.reload_or_log()
    assert names(ring, ALICE, BOB) == ["-", "bob"]


async def test_the_file_is_watched(tmp_path: Path) -> None:
    path = written(tmp_path / "k", alice=ALICE)
    ring = KeyRing(path)
    forgotten = []

    async def forget(owner: str, name: str) -> bool:
        forgotten.append((owner, name))
        return len(forgotten) > 1  # the store does not answer at first

    watching = asyncio.create_task(ring.watch(0, forget))
    path.write_bytes(b"{")
    written(tmp_path / "new", bob=BOB)
    os.replace(tmp_path / "new", path)
    async with asyncio.timeout(30):
        while names(ring, ALICE, BOB) != ["-", "bob"] or len(forgotten) < 2:  # noqa: ASYNC110 - no event for a reading
            await asyncio.sleep(0)
    assert forgotten == [(id_of(hash_of(ALICE)), "alice")] * 2
    watching.cancel()


async def test_what_is_stored_for_a_key_is_deleted_when_its_owner_leaves_the_file(tmp_path: Path) -> None:
    """A key may be moved, renamed or replaced by hand, with its owner; an older file has no owners."""
    path = tmp_path / "k"
    owner = "0" * 32
    path.write_bytes(
        dump_keys([Key(name="alice", sha256=hash_of(ALICE), owner=owner), Key(name="bob", sha256=hash_of(BOB))])
    )
    ring = KeyRing(path)
    assert ring.owners == {owner: "alice", id_of(hash_of(BOB)): "bob"}
    path.write_bytes(dump_keys([Key(name="alicia", sha256=hash_of("conch_new"), owner=owner)]))
    ring.reload()
    assert ring._removed == {id_of(hash_of(BOB)): "bob"}
    written(path, bob=BOB)
    ring.reload()
    assert ring._removed == {owner: "alicia"}
