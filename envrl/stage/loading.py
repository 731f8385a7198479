"""The weights that a run begins or goes on with."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from envrl.errors import ConfigError
from envrl.model.load import load
from envrl.model.lora import ADAPTER, adapt, load_adapter
from envrl.model.tiny import build_model
from envrl.rollout.corpus import tiny_tokenizer
from envrl.seeds import derive
from envrl.spec import RunSpec, Stage


async def load_agent(
    spec: RunSpec, checkpoint: Path | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model that is trained and its tokenizer: those of the checkpoint, where there is one.

    With adapters the weights are never trained, so they still come from where the run began; only the adapter
    is the checkpoint's. Raises ConfigError for a checkpoint of the other kind.
    """
    lora = spec.model.lora
    if lora is None:
        if checkpoint is not None and (checkpoint / ADAPTER).exists():
            raise ConfigError(
                f"model.lora: {checkpoint} was trained with adapters (got null); mend: model.lora as there, "
                f"or model.name_or_path={checkpoint} in place of resume"
            )
        return await load_weights(spec, checkpoint)
    model, tokenizer = await load_weights(spec, None)
    adapt(model, lora, base=spec.model.name_or_path, seed=derive(spec.seed, "lora"))
    if checkpoint is not None:
        load_adapter(model, checkpoint / ADAPTER)
    return model, tokenizer


async def load_weights(spec: RunSpec, source: Path | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer from a folder, or, where there is none, from where the run began."""
    model_spec = spec.model
    if source is None and model_spec.name_or_path == "tiny":
        tokenizer = await tiny_tokenizer(spec, cache=Path("outputs"))
        assert model_spec.tiny is not None
        tiny: PreTrainedModel = build_model(model_spec.tiny, tokenizer, seed=derive(spec.seed, "init"))
        tiny.set_attn_implementation(model_spec.attn_implementation)
        return tiny, tokenizer
    # Weights that are trained are float32; the precision is that of the arithmetic.
    trained = bool({Stage.TRAIN, Stage.WARM_START} & set(spec.stages)) and model_spec.lora is None
    dtype = "float32" if trained else model_spec.dtype
    name_or_path = str(source or model_spec.name_or_path)
    model, tokenizer = load(name_or_path, dtype=dtype, attn_implementation=model_spec.attn_implementation)
    for parameter in model.parameters():
        # Out of the mapped file, whose alignment would change the last bits of a resumed run.
        parameter.data = parameter.data.clone()
    return model, tokenizer
