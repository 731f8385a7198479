"""Which engine samples, and how vLLM is run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from envrl.spec.base import Count, Positive, Rate, Seconds, Spec


class TransformersSpec(Spec):
    """transformers samples, in the trainer's process and on its weights."""

    kind: Literal["none"]
    kv_cache_gib: Rate | None
    """For keys and values; None: half of what a GPU has left, a quarter of a CPU's memory."""


class VllmSpec(Spec):
    """What both ways of running vLLM share; where envrl does not start the server, these are its own."""

    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)]
    """Share of each GPU's memory that vLLM may take, weights included."""
    kv_cache_gib: Rate | None
    """For keys and values; None: what gpu_memory_utilization leaves, on a CPU a quarter of a GiB."""
    tensor_parallel_size: Positive
    """GPUs that share one engine."""
    max_model_len: Positive | None
    """Longest context in tokens; None: the model's own."""
    max_num_seqs: Positive | None
    """Requests in one forward pass; None: vLLM's default."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"]
    """auto: model.dtype."""
    quantization: Annotated[str, Field(min_length=1)] | None
    """A method of vLLM's that quantizes while it loads, such as fp8."""
    enforce_eager: bool | None
    """No CUDA graphs and no compilation; None: true on a CPU alone."""
    args: dict[str, Any]
    """Any other of vLLM's engine arguments, by its Python name."""


class ColocateSpec(VllmSpec):
    """vLLM in the trainer's process."""

    kind: Literal["colocate"]
    sleep: bool
    """Frees vLLM's memory while the weights are updated (level 1); for GPUs."""


class ServerSpec(VllmSpec):
    """One or several `vllm serve` processes."""

    kind: Literal["server"]
    url: list[str]
    """Of running servers; empty with launch=true."""
    launch: bool
    """envrl starts the servers on this machine and ends them."""
    replicas: Positive
    """Servers to launch."""
    gpus: list[Count] | None
    """What the launched servers run on, tensor_parallel_size each; None leaves the choice to vLLM."""
    transfer: Literal["auto", "nccl", "file"]
    """How weights travel; auto: nccl from a GPU, else a file in shared memory."""
    start_timeout_s: Seconds
    """For a launched server to be up."""
    retry_timeout_s: Seconds
    """How long a server may not answer: at the start (url), in a turn, and before it counts as lost."""


VllmModeSpec = TransformersSpec | ColocateSpec | ServerSpec
"""Which engine samples."""
