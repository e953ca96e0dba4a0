"""Checkpoints from the Hugging Face hub: a revision is resolved to a commit, which is what the artifact names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import huggingface_hub
from huggingface_hub import errors as hub_errors

from build_engines.errors import BuildError
from build_engines.model_entry import ModelEntry
from build_engines.tensorrt_llm.source import download_patterns

_COMMIT = re.compile(r"[0-9a-f]{40}")
_REFERENCE = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[^@]+))?")


class Snapshot(Protocol):
    """`huggingface_hub.snapshot_download`: the folder of a repository's files, downloaded unless they are here."""

    def __call__(self, repo_id: str, *, revision: str, allow_patterns: Sequence[str]) -> str:
        """Return a folder named like the commit that the revision is."""
        ...


def _snapshot(repo_id: str, *, revision: str, allow_patterns: Sequence[str]) -> str:
    return str(huggingface_hub.snapshot_download(repo_id, revision=revision, allow_patterns=list(allow_patterns)))


def how_to_download(name: str) -> str:
    """Return the end of a message about a folder that is not there; empty where the name is no repository's."""
    found = _REFERENCE.fullmatch(name)
    if found is None:
        return ""
    revision = f" --revision {found['revision']}" if found["revision"] else ""
    repository, folder = found["repository"], found["repository"].rpartition("/")[2]
    return f"; from the Hugging Face hub: hf download {repository}{revision} --local-dir {folder}"


@dataclass(frozen=True, slots=True)
class HubReference:
    """`owner/name`, or `owner/name@revision`."""

    repository: str
    revision: str  # a branch, a tag or a commit

    @classmethod
    def parse(cls, text: str) -> HubReference:
        """Read what the command line has.

        Raises:
            BuildError: it has another form.
        """
        found = _REFERENCE.fullmatch(text)
        if found is None:
            raise BuildError(f"--checkpoint {text}: no such folder, nor of the form OWNER/NAME@REVISION")
        return cls(found["repository"], found["revision"] or "main")

    def download(
        self,
        entry: ModelEntry,
        snapshot: Snapshot = _snapshot,
        find_token: Callable[[], str | None] = huggingface_hub.get_token,
    ) -> tuple[Path, str]:
        """Return the folder of the checkpoint's files, and the commit that they are of.

        Files that are in the hub's cache are not downloaded again; a download that was cut off goes on.

        Raises:
            BuildError: there is no such repository or revision, no permission, or no connection.
        """
        what = f"{self.repository}@{self.revision}"
        is_entrys_own = self.repository in (entry.model_id, *entry.aliases)  # a copy elsewhere may be open
        if is_entrys_own and entry.is_gated and find_token() is None:
            raise BuildError(f"{what}: {_GATED}")
        try:
            folder = Path(snapshot(self.repository, revision=self.revision, allow_patterns=download_patterns()))
        except hub_errors.GatedRepoError as exc:
            raise BuildError(f"{what}: {_GATED}") from exc
        except hub_errors.RevisionNotFoundError as exc:
            raise BuildError(f"{what}: the repository has no such revision") from exc
        except hub_errors.RepositoryNotFoundError as exc:
            rule = "no such folder here, and no such repository, or a private one that HF_TOKEN cannot read"
            raise BuildError(f"{what}: {rule}") from exc
        except (hub_errors.HfHubHTTPError, hub_errors.LocalEntryNotFoundError, OSError) as exc:
            raise BuildError(f"{what}: download failed: {str(exc).partition(chr(10))[0]}") from exc
        if not _COMMIT.fullmatch(folder.name):
            raise BuildError(f"{what}: {folder}: expected a folder named by its commit")
        return folder, folder.name


_GATED = "a gated repository: accept its licence on its page of the hub, and set HF_TOKEN to a token that may read it"
