"""Loads and unloads the stages of models in the Triton around this process."""

from __future__ import annotations

import compileall
import contextlib
import re
import time
from pathlib import Path

from model_repository import python_backend
from model_repository.arbiter.catalog import Entry
from model_repository.arbiter.driver import LoadError
from model_repository.arbiter.loading import Loaders
from model_repository.contract.cancel_channel import END_REQUESTS, LEAVE, CancelSender
from model_repository.contract.engine_file import LEFT, READY, is_stopped, state_of, stop_engine
from model_repository.contract.tensors import stage_name
from model_repository.errors import EngineFailed
from model_repository.model_parameters import ModelParameters

_POLL_S = 0.02
_SEND_INTERVAL_S = 1.0
# Triton names the code of an error before its text, once for each load that failed in turn, then comes the exception.
_CODES = "Internal|Invalid argument|Not found|Unavailable|Unsupported|Unknown|Already exists"
_CAUSE = re.compile(rf".*\b(?:{_CODES}): (?:[A-Z][\w.]*: )?(.+)")
_FOLDERS = re.compile(r"(?<![\w/])/+(?=[^\s/])[^:'\"\n]*/")  # a folder's name may have spaces


class Stages:
    """See driver.Triton. Any thread may call it.

    Args:
        repository: the folder of all models.
    """

    def __init__(self, repository: Path) -> None:
        self._repository, self._loaders = repository, Loaders(_start_loader)

    def is_loaded(self, entry: Entry) -> bool:
        return any(state_of(ensemble) == READY and not is_stopped(ensemble) for ensemble in entry.ensembles)

    def load(self, entry: Entry) -> None:
        causes = []
        for replica in entry.replicas:
            self._remove_rest(replica)
            for stage in replica.layout.stages:
                # Python would do it at the import, and Triton would then take the stage for a changed one.
                compileall.compile_dir(self._repository / stage_name(replica.ensemble, stage) / "1", quiet=2)
            try:  # the stages are loaded with the first
                error = self._loaders.load([stage_name(replica.ensemble, name) for name in replica.layout.ensembles])
            except EngineFailed as exc:
                raise LoadError(exc.text) from exc
            if error:
                causes.append(cause_of(error))
        if len(causes) == len(entry.replicas):
            raise LoadError(causes[0])

    def _remove_rest(self, replica: ModelParameters) -> None:
        """Unload the stages of a load or an unload that another arbiter has begun: a stopped engine is of no use."""
        if state_of(replica.ensemble) is not None and is_stopped(replica.ensemble):
            for stage in replica.layout.stages:
                python_backend.unload(stage_name(replica.ensemble, stage))

    def unload(self, entry: Entry, end_requests_at_s: float) -> None:
        for replica in entry.replicas:
            stop_engine(replica.ensemble)
            python_backend.unload(replica.ensemble)  # running requests need only the stages
        for replica in entry.replicas:
            self._end_requests(replica.ensemble, end_requests_at_s)
            names = (*replica.layout.stages, *filter(None, replica.layout.ensembles))
            for name in names:
                python_backend.unload(stage_name(replica.ensemble, name))

    def _end_requests(self, ensemble: str, end_at_s: float) -> None:
        """Wait until the engine is idle and has freed its memory; end its requests at a time."""
        with contextlib.closing(CancelSender(ensemble)) as sender:
            send_at_s = time.monotonic()
            while (state := state_of(ensemble)) not in (None, LEFT):
                if state == READY and time.monotonic() >= send_at_s:  # again: the engine's socket may be full
                    sender.cancel(LEAVE)
                    send_at_s += _SEND_INTERVAL_S
                if time.monotonic() >= end_at_s:
                    sender.cancel(END_REQUESTS)
                    end_at_s += _SEND_INTERVAL_S
                time.sleep(_POLL_S)


def _start_loader(name: str) -> None:
    python_backend.unload(name)
    python_backend.load(name)


def cause_of(text: str) -> str:
    """Return the cause of a failed load in Triton's message, without the folders of paths."""
    found = _CAUSE.findall(text)
    return _FOLDERS.sub("", found[-1] if found else text.splitlines()[0]).strip("; ")
