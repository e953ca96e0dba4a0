"""Checkpoints from the Hugging Face hub. A revision is resolved to a commit, which the artifact records."""

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
from build_engines.tensorrt_llm.imported import PYTORCH_FILES
from build_engines.tensorrt_llm.source import download_patterns

_COMMIT = re.compile(r"[0-9a-f]{40}")
_REFERENCE = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[^@]+))?")


class Snapshot(Protocol):
    """`huggingface_hub.snapshot_download`."""

    def __call__(self, repo_id: str, *, revision: str, allow_patterns: Sequence[str]) -> str:
        """Return the folder of the files, which has the commit as its name."""
        ...


def _snapshot(repo_id: str, *, revision: str, allow_patterns: Sequence[str]) -> str:
    return str(huggingface_hub.snapshot_download(repo_id, revision=revision, allow_patterns=list(allow_patterns)))


@dataclass(frozen=True, slots=True)
class HubReference:
    """`owner/name`, or `owner/name@revision`."""

    repository: str
    revision: str  # a branch, a tag or a commit

    @classmethod
    def parse(cls, text: str) -> HubReference:
        """Read the value of --checkpoint.

        Raises:
            BuildError: it is neither a folder nor OWNER/NAME@REVISION.
        """
        found = cls.find(text)
        if found is None:
            raise BuildError(f"--checkpoint {text}: no such folder, nor of the form OWNER/NAME@REVISION")
        return found

    @classmethod
    def find(cls, text: str) -> HubReference | None:
        """Read a text that may be a reference."""
        found = _REFERENCE.fullmatch(text)
        return None if found is None else cls(found["repository"], found["revision"] or "main")

    def download(
        self,
        entry: ModelEntry | None = None,
        snapshot: Snapshot = _snapshot,
        find_token: Callable[[], str | None] = huggingface_hub.get_token,
    ) -> tuple[Path, str]:
        """Return the folder of the checkpoint's files, and their commit.

        Files of the hub's cache are not downloaded again; an interrupted download continues.

        Args:
            entry: the model's entry, if it is one of the catalog.

        Raises:
            BuildError: no such repository or revision, no permission, or no connection.
        """
        what = f"{self.repository}@{self.revision}"
        # A copy of another owner may not be gated.
        is_gated = entry is not None and entry.is_gated and self.repository in (entry.model_id, *entry.aliases)
        if is_gated and find_token() is None:
            raise BuildError(f"{what}: {_GATED}")
        try:
            folder = Path(snapshot(self.repository, revision=self.revision, allow_patterns=download_patterns()))
            if entry is not None and not any(folder.glob("*.safetensors")):
                folder = Path(snapshot(self.repository, revision=self.revision, allow_patterns=PYTORCH_FILES))
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


def checkpoint_folder(given: str, entry: ModelEntry | None = None) -> tuple[Path, str | None]:
    """Return the folder that --checkpoint names, and its commit on the hub; None for a folder of this machine.

    Raises:
        BuildError: it is neither a folder nor a reference, or cannot be downloaded.
    """
    return (Path(given), None) if Path(given).is_dir() else HubReference.parse(given).download(entry)


_GATED = "a gated repository: accept its licence on its page of the hub, and set HF_TOKEN to a token that may read it"
