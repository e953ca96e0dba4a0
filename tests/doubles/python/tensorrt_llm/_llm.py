"""LLM of both backends: the arguments that it accepts, and its refusals."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensorrt_llm._contract import Recorded, contract
from tensorrt_llm._executor import Executor, Request
from tensorrt_llm._guided_decoding import Grammar, end_token, load_tokenizer
from tensorrt_llm._input_processor import InputProcessor
from tensorrt_llm._model import Model
from tensorrt_llm._results import IterationResult, RequestError, RequestOutput
from tensorrt_llm.sampling_params import SamplingParams

# Recorded parameters that the double does not implement: it refuses all values but the default.
_NOT_DONE = (
    "additional_model_outputs",
    "apply_batched_logits_processor",
    "bad_token_ids",
    "beam_search_diversity_rate",
    "early_stopping",
    "length_penalty",
    "lookahead_config",
    "no_repeat_ngram_size",
    "return_encoder_output",
    "return_generation_logits",
    "return_perf_metrics",
    "top_p_decay",
    "top_p_min",
    "top_p_reset_ids",
    "truncate_prompt_tokens",
    "use_beam_search",
)


class _LLM:
    """What both backends share."""

    name: str  # of the class, in the contract
    args: str  # of its argument model
    is_engine: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        recorded, recorded_args = Recorded(f"{self.name}.__init__"), Recorded(f"{self.args}.__init__")
        bound = recorded.bind(*args, **kwargs)
        for name, value in bound.pop("kwargs", {}).items():
            if name not in recorded.allowed_keys or name not in recorded_args.types:
                raise ValueError(f"{self.name} got an unexpected keyword argument {name!r}")
            recorded_args.check(name, value)
            bound[name] = value
        defaults = {name: param.default for name, param in recorded_args.signature.parameters.items()}
        self._args: dict[str, Any] = defaults | bound
        self._folder = Path(self._args["model"])
        self._config = self._read_config()
        model = Model(self._folder, self._model_config())
        self._vocab_size = model.vocab_size
        self.tokenizer = self._args["tokenizer"]
        if self._args["skip_tokenizer_init"]:
            self.tokenizer = None
        self._grammar_tokenizer: Any = None
        cache = self._args["kv_cache_config"]
        self._executor = Executor(
            model,
            is_engine=self.is_engine,
            max_batch_size=self._args["max_batch_size"],
            has_block_reuse=cache is None or cache.enable_block_reuse,
            max_chunk_tokens=self._args["max_num_tokens"] if self._is_called_per_chunk() else None,
            is_told_late=not (self.is_engine or self._args["disable_overlap_scheduler"]),
            has_stats=self._has_stats(),
            num_kv_tokens=cache and cache.max_tokens,
            stream_interval=1 if self.is_engine else self._args["stream_interval"],
            has_pauses=not self.is_engine and self._has_pauses(),
            loses_adapters=not self.is_engine and self._loses_adapters("cuda_graph_config" not in bound),
        )

    def _has_stats(self) -> bool:
        return bool(self._args["enable_iter_perf_stats"])

    def _has_pauses(self) -> bool:
        cache, scheduler = self._args["kv_cache_config"], self._args["scheduler_config"]
        # "auto" is V2 for many models.
        is_v2 = getattr(cache, "use_kv_cache_manager_v2", False) is not False
        return is_v2 or (scheduler is not None and scheduler.capacity_scheduler_policy.name == "MAX_UTILIZATION")

    def _loses_adapters(self, has_default_graphs: bool) -> bool:
        has_graphs = has_default_graphs or self._args["cuda_graph_config"] is not None
        return has_graphs and not contract()["facts"]["has_adapter_graphs"]["value"]

    def _is_called_per_chunk(self) -> bool:
        return not self.is_engine and self._args["enable_chunked_prefill"]

    def _read_config(self) -> dict[str, Any]:
        path = self._folder / "config.json"
        if not path.is_file():
            raise ValueError(f"{self._folder}: neither an engine nor a checkpoint")
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return config

    def _model_config(self) -> dict[str, Any]:
        return self._config

    def generate_async(self, *args: Any, **kwargs: Any) -> RequestOutput:
        """Queue one request, as recorded."""
        bound = Recorded(f"{self.name}.generate_async").bind(*args, **kwargs)
        params = bound["sampling_params"]
        if not isinstance(params, SamplingParams):
            raise TypeError("the double needs sampling_params")
        prompt = self._prompt(bound["inputs"], params)
        self._check(prompt, params)
        lora = bound["lora_request"]
        result = RequestOutput(self._executor.next_id(), prompt, params)
        request = Request(
            result,
            prompt,
            params,
            is_streaming=bound["streaming"],
            adapter=Path(lora.lora_path) if lora is not None else None,
            cache_salt=bound["cache_salt"],
            priority=self._priority(bound.get("priority")),
            make_guide=lambda: self._structured_output(params),
        )
        result.on_abort = lambda: self._executor.abort(request)
        if lora is not None and not self._has_lora():
            result.push(RequestError("LoRA is not enabled"))
        else:
            self._executor.submit(request)
        return result

    def _priority(self, given: float | None) -> float:
        if given is None:
            return 0.5
        if not 0 <= given <= 1:
            raise ValueError("priority must be between 0 and 1")
        assert self._args["scheduler_config"].waiting_queue_policy.name == "PRIORITY", "it gives a warning"
        return float(np.float32(given))

    def _prompt(self, inputs: Any, params: SamplingParams) -> list[int]:
        if not isinstance(inputs, list) or not all(isinstance(item, int) for item in inputs):
            raise TypeError("the double takes token ids only, but for a model that reads images")
        return inputs

    def _has_lora(self) -> bool:
        return bool(self._args["enable_lora"] or self._args["lora_config"])

    def _check(self, prompt: list[int], params: Any) -> None:
        """Raise the errors that generate_async itself raises."""
        not_done = [name for name in _NOT_DONE if getattr(params, name, None)]
        if not_done or params.best_of != params.n:
            raise NotImplementedError(f"the double does not do {not_done or 'best_of'}")
        if params.end_id is None and self.tokenizer is None:
            raise ValueError("end_id is required without a tokenizer")
        if (params.stop is not None or params.bad is not None) and (params.end_id is not None or not self.tokenizer):
            raise RuntimeError("stop and bad texts need the tokenizer and no end_id")
        if params.logits_processor is not None and self._args["speculative_config"] is not None:
            raise NotImplementedError("speculation does not work with logits processors")
        if params.best_of > self._args["max_batch_size"]:
            raise ValueError("best_of must be at most max_batch_size")
        if params.embedding_bias is not None and params.embedding_bias.dtype != "float32":
            raise ValueError("embedding_bias must be float32")
        if not all(0 <= token_id < self._vocab_size for token_id in prompt):
            raise ValueError("token ids must be of the vocabulary")

    def _structured_output(self, params: Any) -> Grammar | None:
        if params.guided_decoding is None:
            return None
        if self._args["guided_decoding_backend"] is None:
            raise ValueError("guided decoding is not enabled: guided_decoding_backend is not set")
        if self.tokenizer is None:
            raise ValueError("guided decoding needs the tokenizer")
        if self._grammar_tokenizer is None:
            self._grammar_tokenizer = load_tokenizer(Path(self.tokenizer), self._vocab_size)
        is_llguidance = self._args["guided_decoding_backend"] == "llguidance"
        end_id = end_token(Path(self.tokenizer))
        return Grammar(params.guided_decoding, self._grammar_tokenizer, end_id, is_llguidance=is_llguidance)

    def get_stats(self, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        """Return the statistics of the steps since the last call, as recorded: a call that waits for the worker."""
        bound = Recorded("tensorrt_llm.LLM.get_stats").bind(*args, **kwargs)
        return [json.loads(item) for item in self._executor.fetch_stats(bound["timeout"])]

    def get_stats_async(self, *args: Any, **kwargs: Any) -> IterationResult:
        """Return the same, as recorded: this call, too, waits for the worker, in the caller's thread."""
        bound = Recorded("tensorrt_llm.LLM.get_stats_async").bind(*args, **kwargs)
        return IterationResult(self._executor.fetch_stats(bound["timeout"]), bound["timeout"])

    def shutdown(self) -> None:
        """End everything; may be called more than once."""
        self._executor.shutdown()


