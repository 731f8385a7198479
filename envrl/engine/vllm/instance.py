"""One vLLM engine in this process: how it is built, gets weights, and ends without taking others along."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from envrl.engine.vllm.loading import load_into
from envrl.engine.vllm.totals import Totals
from envrl.engine.vllm.transfer import memory_file, write_safetensors
from envrl.errors import ConfigError, EngineError, unknown


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the thread that builds an engine computes."""

    threads: int
    """CPU threads."""
    device: int | None
    """The GPU of this process, which every thread has to be told; None without one."""
    in_launch: bool
    """Whether this process belongs to a process group that is not vLLM's."""


class Instance:
    """Lives on the thread that builds it."""

    def __init__(self, arguments: dict[str, Any], place: Place, totals: Totals) -> None:
        """`arguments` are EngineArgs'; `totals` hears of every step."""
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        if place.device is not None:
            torch.cuda.set_device(place.device)
        torch.set_num_threads(place.threads)
        self._place = place
        # vLLM seeds these anew and, on a CPU, makes set_num_threads do nothing.
        kept = random.getstate(), np.random.get_state(), torch.get_rng_state(), torch.set_num_threads
        try:
            self.engine = LLMEngine.from_engine_args(
                EngineArgs(**arguments), stat_loggers=[lambda *_: totals]
            )
        finally:
            random.setstate(kept[0])
            np.random.set_state(kept[1])
            torch.set_rng_state(kept[2])
            torch.set_num_threads = kept[3]
        cache = self.engine.vllm_config.cache_config
        self.kv_tokens = int(cache.num_gpu_blocks * cache.block_size)

    def push(self, weights: Iterable[tuple[str, Tensor]], *, wake: bool) -> None:
        """Takes weights, under a checkpoint's names, and forgets what was cached under the old ones.

        With `wake`, keys and values get their memory back between the two. Nothing may run.
        """
        if self.engine.vllm_config.parallel_config.world_size == 1:
            self.engine.collective_rpc(lambda worker: load_into(worker, weights))
        else:  # the workers are processes of their own
            with memory_file() as (file, path):
                write_safetensors(file, weights, self.engine.model_config.dtype)
                self.engine.collective_rpc("load_file", args=(path,))
        if wake:
            self.engine.wake_up(["kv_cache", "scheduling"])
        if not self.engine.reset_prefix_cache():
            raise EngineError("the prefix cache was in use while the weights changed")

    def shut_down(self) -> None:
        """Ends vLLM's engine, but not the process group of the launch, which it would take along."""
        import vllm.v1.engine.core as core
        from vllm.distributed.parallel_state import destroy_model_parallel

        cleanup = core.cleanup_dist_env_and_memory
        if self._place.in_launch:
            core.cleanup_dist_env_and_memory = lambda *_, **__: destroy_model_parallel()
        try:
            with suppress(Exception):  # a dead engine may fail again
                self.engine.engine_core.shutdown()
        finally:
            core.cleanup_dist_env_and_memory = cleanup


def judge(arguments: dict[str, Any]) -> None:
    """Raises ConfigError for a name that is none of vLLM's."""
    from vllm import EngineArgs

    known = [name for name in EngineArgs.__dataclass_fields__ if not name.startswith("_")]
    for name in arguments.keys() - set(known):
        raise ConfigError(f"{unknown('vllm_mode.args', name, known)}; mend: leave it out")
