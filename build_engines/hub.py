"""Models of the Hugging Face hub. A revision is resolved to a commit, which the artifact records."""

from __future__ import annotations

import errno
import fnmatch
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import constants, file_download
from huggingface_hub import errors as hub_errors
from huggingface_hub.utils.tqdm import disable_progress_bars

from build_engines.digests import Digests
from build_engines.errors import BuildError
from build_engines.json_files import is_below
from build_engines.progress import Progress, following
from build_engines.sentence_transformers import MODULE_FILES, MODULES, PROMPTS
from build_engines.tensorrt_llm.imported import PYTORCH_FILES
from build_engines.tensorrt_llm.source import download_patterns

logger = logging.getLogger(__name__)

_NETWORK_ERRORS = (hub_errors.HTTPError, OSError)  # type: ignore[attr-defined]  # of requests or httpx, by version
# hf_xet raises RuntimeError; the library raises the others if an answer has another shape.
HUB_ERRORS = (*_NETWORK_ERRORS, RuntimeError, ValueError, TypeError, LookupError, AttributeError)

# Of the file system of the cache, not of the hub: requests fail without a number, or with one of the network.
_FILE_SYSTEM_ERRORS = {
    *(errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO),
    *(errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ESTALE),
}

_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT, _ETAG = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{40,64}")  # an ETag is a sha1 or a sha256
_NUM_DOWNLOADS = 8  # concurrent ones, as in the library
# The rules of git-check-ref-format(1). The cache keeps the commit of a revision in a file of this name.
_REVISION = re.compile(r"(?!.*(\.\.|//|/\.|\.lock(/|$)))(?![./])[^\x00-\x20\x7f~^:?*\[\\@]+(?<![./])", re.DOTALL)
_REFERENCE = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[^@:]+))?(:(?P<variant>[^@:]+))?")
# A page of the hub, as people paste it, or Ollama's name of a model there.
_ADDRESS = re.compile(
    r"(?:https?://)?(?:huggingface\.co|hf\.co)/(?P<repository>[\w.-]+/[\w.-]+?)"
    r"(?:/(?:tree|blob|resolve)/(?P<revision>[^/?:]+)(?:/(?P<file>[^?:]+\.gguf))?)?/?(?P<variant>:[^?]+)?(?:\?.*)?"
)


def reference_of_address(text: str) -> str:
    """Return OWNER/NAME[@REVISION][:VARIANT] of a hub's address; any other text as it is."""
    found = _ADDRESS.fullmatch(text)
    if found is None:
        return text
    revision = found["revision"] or "main"
    variant = f":{found['file']}" if found["file"] else found["variant"] or ""
    return found["repository"] + (f"@{revision}" if revision != "main" else "") + variant


@dataclass(frozen=True, slots=True)
class HubReference:
    """`OWNER/NAME`, with `@REVISION`, `:VARIANT` or both."""

    repository: str
    revision: str  # a branch, a tag or a commit
    variant: str | None = None  # a precision, such as Q4_K_M, or the name of a GGUF file

    @classmethod
    def parse(cls, text: str) -> HubReference:
        """Read the value of --checkpoint.

        Raises:
            BuildError: it is neither a folder nor OWNER/NAME@REVISION.
        """
        found = cls.find(text)
        if found is None or found.variant is not None:
            raise BuildError(f"--checkpoint {text}: no such folder, nor of the form OWNER/NAME@REVISION")
        return found

    @classmethod
    def find(cls, text: str) -> HubReference | None:
        """Read a text that may be a reference."""
        found = _REFERENCE.fullmatch(text)
        return None if found is None else cls(found["repository"], found["revision"] or "main", found["variant"])

    def __str__(self) -> str:
        """Return the repository and the revision."""
        return f"{self.repository}@{self.revision}"


