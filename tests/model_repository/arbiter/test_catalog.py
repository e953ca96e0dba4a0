"""The models of a repository as the arbiter reads them, and those that Triton loads at its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from build_engines.render import write_repository
from model_repository.arbiter.catalog import Catalog
from model_repository.arbiter.start import Start
from model_repository.contract.tensors import ARBITER, LOADERS
from model_repository.model_parameters import PARAMETER, Load, ModelParameters, Preset
from model_repository.system.devices import DeviceUse
from tests.build_engines import test_render
from tests.build_engines.test_render_artifacts import FILES
from tests.model_repository.arbiter.repository import parameters_of, write_model
from tests.model_repository.test_model_parameters import PARAMETERS


def test_a_rendered_model_is_read_as_its_stages_read_it(tmp_path: Path) -> None:
    write_repository(FILES, tmp_path / "models")
    [(name, entry)] = Catalog.read(tmp_path / "models").entries.items()
    expected = test_render.parameters_in(FILES[f"{entry.ensembles[0]}/config.pbtxt"])
    assert entry.replicas == (expected,)
    assert name == expected.model_id
    assert ModelParameters.from_config({PARAMETER: bytes(entry.texts[0]).decode()}) == expected


@pytest.mark.parametrize("is_escaped", [True, False])
def test_text_beyond_ascii_is_read_escaped_or_not(tmp_path: Path, is_escaped: bool) -> None:
    """Protobuf's writer escapes it, an editor does not: the whole repository could not be read."""
    path = write_model(tmp_path, PARAMETERS)
    text = path.read_text("utf-8")
    assert "é" in text
    if is_escaped:
        path.write_text(text.replace("é", "\\303\\251"), "ascii")
    assert Catalog.read(tmp_path).entries["org/demo"].replicas == (PARAMETERS,)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b'key: "conch"\n value {\n string_value: "\\x"', b'key: "conch" value { string_value: "{}"'],
)
def test_a_model_that_is_not_ours_is_left_out(tmp_path: Path, content: bytes) -> None:
    write_model(tmp_path, parameters_of("a"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.pbtxt").write_bytes(content)
    (tmp_path / "other" / "1").mkdir()
    assert Catalog.read(tmp_path).entries.keys() == {"a"}


def test_replicas_are_one_model_with_the_memory_of_all(tmp_path: Path) -> None:
    for replica in (1, 2):
        write_model(tmp_path, parameters_of("a", replica=replica, memory_bytes=3))
    entry = Catalog.read(tmp_path).entries["a"]
    assert (entry.ensembles, entry.memory_bytes) == (["a", "a@2"], 6)


def test_the_version_changes_with_a_model(tmp_path: Path) -> None:
    write_model(tmp_path, parameters_of("a"))
    before = Catalog.read(tmp_path).version
    assert Catalog.read(tmp_path).version == before
    write_model(tmp_path, parameters_of("a", memory_bytes=7))
    assert Catalog.read(tmp_path).version != before


# --- the start ---


def test_the_pinned_models_and_those_that_fit_beside_them_are_loaded_at_the_start(tmp_path: Path) -> None:
    models = [
        parameters_of("first", position=0, memory_bytes=4),
        parameters_of("large", position=1, memory_bytes=5),
        parameters_of("asleep", position=2, memory_bytes=1, load=Load.DEMAND),
        parameters_of("pinned", position=3, memory_bytes=4, is_pinned=True),
        parameters_of("small", position=4, memory_bytes=2, presets={"brief": Preset()}),
    ]
    for model in models:
        write_model(tmp_path, model)
    start = Start.of(tmp_path, 10)
    assert start.loaded == ("first", "pinned", "small")
    assert start.later == ("large", "asleep")
    assert start.presets == ("brief",)


def test_triton_loads_all_ensembles_of_all_replicas_after_the_arbiter(tmp_path: Path) -> None:
    for replica in (1, 2):
        write_model(tmp_path, parameters_of("a", replica=replica, memory_bytes=3))
    names = Start.of(tmp_path, 6).names
    own = [f"{ensemble}{end}" for ensemble in ("a", "a@2") for end in ("", "__requests", "__outputs")]
    assert names == (ARBITER, *LOADERS, *own)
    assert Start.of(tmp_path, 5).names == (ARBITER, *LOADERS)


def test_a_single_model_is_loaded_whatever_its_size_unless_a_bound_is_given(tmp_path: Path) -> None:
    write_model(tmp_path, parameters_of("only", memory_bytes=1 << 60))
    assert Start.of(tmp_path).loaded == ("only",)
    assert Start.of(tmp_path, 1 << 50).loaded == ()
    write_model(tmp_path, parameters_of("other", memory_bytes=1))
    assert Start.of(tmp_path).loaded == ("other",)


def test_models_that_fit_on_a_device_together_are_loaded_at_the_start(tmp_path: Path) -> None:
    def devices(used_bytes: int) -> dict[str, DeviceUse]:
        return {"CUDA0": DeviceUse(description="NVIDIA", used_bytes=used_bytes, total_bytes=10)}

    for position, (name, used_bytes) in enumerate({"first": 5, "large": 5, "small": 4}.items()):
        parameters = parameters_of(name, position=position, memory_bytes=1, gpu_layers=3, devices=devices(used_bytes))
        write_model(tmp_path, parameters)
    start = Start.of(tmp_path, 10)
    assert start.loaded == ("first", "small")
    assert start.on_devices[0] == "first: 3 layers on CUDA0 (NVIDIA): 0.0 of 0.0 GB"
    write_model(tmp_path, parameters_of("first", replica=2, gpu_layers=3, devices=devices(1)))
    assert Catalog.read(tmp_path).entries["first"].devices == devices(6)
