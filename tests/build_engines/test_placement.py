"""The layers of models on devices, with a double of llama.cpp's trial load."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from build_engines.errors import BuildError
from build_engines.llama_cpp.device_trial import LayerMemory
from build_engines.memory_fit import ModelDemand, fit_loaded
from build_engines.placement import (
    ALL,
    AUTO,
    Candidate,
    Placement,
    beside_devices,
    chosen_devices,
    fit_and_place,
    fit_on_devices,
    place,
)
from build_engines.progress import size_text
from build_engines.replica_memory import ReplicaMemory
from build_engines.sequence_memory import SequenceMemory
from model_repository.engine.runtime import EngineConfig
from model_repository.system.devices import Device
from model_repository.system.llama_build import LlamaBuild

GB = 10**9
NUM_LAYERS = 33  # with the output
TOKEN_BYTES = 131_072  # of all layers
BUFFER_BYTES = GB // 10  # of each device


def card(number: int, total_gb: float, free_gb: float | None = None) -> Device:
    free = total_gb if free_gb is None else free_gb
    return Device(
        name=f"CUDA{number}",
        description=f"NVIDIA Card {number}",
        free_bytes=int(free * GB),
        total_bytes=int(total_gb * GB),
    )


def trial(name: str, config: EngineConfig) -> LayerMemory:
    """Return the memory of a model of as many GB as its name says, with layers by llama.cpp's rule."""
    num_on_devices = min(config.gpu_layers, NUM_LAYERS)
    if name == "0":
        raise BuildError("0: llama.cpp does not load it: no")
    sizes = [use.total_bytes for use in config.devices.values()]
    devices = ["CPU"] * (NUM_LAYERS - num_on_devices)
    for position in range(num_on_devices):
        shares = [sum(sizes[: end + 1]) / sum(sizes) for end in range(len(sizes))]
        number = next(number for number, share in enumerate(shares) if position / num_on_devices < share)
        devices.append(list(config.devices)[number])
    cache_bytes = config.max_sequences * config.context_window * TOKEN_BYTES // (NUM_LAYERS - 1)
    return LayerMemory(
        devices=tuple(devices),
        weight_bytes=(int(float(name) * GB / NUM_LAYERS),) * NUM_LAYERS,
        cache_bytes=(cache_bytes,) * (NUM_LAYERS - 1) + (0,),
        buffer_bytes=dict.fromkeys((*config.devices, "CUDA_Host"), BUFFER_BYTES),
    )


def model(weights_gb: float, devices: Sequence[Device], layers: str = AUTO, **options: Any) -> Candidate:
    memory = SequenceMemory(bytes_per_token=TOKEN_BYTES)
    replica = ReplicaMemory(
        weight_bytes=int(weights_gb * GB),
        process_bytes=GB,
        sequence_memory=memory,
        vocabulary_size=0,
        num_contexts=1,
        num_threads=1,
        has_images=False,
    )
    demand = ModelDemand(
        weight_bytes=int(weights_gb * GB), sequence_memory=memory, num_sequences=16, window=131_072, replica=replica
    )
    config = EngineConfig(
        runtime="llama_cpp", artifact_dir=Path("/models"), context_window=131_072, eos_token_ids=frozenset()
    )
    return Candidate(
        name=str(weights_gb),
        config=config,
        demand=dataclasses.replace(demand, **options),
        layers=layers,
        devices=devices,
    )


def placed(*models: Candidate, on_cores: tuple[int, int] = (4, 2048)) -> list[tuple[Placement, int, int]]:
    """Return the placement of each model, its sequences and its window."""
    candidates = {Path(str(number)): each for number, each in enumerate(models)}
    whole = fit_on_devices(candidates, trial)
    fits = dict.fromkeys(candidates, on_cores) | whole
    placements = place(candidates, fits, whole, trial)
    return [(placements[folder], *fits[folder]) for folder in candidates]


def used(*placements: Placement) -> Counter[str]:
    uses = Counter[str]()
    for placement in placements:
        uses.update({name: use.used_bytes for name, use in placement.devices.items()})
    return uses


def test_a_model_that_fits_is_on_the_device_with_the_sequences_that_its_memory_holds() -> None:
    [(placement, num_sequences, window)] = placed(model(4, [card(0, 8)]))
    assert (placement.gpu_layers, list(placement.devices)) == (NUM_LAYERS, ["CUDA0"])
    assert (num_sequences, window) == (4, 3584)
    assert used(placement)["CUDA0"] <= 0.9 * 8 * GB
    assert placement.text == "all 33 layers on CUDA0 (NVIDIA Card 0): 6.0 of 8.0 GB"
    assert placement.memory_bytes == pytest.approx(GB + BUFFER_BYTES)  # the processes, and the buffers of the machine


