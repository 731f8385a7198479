"""LoRA: adapters of low rank that are trained in place of a model's weights.

They sit inside the model's own layers, so whoever holds the model goes on as before: it samples and learns
with them, and its weights stay as they were. An adapter on disk has peft's own layout.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model_state_dict, inject_adapter_in_model
from peft.tuners.tuners_utils import set_adapter
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from envrl.errors import ConfigError, unknown
from envrl.spec import LoraSpec

ADAPTER = "adapter"
"""The folder of a checkpoint that holds the adapter alone."""
_TRAINED, _START = "default", "start"
_WEIGHTS = "adapter_model.safetensors"
_PEFT = "base_model.model."
"""What peft puts before the names of weights on disk."""
_JUDGED = {"r": "rank", "lora_alpha": "alpha", "use_rslora": "rslora", "target_modules": "targets"}


def adapt(model: PreTrainedModel, spec: LoraSpec, *, base: str, seed: int) -> None:
    """Puts adapters into a model, which change nothing yet, and freezes all else.

    Adapters are float32 whatever the weights are. `base` is where those came from, for the adapter's config.
    Raises ConfigError for targets that the model has not, and for a head that is its embedding.
    """
    _judge_targets(model, spec)
    config = LoraConfig(
        r=spec.rank,
        lora_alpha=spec.alpha,
        use_rslora=spec.rslora,
        lora_dropout=spec.dropout,
        target_modules=spec.targets or "all-linear",
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
    )
    with _own_randomness(model):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model, _TRAINED)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    model.train(False)


def is_adapted(model: PreTrainedModel) -> bool:
    """Whether adapters are what is trained."""
    return hasattr(model, "peft_config")


def save_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Writes the trained adapter as `PeftModel.from_pretrained` and `vllm serve --lora-modules` read it."""
    config = model.peft_config[_TRAINED]
    config.save_pretrained(str(folder))  # which marks it as made for inference, on disk alone
    tensors = {f"{_PEFT}{name}": value.contiguous() for name, value in _tensors(model, _TRAINED).items()}
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})


def load_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Takes up a saved adapter. Raises ConfigError where it is another kind than the model's."""
    _load(model, folder, _TRAINED)


def keep_start(model: PreTrainedModel, folder: Path | None) -> None:
    """Puts a frozen adapter beside the trained one, for `at_start`: a saved one, or one without effect."""
    config = copy(model.peft_config[_TRAINED])
    config.inference_mode = True
    with _own_randomness(model), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Already found a `peft_config`")
        inject_adapter_in_model(config, model, _START)
    if folder is not None:
        _load(model, folder, _START)
    set_adapter(model, _TRAINED)
    model.train(False)


@contextmanager
def at_start(model: PreTrainedModel) -> Iterator[None]:
    """The policy that training began with, inside: no second model has to be held for it."""
    was_training = model.training
    model.train(False)
    set_adapter(model, _START, inference_mode=True)
    try:
        yield
    finally:
        set_adapter(model, _TRAINED)
        model.train(was_training)


def _own_randomness(model: PreTrainedModel) -> AbstractContextManager[None]:
    """What is drawn inside is not missing from what the run draws later."""
    return torch.random.fork_rng([model.device] if model.device.type == "cuda" else [])


def _judge_targets(model: PreTrainedModel, spec: LoraSpec) -> None:
    linear = {
        name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear | Conv1D)
    }
    embedding = model.get_input_embeddings().weight
    for target in spec.targets or ():
        found = [name for name in linear if name == target or name.endswith(f".{target}")]
        if not found:
            choices = {name.rpartition(".")[2] for name in linear}
            raise ConfigError(
                f"{unknown('model.lora.targets', target, choices)}; mend: model.lora.targets=null for all"
            )
        if any(linear[name].weight is embedding for name in found):
            raise ConfigError(
                f"model.lora.targets: {target} shares its weights with the embedding, and would change that, "
                "too; mend: leave it out"
            )


def _tensors(model: PreTrainedModel, adapter: str) -> dict[str, Tensor]:
    """The adapter's own weights, not copies, by their names in the model."""
    tensors: dict[str, Tensor] = get_peft_model_state_dict(
        model, adapter_name=adapter, save_embedding_layers=False
    )
    return tensors


def _load(model: PreTrainedModel, folder: Path, adapter: str) -> None:
    if not (folder / _WEIGHTS).is_file():
        raise ConfigError(f"model.lora: {folder.parent} was trained without adapters; mend: model.lora=null")
    saved, ours = LoraConfig.from_pretrained(str(folder)), model.peft_config[adapter]
    for name, field in _JUDGED.items():
        there, here = getattr(saved, name), getattr(ours, name)
        if there != here:
            raise ConfigError(
                f"model.lora.{field}: {folder} has {_shown(there)} (got {_shown(here)}); "
                f"mend: model.lora.{field}={_shown(there)}"
            )
    tensors = {name.removeprefix(_PEFT): value for name, value in load_file(folder / _WEIGHTS).items()}
    own = _tensors(model, adapter)
    if {name: value.shape for name, value in tensors.items()} != {n: v.shape for n, v in own.items()}:
        raise ConfigError(
            f"model.name_or_path: the adapter in {folder} fits {saved.base_model_name_or_path} "
            f"(got {ours.base_model_name_or_path}); mend: model.name_or_path={saved.base_model_name_or_path}"
        )
    with torch.no_grad():
        for name, value in tensors.items():
            own[name].copy_(value)


def _shown(value: object) -> str:
    """Layers by the last part of their names."""
    if not isinstance(value, set):
        return str(value).lower()
    return f"[{','.join(sorted({name.rpartition('.')[2] for name in value}))}]"
