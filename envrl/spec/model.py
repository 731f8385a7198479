"""The model, its adapters and its warm start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from envrl.spec.base import Count, Positive, Rate, Share, Spec


class TinySpec(Spec):
    """Shape of the embedded Qwen3, and the size of its tokenizer's vocabulary."""

    hidden_size: Positive
    intermediate_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    num_key_value_heads: Positive
    head_dim: Positive
    max_position_embeddings: Positive
    initializer_range: Rate
    """Standard deviation of the drawn weights; narrow models learn sooner from wider ones."""
    vocab_size: Annotated[int, Field(ge=300)]


class WarmStartSpec(Spec):
    """Supervised fine-tuning on games that the environments' solvers play."""

    steps: Positive
    batch_size: Positive
    """Games per optimizer step."""
    learning_rate: Rate
    noise: Share
    """Chance that the solver strays by a random action: what follows is learned, the straying is not."""
    require_success: bool
    """Learn from solved games only."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    warmup_steps: Count = 0


class LoraSpec(Spec):
    """Adapters of low rank, trained in place of the weights (arXiv:2106.09685)."""

    rank: Positive = 16
    alpha: Rate = 32.0
    """What an adapter adds is scaled by alpha / rank."""
    rslora: bool = False
    """Scale by alpha / √rank instead (arXiv:2312.03732)."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Chance that an adapter misses an input; in training alone, not in what the engine samples with."""
    targets: Annotated[list[str], Field(min_length=1)] | None = None
    """Layers by the end of their names, such as q_proj; None: all linear ones but the head."""


class ModelSpec(Spec):
    """The weights, and how they are rendered and run."""

    name_or_path: str
    """`tiny` (built here from `tiny`), a local path, or a Hugging Face id."""
    dtype: Literal["float32", "bfloat16", "float16"]
    attn_implementation: Literal["eager", "sdpa", "flash_attention_2"]
    gradient_checkpointing: bool
    chat_template_kwargs: dict[str, Any]
    """Settings of the chat template, such as enable_thinking."""
    tiny: TinySpec | None = None
    lora: LoraSpec | None = None
    """None trains all weights."""
    warm_start: WarmStartSpec | None
    """None skips the stage."""

    @property
    def label(self) -> str:
        """The last part of the name, for run names and tables."""
        return Path(self.name_or_path).name.lower()