def test_a_model_on_the_device_takes_processes_and_buffers_of_the_machine() -> None:
    """The other models were given the memory of the buffers, and of the input embeddings."""
    demand = beside_devices(model(4, [card(0, 8)], num_replicas=2), (4, 2048), trial)
    assert demand.least_bytes == pytest.approx(GB + BUFFER_BYTES)
    assert (demand.num_replicas, demand.can_shrink) == (2, False)


def test_the_layers_of_a_larger_model_that_do_not_fit_stay_on_the_cores_with_their_price() -> None:
    [(placement, *fitted)] = placed(model(12, [card(0, 8)]))
    assert fitted == [4, 2048]  # those of the machine's memory
    assert 15 < placement.gpu_layers < 20
    layer_bytes = 12 * GB // NUM_LAYERS + 4 * 2048 * TOKEN_BYTES // 32
    assert 0.9 * 8 * GB - layer_bytes < used(placement)["CUDA0"] <= 0.9 * 8 * GB
    num = NUM_LAYERS - placement.gpu_layers
    size = size_text(num * int(12 * GB / NUM_LAYERS))
    assert f"{placement.gpu_layers} of 33 layers on CUDA0" in placement.text
    assert f"; the cores compute {num} layers, and read {size} of weights for each token" in placement.text


def test_memory_of_other_programs_is_not_planned() -> None:
    [(placement, *_)] = placed(model(4, [card(0, 8, free_gb=3)]))
    assert used(placement)["CUDA0"] <= 0.9 * 3 * GB
    assert 0 < placement.gpu_layers < NUM_LAYERS
    [(nothing, *_)] = placed(model(4, [card(0, 8, free_gb=0.1)]))
    assert (nothing.gpu_layers, nothing.devices) == (0, {})
    assert nothing.text == "no layer fits on devices, with 0.1 GB of CUDA0 free: the cores compute all"


@pytest.mark.parametrize("sizes", [(8, 8), (16, 8), (24, 6)])
def test_layers_are_shared_out_and_fit_on_each_device(sizes: tuple[int, int]) -> None:
    cards = [card(number, size) for number, size in enumerate(sizes)]
    [(placement, *_)] = placed(model(9, cards))
    assert placement.gpu_layers == NUM_LAYERS
    assert all(0 < use.used_bytes <= 0.9 * use.total_bytes for use in placement.devices.values())


@pytest.mark.parametrize("free_gb", [0.05, 2])
def test_a_model_that_goes_back_to_the_cores_has_the_sequences_of_the_machine(free_gb: float) -> None:
    """It kept the sequences of the cards, and the other model got all memory of the machine."""
    large, folder = model(9, [card(0, 24, free_gb=free_gb), card(1, 24)]), Path("large")
    demands = {folder: large.demand, Path("small"): model(1, []).demand}
    fits, placements = fit_and_place({folder: large}, demands, 32 * GB, 4, trial)
    assert not placements[folder].is_whole
    assert fits == fit_loaded(demands, 32 * GB, 4)


def test_a_small_model_is_on_both_cards_although_one_has_little_free_memory() -> None:
    """Cards shared the layers by their free memory: the second one got none, and the cores computed the model."""
    [(placement, *_)] = placed(model(0.15, [card(0, 24), card(1, 24, free_gb=0.5)], ALL))
    assert placement.gpu_layers == NUM_LAYERS
    assert 0 < used(placement)["CUDA1"] <= 0.9 * 0.5 * GB


def test_a_card_that_gets_no_layer_leaves_the_model_on_the_cores_or_is_refused() -> None:
    cards, reason = [card(0, 24), card(1, 0.4)], "fewer layers fit than there are devices: --device names one of them"
    [(placement, *_)] = placed(model(0.15, cards))
    assert (placement.gpu_layers, placement.text) == (0, reason)
    with pytest.raises(BuildError, match=rf"^0\.15: --gpu-layers all: {reason}$"):
        placed(model(0.15, cards, ALL))