class EngineLLM(_LLM):
    """On the engine backend."""

    name = "tensorrt_llm._tensorrt_engine.LLM"
    args = "tensorrt_llm.llmapi.TrtLlmArgs"
    is_engine = True

    def _read_config(self) -> dict[str, Any]:
        config = super()._read_config()
        if not config.keys() >= {"pretrained_config", "build_config"}:
            raise ValueError(f"{self._folder}: not an engine")
        cache, backend = self._args["kv_cache_config"], self._args["guided_decoding_backend"]
        assert cache is None or cache.dtype == "auto", "dtype of the KV cache is only for the PyTorch backend"
        if backend not in (None, "xgrammar"):
            raise ValueError("the TensorRT backend accepts xgrammar only")
        built: dict[str, Any] = config["build_config"]
        for name, mapped in (("tensor_parallel_size", "tp_size"), ("pipeline_parallel_size", "pp_size")):
            size = config["pretrained_config"].get("mapping", {}).get(mapped, 1)
            if self._args[name] not in (1, size):
                raise ValueError(f"{name}={self._args[name]}: the engine has {size}")
        for name in ("max_batch_size", "max_num_tokens"):
            self._args[name] = min(self._args[name], built[name])
        return config

    def _model_config(self) -> dict[str, Any]:
        config: dict[str, Any] = self._config["pretrained_config"]
        return config

    def _has_stats(self) -> bool:
        """An engine on one GPU that returns logits has no worker process, which would serve statistics."""
        mapping = self._config["pretrained_config"].get("mapping", {})
        returns_logits = self._args["gather_generation_logits"] or self._config["build_config"].get(
            "gather_context_logits"
        )
        return mapping.get("tp_size", 1) * mapping.get("pp_size", 1) > 1 or not returns_logits

    def _has_lora(self) -> bool:
        plugin = self._config["build_config"].get("plugin_config", {}).get("lora_plugin")
        return super()._has_lora() and bool(plugin)

    def _check(self, prompt: list[int], params: Any) -> None:
        super()._check(prompt, params)
        built = self._config["build_config"]
        is_too_long = len(prompt) + params.max_tokens > built["max_seq_len"]
        if is_too_long and not self._args["enable_chunked_prefill"]:
            raise ValueError(f"prompt and max_tokens exceed max_seq_len ({built['max_seq_len']})")
        if (params.prompt_logprobs or params.return_context_logits) and not built.get("gather_context_logits"):
            raise ValueError("prompt_logprobs need an engine built with gather_context_logits")
        if params.logprobs and not self._args["gather_generation_logits"]:
            raise ValueError("logprobs need gather_generation_logits=True")
        if isinstance(params.logits_processor, list):
            raise ValueError("one logits processor only")
        if params.guided_decoding is not None and params.guided_decoding.structural_tag:
            raise ValueError("structural_tag is only for the PyTorch backend")


