"""Adapters in TensorRT-LLM: their numbers, and the limits of its start options."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import replace
from tensorrt_llm import _model

from model_repository.engine.adapters.folder import Adapter
from model_repository.engine.adapters.root import AdapterRoot
from model_repository.engine.runtime import EngineConfig
from model_repository.engine.tensorrt_llm.lora import LoraRequests, lora_config, supports_adapters
from model_repository.engine.tensorrt_llm.options import TensorRtLlmOptions
from model_repository.errors import EngineFailed, InvalidRequest, StageError, Unsupported
from tests.model_repository.engine.adapter_folders import root_of, write_folder
from tests.model_repository.engine.tensorrt_llm.conftest import BACKENDS, BYTE_TABLE, RUNTIME, Tiny

ROOT = AdapterRoot(folder=Path("unused"), ensemble="tiny", runtime="tensorrt_llm", base="", max_adapters=3, max_rank=64)


def adapter(path: Path, key: str = "key", **fields: Any) -> Adapter:
    known: dict[str, Any] = {"rank": 8, "modules": ("attn_q",)}
    return Adapter(path=path, key=key, num_bytes=1, source="teams/x", **known | fields)


def requests_of(config: EngineConfig, **options: str) -> LoraRequests:
    return LoraRequests(replace(config, options=options), TensorRtLlmOptions.of(options))


def test_adapters_of_the_artifact_have_numbers_that_do_not_depend_on_their_order(
    config: EngineConfig, tmp_path: Path
) -> None:
    paths = {name: str(tmp_path / name) for name in ("b", "a")}
    for path in paths.values():
        Path(path).mkdir()
    requests = requests_of(replace(config, adapters=paths))
    asked = {name: requests.of(name) for name in paths}
    assert {name: item.lora_int_id for name, item in asked.items()} == {"a": 1, "b": 2}
    assert (asked["a"].lora_name, asked["a"].lora_path) == ("a", str(tmp_path / "a"))
    assert requests.of("") is None


def test_a_number_stands_for_the_same_weights_for_ever(config: EngineConfig, tmp_path: Path) -> None:
    requests = requests_of(config)
    numbers = []
    for key in ("one", "two", "one"):
        requests.add("x", adapter(tmp_path, key))
        numbers.append(requests.of("x").lora_int_id)
        requests.remove("x")
    assert numbers[0] == numbers[2] != numbers[1]
    assert requests.of("polite").lora_int_id not in numbers


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"rank": 17}, "its rank is 17: at most 16, for which the model was built"),
        ({"modules": ("attn_q", "mlp_gate")}, "changes mlp_gate: expected some of attn_q, attn_v"),
    ],
)
def test_an_adapter_beyond_the_limits_of_the_model_is_refused(
    config: EngineConfig, tmp_path: Path, fields: dict[str, Any], rule: str
) -> None:
    requests = requests_of(config, lora_max_rank="16", lora_modules="attn_q,attn_v")
    with pytest.raises(InvalidRequest, match=rule) as refused:
        requests.check(adapter(tmp_path, **fields))
    assert refused.value.field == "source"


def test_an_engine_supports_adapters_only_if_built_with_one(config: EngineConfig, tmp_path: Path) -> None:
    alone = replace(config, adapters={}, adapter_root=ROOT, options={})
    with pytest.raises(Unsupported, match="built without adapters"):
        requests_of(alone).check(adapter(tmp_path))
    requests_of(alone, lora_modules="attn_q").check(adapter(tmp_path))
    requests_of(alone, backend="pytorch").check(adapter(tmp_path))


def test_the_pytorch_backend_is_started_with_room_for_those_to_come(config: EngineConfig) -> None:
    options = TensorRtLlmOptions.of({"backend": "pytorch"})
    assert not supports_adapters(replace(config, adapters={}), options)
    lora = lora_config(replace(config, adapter_root=ROOT), options)
    assert (lora.max_loras, lora.max_cpu_loras, lora.max_lora_rank) == (4, 4, 64)


def test_adapters_need_no_name_that_only_release_1_2_has(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    later = ModuleType("config")
    later.__dict__["LoraConfig"] = dict
    monkeypatch.setattr("model_repository.engine.tensorrt_llm.lora.__version__", "1.3.0rc29")
    monkeypatch.setitem(sys.modules, "tensorrt_llm._torch.peft.lora.config", later)
    assert lora_config(config, TensorRtLlmOptions())["max_lora_rank"] == 64


@pytest.fixture
def adapters(config: EngineConfig, tmp_path: Path) -> Iterator[tuple[Tiny, AdapterRoot]]:
    """The runtime, and the folder of adapters to load later, with one that TensorRT-LLM cannot load."""
    for name, weights in (("good", b"{}"), ("odd", b"no weights")):
        write_folder(tmp_path / "root" / name, weights, runtime="tensorrt_llm")
    root = root_of(tmp_path / "root", runtime="tensorrt_llm")
    tiny = Tiny(RUNTIME.TensorRtLlmRuntime(replace(config, adapter_root=root), BYTE_TABLE, environment={}))
    yield tiny, root
    tiny.runtime.close()


def load(adapters: tuple[Tiny, AdapterRoot], name: str) -> None:
    tiny, root = adapters
    tiny.runtime.load_adapter(name, tiny.runtime.prepare_adapter(root.find(name, name)))


def test_a_loaded_adapter_does_not_need_its_folder(adapters: tuple[Tiny, AdapterRoot]) -> None:
    tiny, root = adapters
    load(adapters, "good")
    shutil.rmtree(root.folder / "good")
    _model.Model._load.cache_clear()  # as if the workers read it again
    assert len(tiny.tokens(lora_name="good")) == 8


def test_adapters_that_release_1_2_never_frees_are_counted(
    adapters: tuple[Tiny, AdapterRoot], caplog: pytest.LogCaptureFixture
) -> None:
    """Each night's new version of an adapter took memory of the GPU, and no figure showed it."""
    tiny, root = adapters
    for name, weights in (("monday", b"{}"), ("tuesday", b"[ ]"), ("wednesday", b"{}")):
        write_folder(root.folder / name, weights, runtime="tensorrt_llm")
        load(adapters, name)
        tiny.runtime.unload_adapter(name)
    stats, executor = tiny.runtime.stats(), tiny.runtime._llm._executor
    assert list(stats.adapters) == ["polite"]
    is_kept = "engine" in BACKENDS  # release 1.2
    assert (stats.adapter_bytes, len(executor.kept_adapters)) == ((5, 3) if is_kept else (0, 0))
    assert ("5 bytes of adapters stay on the GPU" in caplog.text) is is_kept


def test_an_adapter_that_does_not_load_is_known_before_it_is_offered(adapters: tuple[Tiny, AdapterRoot]) -> None:
    tiny, _ = adapters
    with pytest.raises(StageError) as refused:
        load(adapters, "odd")
    if "engine" in BACKENDS:  # release 1.2: its worker has ended
        assert isinstance(refused.value, EngineFailed) and "must be loaded again" in refused.value.text
        return
    assert refused.value.text == "'odd': TensorRT-LLM makes no token with it, see the engine's log"
    assert list(tiny.runtime.stats().adapters) == ["polite"]
    assert len(tiny.tokens()) == 8


def test_an_adapter_of_the_artifact_that_does_not_load_is_named_at_the_start(config: EngineConfig) -> None:
    (config.artifact_dir / "adapters" / "polite" / "adapter_config.json").write_text("no JSON")
    with pytest.raises(EngineFailed, match="adapter polite: TensorRT-LLM makes no token with it"):
        RUNTIME.TensorRtLlmRuntime(config, BYTE_TABLE, environment={})
    assert "tensorrt-llm-requests" not in {thread.name for thread in threading.enumerate()}