def test_models_that_start_together_share_a_device() -> None:
    cards = [card(0, 12)]
    found = placed(model(4, cards), model(3, cards))
    assert [placement.gpu_layers for placement, *_ in found] == [NUM_LAYERS, NUM_LAYERS]
    assert used(*(placement for placement, *_ in found))["CUDA0"] <= 0.9 * 12 * GB
    # The second one has the rest, and keeps its other layers on the cores.
    found = placed(model(6, cards), model(8, cards))
    assert [placement.gpu_layers == NUM_LAYERS for placement, *_ in found] == [True, False]
    assert used(*(placement for placement, *_ in found))["CUDA0"] <= 0.9 * 12 * GB


def test_each_model_on_demand_has_the_device_beside_the_pinned_ones() -> None:
    cards = [card(0, 20)]
    pinned, first, second = placed(
        model(6, cards, is_on_demand=True),
        model(7, cards, is_on_demand=True),
        model(2, cards, is_pinned=True, is_on_demand=True),
    )[::-1]
    for later, _, _ in (first, second):
        assert later.gpu_layers == NUM_LAYERS
        assert used(pinned[0], later)["CUDA0"] <= 0.9 * 20 * GB
    assert used(pinned[0], first[0], second[0])["CUDA0"] > 0.9 * 20 * GB


def test_replicas_share_the_devices() -> None:
    [(placement, *_)] = placed(model(3, [card(0, 12)], num_replicas=2))
    assert placement.gpu_layers == NUM_LAYERS
    assert 2 * used(placement)["CUDA0"] <= 0.9 * 12 * GB


def test_a_number_of_layers_is_kept_or_refused() -> None:
    [(placement, *fitted)] = placed(model(12, [card(0, 8)], "10"))
    assert (placement.gpu_layers, fitted) == (10, [4, 2048])
    [(placement, *_)] = placed(model(4, [card(0, 8)], "99"))
    assert placement.gpu_layers == NUM_LAYERS
    for layers in (ALL, "99", "30"):
        message = rf"^12: --gpu-layers {layers}: needs 1\d\.\d GB of CUDA0, of which models may have 7\.2 GB"
        with pytest.raises(BuildError, match=message):
            placed(model(12, [card(0, 8)], layers))


def test_a_model_that_devices_do_not_load_stays_on_the_cores_unless_it_is_wanted_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    [(placement, *fitted)] = placed(model(0, [card(0, 8)]))
    assert (placement.gpu_layers, placement.devices, fitted) == (0, {}, [4, 2048])
    assert "warning: devices: 0: llama.cpp does not load it: no" in caplog.messages
    with pytest.raises(BuildError, match=r"^0: llama\.cpp does not load it: no$"):
        placed(model(0, [card(0, 8)], ALL))


def test_sequences_that_the_user_chose_are_kept() -> None:
    [(placement, *fitted)] = placed(model(4, [card(0, 8)], is_fixed=True, num_sequences=4, window=8192))
    assert fitted == [4, 2048]
    assert 0 < placement.gpu_layers <= NUM_LAYERS


def test_spare_sequences_are_those_that_fit_on_each_device() -> None:
    cards = [card(0, 24, free_gb=5), card(1, 24)]
    [(placement, num_sequences, _)] = placed(model(4, cards, is_fixed=True, num_sequences=1, num_spare=9, window=8192))
    assert placement.gpu_layers == NUM_LAYERS
    assert 1 < num_sequences < 10
    assert used(placement)["CUDA0"] <= 0.9 * 5 * GB


def test_a_device_that_is_not_there_is_refused() -> None:
    vulkan, cpu = LlamaBuild("cyllama-vulkan", "1"), LlamaBuild("cyllama", "1")
    cards = [card(0, 8), card(1, 8)]
    assert chosen_devices(AUTO, (), cards, vulkan) == cards
    assert chosen_devices(ALL, ("CUDA1",), cards, vulkan) == cards[1:]
    assert not chosen_devices(AUTO, (), [], cpu)
    three = [*cards, card(2, 8)]
    with pytest.raises(BuildError, match=r"^--device CUDA0,CUDA2: expected one device or all: hide CUDA1 "):
        chosen_devices(AUTO, ("CUDA0", "CUDA2"), three, vulkan)
    with pytest.raises(BuildError, match=r"^--device CUDA7: expected one of CUDA0 \(NVIDIA Card 0\), CUDA1 \(NV"):
        chosen_devices(AUTO, ("CUDA0", "CUDA7"), cards, vulkan)
    with pytest.raises(BuildError, match=r"^--gpu-layers all: this llama\.cpp computes on the cores alone: install"):
        chosen_devices(ALL, (), [], cpu)
    with pytest.raises(BuildError, match=r"^--device Vulkan0: no device of Vulkan is found"):
        chosen_devices(AUTO, ("Vulkan0",), [], vulkan)