@dataclass(frozen=True, slots=True)
class HubRepository:
    """The files of a repository at one commit."""

    reference: HubReference
    commit: str
    sizes: dict[str, int]  # bytes by path
    sha256: dict[str, str]  # of large files by path, as far as the hub says it

    @classmethod
    def open(cls, reference: HubReference) -> HubRepository:
        """List a repository; if the hub fails, the part of it that has been downloaded.

        Raises:
            BuildError: no such repository or revision, no permission, or the hub fails and nothing is downloaded.
        """
        if _REVISION.fullmatch(reference.revision) is None:
            rule = "expected a branch, a tag or a commit by git's rules: neither an absolute path nor `..`"
            raise BuildError(f"{reference.repository}: revision {reference.revision!r}: {rule}")
        with _reported(reference):
            try:
                info = huggingface_hub.HfApi().model_info(
                    reference.repository, revision=reference.revision, files_metadata=True
                )
            except (hub_errors.RepositoryNotFoundError, hub_errors.RevisionNotFoundError):
                raise
            except _NETWORK_ERRORS as exc:
                return cls._downloaded(reference, exc)
            sizes = {str(file.rfilename): int(file.size or 0) for file in info.siblings or ()}
            sha256 = {str(file.rfilename): str(file.lfs.sha256) for file in info.siblings or () if file.lfs}
            if _COMMIT.fullmatch(str(info.sha)) is None:
                raise ValueError(f"the hub names the commit {info.sha!r}: expected 40 hexadecimal digits")
        return cls(reference, str(info.sha), sizes, sha256)

    @classmethod
    def _downloaded(cls, reference: HubReference, failure: Exception) -> HubRepository:
        try:
            text = huggingface_hub.snapshot_download(
                reference.repository, revision=reference.revision, local_files_only=True, allow_patterns=[]
            )
        except OSError:
            raise failure from None
        folder = Path(text)
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
        rule = f"only its downloaded files are used: {', '.join(sizes)}"
        logger.warning("hub         %s: %s: %s", reference, _first_line(failure), rule)
        return cls(reference, folder.name, sizes, {})

    def matching(self, *patterns: str) -> list[str]:
        """Return the names of the files of the top folder that match one of the patterns."""
        top = (name for name in sorted(self.sizes) if "/" not in name)
        return [name for name in top if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]

    def download(self, names: Sequence[str], digests: Digests) -> Path:
        """Return the folder of the repository's files, with at least these.

        Files of the hub's cache are not downloaded again. The sha256 of each large file is compared.

        Raises:
            BuildError: the hub fails, a name leads out of the repository, no room on the disk, or a file with another
                digest, which is removed.
        """
        for name in names:
            if name not in self.sizes:
                raise BuildError(f"{self.reference}: {name}: no such file in the repository")
            if not is_below(name):
                raise BuildError(f"{self.reference}: {name!r}: not the name of a file in a repository")
        missing_bytes = sum(self.sizes[name] for name in names if not self._is_cached(name))
        storage = storage_of(self.reference.repository)
        existing = next(folder for folder in (storage, *storage.parents) if folder.exists())
        free_bytes = shutil.disk_usage(existing).free
        if missing_bytes > free_bytes:
            rule = f"{missing_bytes / 1e9:,.1f} GB to download, and {free_bytes / 1e9:,.1f} GB are free in {existing}"
            raise BuildError(f"{self.reference}: {rule}: free some, or name another disk by HF_HOME")
        if missing_bytes and not (existing.is_dir() and os.access(existing, os.W_OK)):
            rule = f"{existing} is not a folder that you may write to"
            raise BuildError(f"{self.reference}: {rule}: name another place for downloads by HF_HOME")
        disable_progress_bars()  # those of the library count files

        def fetch(name: str) -> Path:
            return Path(huggingface_hub.hf_hub_download(self.reference.repository, name, revision=self.commit))

        with (
            _reported(self.reference),
            Progress(f"downloading {self.reference.repository}", missing_bytes) as progress,
            following(storage / "blobs", progress),
            _checked_answers(self.commit),
            ThreadPoolExecutor(_NUM_DOWNLOADS) as threads,
        ):
            paths = dict(zip(names, threads.map(fetch, names), strict=True))
            self._keep_commit(storage / "refs" / self.reference.revision)
        self._check_digests(paths, digests)
        return storage / "snapshots" / self.commit

    def _keep_commit(self, file: Path) -> None:
        """Keep the commit of a branch or tag, for later builds without the network."""
        if self.reference.revision == self.commit or (file.is_file() and file.read_text() == self.commit):
            return
        with suppress(OSError):  # a cache that is only read has all the files that this build needs
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.commit)

    def _check_digests(self, paths: Mapping[str, Path], digests: Digests) -> None:
        """Compare the large files of a download with their sha256, and remove one that differs."""
        sha256 = {name: self.sha256.get(name) or _sha256_in_cache(path) for name, path in paths.items()}
        files = {name: path.resolve() for name, path in paths.items() if sha256[name]}
        for name, digest in digests.of_all(files).items():
            if digest != sha256[name]:
                files[name].unlink()
                rule = f"damaged: its sha256 is not {sha256[name]}: the file is removed; build again to download it"
                raise BuildError(f"{paths[name]}: {rule}")

    def _is_cached(self, name: str) -> bool:
        found = huggingface_hub.try_to_load_from_cache(self.reference.repository, name, revision=self.commit)
        return isinstance(found, str)


