"""What vLLM loads into each of its worker processes, by `--worker-extension-cls`.

Importing it registers the weight-transfer backend `file`. A server that envrl does not start needs envrl
beside vLLM, but not what envrl itself requires.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from envrl.engine.vllm.loading import load_into, repack_tied_head


class Worker:
    """Methods that are added to vLLM's worker, for /collective_rpc."""

    model_config: Any

    def load_file(self, path: str) -> None:
        """Loads the weights of a safetensors file."""
        load_into(self, _tensors(path))

    def describe(self, *sizes: str) -> dict[str, Any]:
        """The model's architecture, and these values of its config."""
        config, text = self.model_config.hf_config, self.model_config.hf_text_config
        return {"architecture": (config.architectures or [None])[0]} | {
            name: getattr(text, name, None) for name in sizes
        }


@dataclass
class FileInit(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM may be absent, and is Any then
    """Nothing has to be agreed on."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One update."""

    path: str
    """Of a safetensors file that this process can read."""


class FileEngine(WeightTransferEngine):  # type: ignore[misc]
    """Takes weights from a file: between the same calls as those that come by NCCL."""

    init_info_cls, update_info_cls = FileInit, FileUpdate

    def init_transfer_engine(self, init_info: FileInit) -> None:
        """There is nothing to connect."""

    def start_weight_update(self) -> None:
        """Weights come under the names of a checkpoint, whose layers vLLM fuses."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """vLLM's own waits for an accelerator, which a CPU is not."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: FileUpdate) -> None:
        """Reads the file."""
        self.model.load_weights(_tensors(update_info.path))

    def finish_weight_update(self) -> None:
        """Puts the layers into the form in which they compute."""
        finalize_layerwise_reload(self.model, self.model_config)
        repack_tied_head(self.model)

    def shutdown(self) -> None:
        """There is nothing to close."""


def _tensors(path: str) -> Iterator[tuple[str, Tensor]]:
    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118  # it is no mapping
            yield name, file.get_tensor(name)


if "file" not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine("file", FileEngine)
