"""The weights of a model as an engine takes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from envrl.model.lora import is_adapted


class Weights:
    """Name and value of every weight as they are now, under the checkpoint's names; adapters are merged.

    Can be walked again and again; tied weights come once.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        if not is_adapted(self.model):
            yield from ((name, value.detach()) for name, value in self.model.named_parameters())
            return
        yield from _merged(self.model)


def _merged(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Of a peft model: every base weight plus its active adapters' deltas, the model itself unchanged."""
    layers = {
        f"{name}.base_layer.": layer for name, layer in model.named_modules() if hasattr(layer, "base_layer")
    }
    for name, value in model.named_parameters():
        if "lora_" in name:
            continue
        value = value.detach()
        owner = next((prefix for prefix in layers if name.startswith(prefix)), None)
        if owner and name == f"{owner}weight":
            layer = layers[owner]
            for adapter in layer.active_adapters:
                value = (value + layer.get_delta_weight(adapter)).to(value.dtype)
        yield name.removeprefix("base_model.model.").replace(".base_layer.", "."), value