class TorchLLM(_LLM):
    """On the PyTorch backend."""

    name = "tensorrt_llm.LLM"
    args = "tensorrt_llm.llmapi.TorchLlmArgs"
    is_engine = False
    input_processor: InputProcessor | None = None  # of a model that reads images

    def _read_config(self) -> dict[str, Any]:
        config = super()._read_config()
        if "pretrained_config" in config:
            raise ValueError(f"{self._folder}: an engine, which this backend does not run")
        if "vision_config" in config:
            if self._args["skip_tokenizer_init"]:
                raise ValueError("the input processor needs the tokenizer")
            self.input_processor = InputProcessor(self._folder, config)
        return config

    def _prompt(self, inputs: Any, params: SamplingParams) -> list[int]:
        if self.input_processor is None:
            return super()._prompt(inputs, params)
        if isinstance(inputs, PreprocessedInputs):
            return inputs.prompt_token_ids
        if not isinstance(inputs, dict) or "prompt" not in inputs:
            raise TypeError("tokens alone do not reach the input processor, and would have no places")
        token_ids, _ = self.input_processor(inputs, params)
        return token_ids

    def _check(self, prompt: list[int], params: Any) -> None:
        super()._check(prompt, params)
        if len(prompt) > self._args["max_num_tokens"] and not self._args["enable_chunked_prefill"]:
            kind = ValueError if contract()["version"].startswith("1.2") else RequestError
            raise kind("the prompt exceeds max_num_tokens")
        longest = self._args["max_seq_len"]
        if longest is not None and len(prompt) + params.max_tokens > longest + 1:
            raise ValueError(f"prompt and max_tokens exceed max_seq_len ({longest})")


@dataclass
class PreprocessedInputs:
    """A prompt that the input processor has processed."""

    prompt_token_ids: list[int]


def _preprocess(llm: TorchLLM, *args: Any, **kwargs: Any) -> PreprocessedInputs:
    """Process a prompt for `generate_async`, as recorded."""
    bound = Recorded(f"{llm.name}.preprocess").bind(*args, **kwargs)
    return PreprocessedInputs(llm._prompt(bound["inputs"], bound["sampling_params"]))


def _check_health(llm: TorchLLM) -> bool:
    """Whether the worker lives, as recorded."""
    return llm._executor.is_healthy()


if f"{TorchLLM.name}._check_health" in contract()["callables"]:
    TorchLLM._check_health = _check_health  # type: ignore[attr-defined]
if f"{TorchLLM.name}.preprocess" in contract()["callables"]:
    TorchLLM.preprocess = _preprocess  # type: ignore[attr-defined]
