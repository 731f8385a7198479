"""The model's forward pass over packed tokens, with attention over our cache.

transformers lets an attention implementation be registered by name; ours is an operator of torch, so that a
pass can also be traced. On a CPU a small model spends most of a pass in Python, and replaying a trace
halves that. A trace is used only where it gave the very same logits as the model itself, on passes of
other shapes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from envrl.engine.kv import KVCache, Pass
from envrl.errors import ConfigError

T = TypeVar("T")
_ATTENTION = "envrl"
torch.library.define(
    "envrl::attend", "(Tensor query, Tensor key, Tensor value, int layer, float scale) -> Tensor"
)
_UNSUPPORTED = {
    "sliding_window", "softcap", "s_aux", "sinks", "position_bias", "indices", "block_indices",
}  # fmt: skip
"""Keyword arguments by which models ask for attention of another kind."""
_current: list[Pass] = []
"""The pass that runs; operators of torch take no Python objects."""


Replay = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Token ids 1 x N, positions 1 x N and the R wanted tokens' indices to logits R x V."""


class Forward:
    """Runs passes over a module that is shared with a trainer.

    Between `borrow` and `give_back` the module may be in eval mode and under our attention; one that can be
    traced is so only while it is traced. Raises ConfigError for a model whose layers are not all plain
    causal attention.

    Every pass has an `autocast()` of its own: the casts of weights that autocast keeps end with it, so a pass
    sees every update, and the update never sees casts that were made without gradients.
    """

    def __init__(
        self, model: PreTrainedModel, autocast: Callable[[], AbstractContextManager[object]]
    ) -> None:
        config = model.config.get_text_config(decoder=True)
        others = set(getattr(config, "layer_types", None) or []) - {"full_attention"}
        if others:
            raise ConfigError(_refusal(model, f"has {', '.join(sorted(others))} layers"))
        if getattr(config, "max_position_embeddings", None) is None:
            raise ConfigError(_refusal(model, "states no max_position_embeddings"))
        self.layers: int = config.num_hidden_layers
        self.sizes: dict[int, int] = {}
        """What KVCache wants to know of the model; empty before the first `borrow`."""
        self._model = model
        self._autocast = autocast
        self._traced: Replay | None = None
        self._weights: list[object] = []
        self._borrowed = False
        self._found: tuple[list[torch.nn.Module], str] | None = None
        """Modules to put back into training mode, and the attention to restore."""

    @torch.inference_mode()
    def borrow(self) -> None:
        """Makes ready for passes."""
        if self._borrowed:
            return
        self._borrowed = True
        # a trace holds on to the tensors themselves: it sees their values change, not another tensor
        tensors = [*self._model.parameters(), *self._model.buffers()]
        weights: list[object] = [(id(tensor), tensor.dtype, tensor.device) for tensor in tensors]
        if self._traced is None or weights != self._weights:
            self._take()
        if weights != self._weights:
            self._traced = self._trace()
            self._weights = weights
        if self._traced is not None:
            self._restore()

    def give_back(self) -> None:
        """Leaves the module as it was found."""
        self._borrowed = False
        self._restore()

    def __call__(self, kv_pass: Pass, wanted: list[int]) -> Tensor:
        """Logits of the wanted tokens of the pass, R x V, in float32."""
        wanted_R = torch.tensor(wanted, dtype=torch.long).to(kv_pass.ids_1N.device)
        return self._run(self._traced or self._eager, kv_pass, wanted_R).float()

    def _run(self, forward: Callable[[Tensor, Tensor, Tensor], T], kv_pass: Pass, wanted_R: Tensor) -> T:
        _current.append(kv_pass)
        try:
            # without optimized execution: it would fuse anew for every shape
            with self._autocast(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
                return forward(kv_pass.ids_1N, kv_pass.positions_1N, wanted_R)
        finally:
            _current.pop()

    def _eager(self, ids_1N: Tensor, positions_1N: Tensor, wanted_R: Tensor) -> Tensor:
        output = self._model(
            input_ids=ids_1N, position_ids=positions_1N, use_cache=False, logits_to_keep=wanted_R
        )
        logits_RV: Tensor = output.logits[0]
        return logits_RV

    def _take(self) -> None:
        training = [module for module in self._model.modules() if module.training]
        self._found = training, self._model.config._attn_implementation
        self._model.train(False)
        self._model.set_attn_implementation(_ATTENTION)
        if self._model.config._attn_implementation != _ATTENTION:
            raise ConfigError(_refusal(self._model, "does not let its attention be replaced"))

    def _restore(self) -> None:
        if self._found is not None:
            training, attention = self._found
            self._found = None
            for module in training:
                module.training = True
            self._model.set_attn_implementation(attention)

    def _trace(self) -> Replay | None:
        """A trace that does as the model does on other shapes too; None where there is none.

        Only a CPU has traces: on a GPU they were never tried, and large models gain least.
        """
        first, *others = (self._trial(counts) for counts in ([4, 3], [1], [1, 1, 5]))
        wanted_R = torch.tensor([3, 6], device=first.ids_1N.device)
        logits_RV = self._run(self._eager, first, wanted_R)
        if len(first.layers) < self.layers or len(logits_RV) != len(wanted_R):
            raise ConfigError(_refusal(self._model, "has layers of another kind"))
        if first.ids_1N.device.type != "cpu":
            return None
        with warnings.catch_warnings(record=True) as caught, _unpadded(self._model):
            warnings.simplefilter("always")
            try:
                traced = self._run(partial(_traced, self._model, self._eager), first, wanted_R)
            except RuntimeError:
                return None
        if any(warning.category.__name__ == "TracerWarning" for warning in caught):
            return None  # Python looked at values, which the trace has frozen
        return traced if all(self._agree(traced, other) for other in others) else None

    def _agree(self, traced: Replay, trial: Pass) -> bool:
        wanted_R = torch.tensor([0, trial.ids_1N.shape[1] - 1], device=trial.ids_1N.device)
        expected_RV = self._run(self._eager, trial, wanted_R)
        return torch.equal(self._run(traced, trial, wanted_R), expected_RV)

    def _trial(self, counts: list[int]) -> Pass:
        cache = KVCache(self.sizes)
        cache.reserve(len(counts), max(counts))
        size, device = self._model.config.get_text_config(decoder=True).vocab_size, self._model.device
        tokens = [7 * index % size for index in range(sum(counts))]
        cached = [0] * len(counts)
        return Pass(cache, tokens, cached=cached, counts=counts, singles=counts.count(1), device=device)


@contextmanager
def _unpadded(model: PreTrainedModel) -> Iterator[None]:
    """Embeddings forget their padding, which only gradients need: torch compares it with a size in Python."""
    embeddings = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    paddings = [embedding.padding_idx for embedding in embeddings]
    try:
        for embedding in embeddings:
            embedding.padding_idx = None
        yield
    finally:
        for embedding, padding in zip(embeddings, paddings, strict=True):
            embedding.padding_idx = padding


def _traced(model: PreTrainedModel, forward: Replay, *example: Tensor) -> Replay:
    class Weights(torch.nn.Module):
        """Owns the tensors, so that a trace refers to them; not the modules, which it would look into."""

        def forward(self, ids_1N: Tensor, positions_1N: Tensor, wanted_R: Tensor) -> Tensor:
            return forward(ids_1N, positions_1N, wanted_R)

    weights = Weights()
    for index, parameter in enumerate(model.parameters()):
        weights.register_parameter(f"parameter_{index}", parameter)
    for index, buffer in enumerate(model.buffers()):
        weights.register_buffer(f"buffer_{index}", buffer)
    replay: Replay = torch.jit.trace(weights.eval(), example, check_trace=False)  # type: ignore[no-untyped-call]
    return replay


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **extras: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: 1 x heads x N x D in, 1 x N x H x D out."""
    asked = sorted(name for name in _UNSUPPORTED & extras.keys() if extras[name] is not None)
    if attention_mask is not None:
        asked.append("a mask of its own")
    if asked:
        raise ConfigError(_refusal(module, f"asks for {', '.join(asked)}"))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return torch.ops.envrl.attend(query, key, value, module.layer_idx, scale), None


@torch.library.impl("envrl::attend", "default")
def _attend(query: Tensor, key: Tensor, value: Tensor, layer: int, scale: float) -> Tensor:
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        # rotary embeddings leave float32 behind, which autocast's own attention casts just so
        query, key, value = (tensor.to(torch.get_autocast_dtype(kind)) for tensor in (query, key, value))
    query_NHD, key_NKD, value_NKD = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return _current[-1].attend(layer, query_NHD, key_NKD, value_NKD, scale)[None]


def _refusal(model: torch.nn.Module, reason: str) -> str:
    what = f"vllm_mode=none needs plain causal attention in every layer, and {type(model).__name__} {reason}"
    return f"model.name_or_path: {what}; mend: model.name_or_path=<a plain one, such as Qwen3 or Llama 3>"


AttentionInterface.register(_ATTENTION, _attention)