def _sha256_in_cache(path: Path) -> str | None:
    """Return the sha256 by which the cache names a file; None: a small file, or a cache without symbolic links."""
    name = path.readlink().name if path.is_symlink() else ""
    return name if _SHA256.fullmatch(name) else None


def storage_of(repository: str) -> Path:
    """Return the folder of a repository in the hub's cache."""
    return Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"


def checkpoint_folder(given: str, digests: Digests, is_imported: bool = False) -> tuple[Path, str | None]:
    """Return the folder that --checkpoint names, and its commit on the hub; None for a folder of this machine.

    Args:
        is_imported: as for `download_checkpoint`.

    Raises:
        BuildError: it is neither a folder nor a reference, or cannot be downloaded.
    """
    if Path(given).is_dir():
        return Path(given), None
    folder = download_checkpoint(HubRepository.open(HubReference.parse(given)), digests, is_imported)
    return folder, folder.name


def download_checkpoint(repository: HubRepository, digests: Digests, is_imported: bool = False) -> Path:
    """Return the folder of a repository's checkpoint.

    Args:
        is_imported: take files of PyTorch's format if there are no safetensors.

    Raises:
        BuildError: it cannot be downloaded.
    """
    has_safetensors = bool(repository.matching("*.safetensors"))
    further = PYTORCH_FILES if is_imported and not has_safetensors else ()
    names = repository.matching(*download_patterns(), MODULES, PROMPTS, *further)
    names += [name for pattern in MODULE_FILES for name in fnmatch.filter(sorted(repository.sizes), pattern)]
    return repository.download(names, digests)


def cached_files(digests: Iterable[str]) -> list[Path]:
    """Return the files of the hub's cache with one of these sha256, by which the cache names large files."""
    cache = Path(constants.HF_HUB_CACHE)
    return sorted(path for digest in digests for path in cache.glob(f"models--*/blobs/{digest}"))


@contextmanager
def _checked_answers(commit: str) -> Iterator[None]:
    """Refuse an answer about a file that would name a file outside of the cache: the library takes any name.

    The hub names the folders and files of the cache by X-Repo-Commit and ETag. An answer about a missing file has the
    first one, too.
    """
    unchecked = file_download.get_hf_file_metadata

    def checked(*arguments: Any, **options: Any) -> Any:
        try:
            metadata = unchecked(*arguments, **options)
        except hub_errors.EntryNotFoundError as exc:
            raise ValueError(_first_line(exc)) from exc
        if metadata.commit_hash != commit:
            raise ValueError(f"the hub answers with the commit {metadata.commit_hash!r} for {commit}")
        if _ETAG.fullmatch(str(metadata.etag)) is None:
            raise ValueError(f"the hub answers with the ETag {metadata.etag!r}: expected a sha1 or a sha256")
        return metadata

    file_download.get_hf_file_metadata = checked
    try:
        yield
    finally:
        file_download.get_hf_file_metadata = unchecked


@contextmanager
def _reported(reference: HubReference) -> Iterator[None]:
    """Name the reference and the rule where the hub refuses something."""
    try:
        yield
    except hub_errors.HFValidationError as exc:
        raise BuildError(f"{reference.repository}: no such folder, and not a name of the hub") from exc
    except hub_errors.GatedRepoError as exc:
        raise BuildError(f"{reference}: {_GATED}") from exc
    except hub_errors.RevisionNotFoundError as exc:
        raise BuildError(f"{reference}: the repository has no such revision") from exc
    except hub_errors.RepositoryNotFoundError as exc:
        rule = "no such folder here, and no such repository, or a private one that HF_TOKEN cannot read"
        raise BuildError(f"{reference}: {rule}") from exc
    except HUB_ERRORS as exc:
        if isinstance(exc, OSError) and exc.errno in _FILE_SYSTEM_ERRORS:
            reason = "this file system has no locks" if exc.errno == errno.ENOLCK else exc.strerror
            rule = f"{exc.filename or constants.HF_HUB_CACHE}: {reason}: name another place for downloads by HF_HOME"
            raise BuildError(f"{reference}: {rule}") from exc
        place = f"the hub {constants.ENDPOINT}"
        raise BuildError(f"{reference}: {place} failed: {_first_line(exc)}; complete files are kept") from exc


def _first_line(exc: Exception) -> str:
    return str(exc).partition("\n")[0]


_GATED = "a gated repository: accept its licence on its page of the hub, and set HF_TOKEN to a token that may read it"
