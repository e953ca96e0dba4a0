"""The running server of the integration tests: its addresses, its engines' stats, and its processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from frontend.launcher.launcher import Launcher
from tests.grpc_client import GrpcClient
from tests.processes import is_stopped, parent_of
from tests.waiting import wait_until

PACED_MODEL = "synthetic/paced"  # a token for each running sequence every 10 ms, until max_tokens
FLOOD_MODEL = "synthetic/flood"  # the same every 2 ms
ENGINE_MODEL = "demo-engine"  # the demo model on the tensorrt_llm runtime's engine backend
ALIASES = ("llama3.1:8b", "nvidiaLlama-3.1-Nemotron-70B-Instruct")  # of the demo model: names that documents use
PRESET_NAME = "brief"  # of the demo model
PRESET = {
    "from": "demo",
    "system": "You answer in one short sentence.",
    "default": {"temperature": 1.5, "seed": 7, "chat_max_tokens": 20, "completion_max_tokens": 20},
}
STUB = "triton_python_backend_stub"  # the name of the process of a stage
WORKER = "tensorrt_llm_double_worker"  # the name of the process that stands for a rank
MAX_SEQUENCES = 4  # that one engine decodes at a time
MAX_SEQUENCES_ALONE = 12  # the same limit where the paced model is served alone
MAX_SEQUENCES_FLOOD = 64
NUM_KV_TOKENS = 6400  # of the double of TensorRT-LLM, by an option of the stack
CLIENTS = tuple(f"client-{number}" for number in range(12))  # keys of the busy server
PREFILL_TOKENS = 64  # of a prompt that the paced model reads in a step
DEMO_CHECKPOINT = Path(__file__).parents[2] / "build_engines" / "demo" / "checkpoint"


def renamed_checkpoint(folder: Path, names: Sequence[str], chat_template: str) -> Path:
    """Write a copy of the demo checkpoint, in which reserved tokens have these names; return its folder."""
    checkpoint = folder / "checkpoint"
    shutil.copytree(DEMO_CHECKPOINT, checkpoint)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        text = (checkpoint / file).read_text()
        for number, name in enumerate(names):
            text = text.replace(f"<|reserved_{number}|>", name)
        (checkpoint / file).write_text(text)
    config = json.loads((checkpoint / "tokenizer_config.json").read_text())
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": chat_template}))
    return checkpoint


def endpoint_of(launcher: Launcher) -> str:
    """Return the gRPC host and port of a launcher's Triton."""
    return f"127.0.0.1:{launcher.triton_ports.grpc}"


@dataclass(frozen=True, slots=True)
class Stack(GrpcClient):
    """A running server: its addresses, its engines' stats, and faults."""

    launcher: Launcher
    log_path: Path

    @classmethod
    def of(cls, launcher: Launcher, log_path: Path) -> AbstractContextManager[Self]:
        """Connect to a launcher's Triton."""
        return cls.connected(endpoint_of(launcher), launcher, log_path)

    @property
    def log(self) -> list[str]:
        """The lines that Triton and the frontend have written."""
        return self.log_path.read_text().splitlines()

    @property
    def url(self) -> str:
        """The URL of the frontend."""
        return self.launcher.url

    @property
    def triton_metrics_url(self) -> str:
        """The URL of Triton's metrics port, without the path."""
        return f"http://127.0.0.1:{self.launcher.triton_ports.metrics}"

    def wait_until_idle(self, model: str) -> None:
        """Wait until an engine holds no sequence."""

        def is_idle() -> bool:
            stats = self.stats(model)
            return stats.num_active == stats.num_waiting == 0

        wait_until(is_idle, f"{model} is idle")

    def start_again_if_ended(self) -> None:
        """Do what `serve` does when Triton has ended, which tritonserver 2.51 does after some faults of its stages.

        A stage that is killed or stopped while it holds a lock in shared memory takes it with it (SIGABRT,
        boost::interprocess::lock_exception), at once or some seconds later.
        """
        if not self.launcher.triton.is_running:
            self.launcher.start_again(self.launcher.triton)

    def end_stops(self) -> None:
        """Continue a Triton that was stopped as a whole, and kill stages that were stopped alone.

        A stage that continues after its replacement would crash Triton (SIGSEGV), or stay beside the new one.
        """
        triton = self.launcher.triton.pid
        if is_stopped(triton):
            os.killpg(triton, signal.SIGCONT)
            return
        for pid, command in _processes(triton):
            if STUB in command and is_stopped(pid):
                os.kill(pid, signal.SIGKILL)

    def kill_stage(self, stage_name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Kill the process of a stage, as the kernel does when memory runs out, or send it another signal."""
        pids = self.processes(stage_name)
        assert pids, f"no process of {stage_name}"
        for pid in pids:
            os.kill(pid, number)

    def kill_worker(self, stage_name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Kill the process in which a stage's TensorRT-LLM computes, or rather the double of it.

        Args:
            number: SIGABRT as after an error of the GPU.
        """
        stages = set(self.processes(stage_name))
        found = _processes(self.launcher.triton.pid)
        pids = [pid for pid, command in found if command.startswith(WORKER) and parent_of(pid) in stages]
        assert pids, f"no worker of {stage_name}"
        for pid in pids:
            os.kill(pid, number)

    def processes(self, stage_name: str) -> list[int]:
        """Return the stage's processes under this server's Triton, without their forks, which compile grammars."""
        found = _processes(self.launcher.triton.pid)
        pids = [pid for pid, command in found if f"/{stage_name}/" in command and STUB in command]
        return [pid for pid in pids if parent_of(pid) not in pids]

    def pss_bytes(self) -> int:
        """Return the memory of all processes of this server's Triton; shared pages are divided among them."""
        num_bytes = 0
        for pid, _ in _processes(self.launcher.triton.pid):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                num_bytes += psutil.Process(pid).memory_full_info().pss
        return num_bytes


def _processes(session: int) -> Iterator[tuple[int, str]]:
    """Yield the processes of a session with their command lines."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                if os.getsid(int(folder.name)) == session:
                    yield int(folder.name), (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
