"""New weights for a running vLLM worker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn


def load_into(worker: Any, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Loads checkpoint-named tensors into a vLLM worker, as its model loader would.

    Loading straight into the module fails on a CPU, where linear layers hold packed copies alone.
    """
    worker.reload_weights(weights_iterator=iter(weights))
    repack_tied_head(worker.get_model())


def repack_tied_head(model: nn.Module) -> None:
    """On a CPU, vLLM packs the output head anew, except where it is tied to the embedding."""
    head = getattr(model, "lm_head", None)
    if head is not None and hasattr(head, "cpu_linear") and not head.weight.is_meta and head.weight.numel():
        head.quant_method.process_weights_after_loading(head)
