"""The rendered files of one model, compared with golden files.

After an intended change, write them again and read the difference:

    python -m tests.build_engines.test_render
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from msgspec.structs import replace
from tritonclient.grpc import model_config_pb2 as pb

from build_engines.artifact import Manifest
from build_engines.catalog import Catalog
from build_engines.errors import BuildError
from build_engines.gpus import GPUS
from build_engines.model_entry import ModelEntry
from build_engines.planner.plan import plan
from build_engines.render import ServeOptions, model_parameters, render
from build_engines.serving import Loading, Serving
from build_engines.tensorrt_llm.checks import machine_requires
from build_engines.tensorrt_llm.options import runtime_options
from build_engines.tensorrt_llm.recipe import Recipe
from model_repository.capabilities import HINTS, Capability
from model_repository.contract.tensors import GENERATOR, VECTOR_OUTPUTS
from model_repository.engine.adapters.root import AdapterRoot
from model_repository.engine.tensorrt_llm.options import NEED_LOGITS_PROCESSORS, Backend
from model_repository.engine.tensorrt_llm.releases import RELEASES
from model_repository.model_parameters import Load, ModelParameters, Preset
from model_repository.runtimes import RUNTIMES
from model_repository.system.linked_file import LinkedFile

GOLDEN = Path(__file__).parent.parent / "golden" / "render"
GOLDEN_CATALOG = Path(__file__).parent.parent / "golden" / "catalog"
MANIFEST = Manifest(
    model_id="org/demo",
    runtime="llama_cpp",
    context_window=2048,
    eos_token_ids=frozenset({3056, 3054}),
    created=1_700_000_000,
    source={},
    key="0123456789ab",
    options={},
    adapters={"org/formal": "adapters/org--formal.gguf"},
    tool_call_format="hermes",
    reasoning_format="",
    template_fields=(),
    serving=Serving.of(["gpt-4o", "nvidiaLlama/é:1"], {"chat_max_tokens": None}),
    files={"model.gguf": "abc"},
    linked={"model.gguf": LinkedFile(source="/home/model.gguf", inode=1, size_bytes=2, mtime_ns=3)},
)
PRESETS = {"brief": Preset(system="Be brief.", defaults={"temperature": 0.5, "stop": ("\n",)})}
OPTIONS = ServeOptions(max_sequences=8, max_waiting=100, num_threads=2, stream_interval_ms=25, tokenizer_instances=3)
WITH_PRESETS = dataclasses.replace(OPTIONS, presets=PRESETS)
FILES = render(MANIFEST, Path("/artifacts/demo"), WITH_PRESETS, "1.2.3")
CONFIGS = {name: content for name, content in FILES.items() if name.endswith("config.pbtxt")}


def parameters_in(config: str) -> ModelParameters:
    """Return the parameters in the text of a configuration."""
    parameters = text_format.Parse(config, pb.ModelConfig()).parameters
    return ModelParameters.from_config({key: value.string_value for key, value in parameters.items()})


def shortened(config: str) -> str:
    """Return a configuration that names the golden file of its parameter, with a tensor or its wiring in each line."""
    message = text_format.Parse(config, pb.ModelConfig())
    for parameter in message.parameters.values():
        parameter.string_value = "parameters.json"
    innermost = re.compile(r"\{\n[^{}]*\}")
    return innermost.sub(lambda found: re.sub(r"\n *", " ", found[0]), text_format.MessageToString(message))


def indented(parameters: ModelParameters) -> str:
    """Return parameters as JSON of many lines."""
    [text] = parameters.to_config().values()
    return json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n"


PARAMETERS = model_parameters(MANIFEST, Path("/artifacts/demo"), WITH_PRESETS, "1.2.3")
RENDERED = {f"{Path(name).parent}.pbtxt": shortened(content) for name, content in CONFIGS.items()} | {
    "parameters.json": indented(PARAMETERS)
}


# --- rendered files ---------------------------------------------------------------------------------------------------


def test_the_configurations_are_the_golden_ones() -> None:
    golden = {path.name: path.read_text(encoding="utf-8") for path in GOLDEN.iterdir()}
    assert golden == RENDERED, f"if this is on purpose: {__doc__}"


def test_every_stage_has_its_door() -> None:
    for stage in GENERATOR.stages:
        source = resources.files("model_repository").joinpath(stage, "1", "model.py").read_text(encoding="utf-8")
        assert FILES[f"org--demo__{stage}/1/model.py"] == source


def test_the_ensembles_of_a_model_that_embeds_end_with_its_engine() -> None:
    """A vector passed a stage that made a text of zero words."""
    rendered = render(replace(MANIFEST, pooling="mean"), Path("/artifacts/demo"), OPTIONS, "1.2.3")
    configs = {
        name.partition("/")[0]: text_format.Parse(content, pb.ModelConfig())
        for name, content in rendered.items()
        if name.endswith("config.pbtxt")
    }
    stages = {"org--demo__tokenizer", "org--demo__engine"}
    assert configs.keys() == stages | {"org--demo", "org--demo__requests"}
    for name in configs.keys() - stages:
        assert [step.model_name for step in configs[name].ensemble_scheduling.step] == sorted(stages, reverse=True)
    assert {each.name for each in configs["org--demo"].output} == {spec.name for spec in VECTOR_OUTPUTS}


def test_a_model_with_a_projector_says_that_it_reads_images() -> None:
    manifest = replace(MANIFEST, has_images=True)
    assert Capability.IMAGES in model_parameters(manifest, Path("unused"), OPTIONS, "0").capabilities


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        (ServeOptions(speculative="ngram"), "--speculative ngram"),
        (ServeOptions(adapter_root=Path("/a")), "--adapter-root /a"),
        (ServeOptions(presets=PRESETS), "preset brief"),
    ],
    ids=["speculative", "adapter root", "preset"],
)
def test_a_model_that_embeds_has_no_drafts_adapters_and_presets(options: ServeOptions, flag: str) -> None:
    manifest = replace(MANIFEST, pooling="mean")
    with pytest.raises(BuildError, match=f"^{flag}: org/demo embeds, and takes none"):
        render(manifest, Path("unused"), options, "0")


@pytest.mark.parametrize(("pooling", "task"), [("", "generate"), ("mean", "embed"), ("rank", "score")])
def test_the_task_of_a_model_follows_from_its_pooling(pooling: str, task: str) -> None:
    manifest = replace(MANIFEST, pooling=pooling)
    parameters = model_parameters(manifest, Path("unused"), OPTIONS, "0")
    assert (parameters.task, Capability.TOP_P in parameters.capabilities) == (task, not pooling)


def test_the_pytorch_backend_reads_images_and_does_not_say_that_it_honours_seeds() -> None:
    for backend in Backend:
        manifest = replace(MANIFEST, runtime="tensorrt_llm", options={"backend": str(backend)}, has_images=True)
        capabilities = model_parameters(manifest, Path("unused"), OPTIONS, "0").capabilities
        assert (Capability.SEED in capabilities) == (backend is Backend.ENGINE)
        assert (Capability.IMAGES in capabilities) == (backend is Backend.PYTORCH)
        assert RUNTIMES["tensorrt_llm"].capabilities - capabilities <= {*HINTS, Capability.IMAGES}


def test_a_release_whose_pytorch_backend_honours_seeds_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "model_repository.engine.tensorrt_llm.options.release_of",
        lambda _: dataclasses.replace(RELEASES[0], honours_seed=True),
    )
    manifest = replace(MANIFEST, runtime="tensorrt_llm", options={"backend": "pytorch"})
    assert Capability.SEED in model_parameters(manifest, Path("unused"), OPTIONS, "0").capabilities


def test_keywords_of_tensorrt_llm_reach_the_engine_and_speculation_takes_what_logits_processors_do() -> None:
    manifest = replace(MANIFEST, runtime="tensorrt_llm", options={"backend": "pytorch"})
    given = {"speculative_config": {"decoding_type": "MTP"}}
    options = dataclasses.replace(OPTIONS, llm_options=given)
    parameters = parameters_in(
        render(manifest, Path("/artifacts/demo"), options, "1")["org--demo__engine/config.pbtxt"]
    )
    assert json.loads(parameters.options["llm_options"]) == given
    lost = RUNTIMES["tensorrt_llm"].capabilities - {Capability.SEED, Capability.IMAGES} - parameters.capabilities
    assert lost == NEED_LOGITS_PROCESSORS
    plain = render(manifest, Path("/artifacts/demo"), OPTIONS, "1")
    assert parameters_in(plain["org--demo__engine/config.pbtxt"]).fingerprint != parameters.fingerprint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"runtime": "llama_cpp", "options": {}}, "--llm-option speculative_config: the runtime llama_cpp has no such"),
        ({"options": {"backend": "pytorch", "pp_size": "2"}}, "not together with pipeline_parallel_size"),
    ],
)
def test_keywords_of_tensorrt_llm_that_do_not_fit_the_model_are_refused(changes: dict[str, Any], message: str) -> None:
    manifest = replace(MANIFEST, **{"runtime": "tensorrt_llm", **changes})
    options = dataclasses.replace(OPTIONS, llm_options={"speculative_config": {"decoding_type": "MTP"}})
    with pytest.raises(BuildError, match=message):
        render(manifest, Path("/artifacts/demo"), options, "1")


def test_ensembles_and_stages_have_the_same_parameters() -> None:
    assert [parameters_in(config) for config in CONFIGS.values()] == [PARAMETERS] * len(CONFIGS)
    assert (PARAMETERS.max_sequences, PARAMETERS.max_waiting, PARAMETERS.num_threads) == (8, 100, 2)
    assert PARAMETERS.stream_interval_ms == 25
    assert (PARAMETERS.adapter_root, PARAMETERS.gpus) == (None, ())


def test_the_engine_gets_the_folder_of_loadable_adapters() -> None:
    options = dataclasses.replace(OPTIONS, adapter_root=Path("/adapters"), max_adapters=3, max_adapter_rank=16)
    files = render(MANIFEST, Path("/artifacts/demo"), options, "1.2.3")
    assert parameters_in(files["org--demo__engine/config.pbtxt"]).adapter_root == AdapterRoot(
        folder=Path("/adapters"),
        ensemble="org--demo",
        runtime="llama_cpp",
        base=MANIFEST.base,
        max_adapters=3,
        max_rank=16,
    )


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("max_sequences", 0, "at least 1"),
        ("max_waiting", -1, "at least 0"),
        ("num_threads", -1, "at least 0"),
        ("stream_interval_ms", -1, "at least 0"),
        ("stream_interval_ms", 1001, "at most 1000"),
        ("tokenizer_instances", 0, "at least 1"),
        ("tokenizer_instances", 65, "at most 64"),
        ("max_adapters", 0, "at least 1"),
        ("max_adapter_rank", 0, "at least 1"),
    ],
)
def test_an_option_out_of_range_is_refused(field: str, value: Any, rule: str) -> None:
    with pytest.raises(BuildError, match=f"{field}={value}: must be {rule}"):
        ServeOptions(**{field: value})


def test_only_a_runtime_that_can_draft_gets_the_option() -> None:
    options = dataclasses.replace(OPTIONS, speculative="ngram")
    assert model_parameters(MANIFEST, Path("/artifacts/demo"), options, "1").speculative == "ngram"
    for runtime in RUNTIMES.keys() - {"llama_cpp"}:
        with pytest.raises(BuildError, match=f"--speculative ngram: the runtime {runtime} has no such speculation"):
            render(replace(MANIFEST, runtime=runtime), Path("/artifacts/demo"), options, "1")


def test_only_a_runtime_with_devices_gets_layers_for_them() -> None:
    given: dict[str, dict[str, Any]] = {
        "--gpu-layers all": {"gpu_layers": "all"},
        "--device CUDA0,CUDA1": {"devices": ("CUDA0", "CUDA1")},
    }
    for runtime in RUNTIMES.keys() - {"llama_cpp"}:
        for text, options in given.items():
            with pytest.raises(BuildError, match=f"{text}: the runtime {runtime} has no such devices"):
                dataclasses.replace(OPTIONS, **options).check_runtime(runtime)
    for text in ("some", "-1", "", "00"):
        with pytest.raises(BuildError, match=f"--gpu-layers {text}: expected auto, all or a number of layers"):
            ServeOptions(gpu_layers=text)
    with pytest.raises(BuildError, match="--device CUDA0: excludes --gpu-layers 0"):
        ServeOptions(gpu_layers="0", devices=("CUDA0",))


def test_more_contexts_than_sequences_are_refused() -> None:
    """The engine did not load."""
    manifest = replace(MANIFEST, options={"contexts": "9"})
    with pytest.raises(BuildError, match=r"org/demo: option contexts=9: the model has 8 sequences"):
        render(manifest, Path("/artifacts/demo"), OPTIONS, "1.2.3")


# --- the fingerprint --------------------------------------------------------------------------------------------------


def fingerprint(version: str = "1.2.3", serve: dict[str, Any] | None = None, **changes: Any) -> str:
    options = dataclasses.replace(OPTIONS, **(serve or {}))
    return model_parameters(replace(MANIFEST, **changes), Path("unused"), options, version).fingerprint


@pytest.mark.parametrize(
    "changes",
    [
        {"key": "ba9876543210"},
        {"files": {"model.gguf": "abd"}},
        {"files": {"model.gguf": "abc", "tokenizer/chat_template.jinja": "abc"}},
        {"runtime": "synthetic"},
        {"options": {"itl_ms": "20"}},
        {"adapters": {}},
        {"serving": Serving.of(["gpt-4o"], {"chat_max_tokens": 16})},
        {"sampling": {"temperature": 0.6}},
        {"serve": {"max_sequences": 9}},
        {"serve": {"num_threads": 3}},
        {"version": "1.2.4"},
    ],
    ids=str,
)
def test_changes_of_answers_change_the_fingerprint(changes: dict[str, Any]) -> None:
    assert fingerprint(**changes) != fingerprint()


@pytest.mark.parametrize(
    "changes",
    [
        {"created": 1_800_000_000},
        {"serving": Serving.of(["another"], {"chat_max_tokens": None})},
        {"serve": {"max_waiting": 9}},
        {"serve": {"loading": Loading(load=Load.DEMAND, keep_alive_s=60, is_pinned=True)}},
    ],
    ids=str,
)
def test_other_changes_keep_the_fingerprint(changes: dict[str, Any]) -> None:
    assert fingerprint(**changes) == fingerprint()


# --- the models of the catalog ----------------------------------------------------------------------------------------


def catalog_manifest(entry: ModelEntry) -> Manifest:
    """Return the manifest of a build for H100, with names instead of digests."""
    recipe, backend = Recipe(plan=plan(entry, GPUS["h100"])), entry.backends[0]
    return Manifest(
        model_id=entry.model_id,
        runtime="tensorrt_llm",
        context_window=recipe.plan.max_seq_len,
        eos_token_ids=frozenset(entry.eos_token_ids),
        created=1_700_000_000,
        source={},
        key="0123456789ab",
        precision=recipe.plan.precision,
        options=runtime_options(recipe, backend),
        requires=machine_requires(recipe.plan, "1.2.1" if backend is Backend.ENGINE else None),
        tool_call_format=entry.tool_call_format,
        reasoning_format="",
        template_fields=(),
        has_images=entry.architecture.vision is not None,
        serving=Serving.of(entry.aliases, {}),
        files={},
    )


def catalog_parameters(entry: ModelEntry) -> str:
    """Return the parameters of a model as JSON; its tensors are those of any model."""
    return indented(model_parameters(catalog_manifest(entry), Path("/artifacts/model"), ServeOptions(), "1.2.3"))


CATALOG_PARAMETERS = {
    f"{entry.model_id.replace('/', '--')}.json": catalog_parameters(entry) for entry in Catalog.load() if entry.family
}


def test_the_models_of_the_catalog_are_served_as_the_golden_files_say() -> None:
    golden = {path.name: path.read_text(encoding="utf-8") for path in GOLDEN_CATALOG.iterdir()}
    assert golden == CATALOG_PARAMETERS, f"if this is on purpose: {__doc__}"


def test_no_more_sequences_are_served_than_the_engine_was_built_for() -> None:
    manifest = catalog_manifest(Catalog.load().find("llama3.1:8b"))
    assert ServeOptions(max_sequences=8).max_sequences_of(manifest) == 8
    with pytest.raises(BuildError, match=r"max_sequences=129: .*8B-Instruct is built for 128"):
        render(manifest, Path("/a"), ServeOptions(max_sequences=129), "1")
    assert ServeOptions().max_sequences_of(MANIFEST) == 16


def write_golden() -> None:
    """Replace the golden files."""
    for folder, files in ((GOLDEN, RENDERED), (GOLDEN_CATALOG, CATALOG_PARAMETERS)):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    write_golden()
