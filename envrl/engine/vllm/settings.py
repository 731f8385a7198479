"""What the settings of vllm_mode must hold together. Importing this loads no vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import yaml

from envrl.addresses import is_address
from envrl.launch import world_size
from envrl.shipped import CONF
from envrl.spec import ColocateSpec, RunSpec, ServerSpec, TransformersSpec, VllmSpec

_COLDEST, _HOTTEST = 0.01, 2.0  # vLLM quietly raises what is colder


def broken(spec: RunSpec) -> Iterator[str]:
    """A line per broken rule: what is wrong, the value, and the override that mends it."""
    vllm = spec.vllm_mode
    if isinstance(vllm, TransformersSpec):
        return
    yield from _temperatures(spec)
    if isinstance(vllm, ColocateSpec) or vllm.launch:
        yield from _start(spec, vllm)
    if isinstance(vllm, ColocateSpec):
        yield from _colocate(vllm)
    else:
        yield from _server(vllm)


def _temperatures(spec: RunSpec) -> Iterator[str]:
    for path, temperature in (
        ("grpo.temperature", spec.grpo.temperature),
        ("evaluate.temperature", spec.evaluate.temperature),
    ):
        if temperature and not _COLDEST <= temperature <= _HOTTEST:
            must = f"vLLM takes 0 and {_COLDEST:g} to {_HOTTEST:g}"
            yield f"{path}: {must} (got {temperature:g}); mend: {path}=1, or vllm_mode=none"


def _start(spec: RunSpec, vllm: VllmSpec) -> Iterator[str]:
    """What a vLLM that envrl starts needs."""
    if find_spec("vllm") is None:
        mend = "pip install -e '.[vllm]', or vllm_mode=none"
        yield f"vllm_mode={spec.vllm_mode.kind}: vllm is not installed; mend: {mend}"
    length, tokens = vllm.max_model_len, spec.scheduler.max_tokens
    if length is not None and length <= tokens:
        must = f"an episode needs a prompt beside its scheduler.max_tokens={tokens}"
        mend = "vllm_mode.max_model_len=null, or a smaller scheduler.max_tokens"
        yield f"vllm_mode.max_model_len: {must} (got {length}); mend: {mend}"


def _colocate(vllm: ColocateSpec) -> Iterator[str]:
    world = world_size()
    if vllm.tensor_parallel_size > 1 and world > 1:
        yield (
            f"vllm_mode.tensor_parallel_size: every rank of a launch has an engine on its own GPU "
            f"(got {vllm.tensor_parallel_size} with {world} ranks); mend: vllm_mode=server"
        )


def _server(vllm: ServerSpec) -> Iterator[str]:
    if vllm.launch == bool(vllm.url):
        yield (
            f"vllm_mode.url: either servers that run or launch=true (got {vllm.url}, launch={vllm.launch}); "
            "mend: vllm_mode.url=[http://...] or vllm_mode.launch=true"
        )
    for url in vllm.url:
        if not is_address(url, "http|https"):
            must = f"must be http:// or https:// and a host (got {url!r})"
            yield f"vllm_mode.url: {must}; mend: vllm_mode.url=[http://host:port]"
        elif url.rstrip("/").endswith("/v1"):
            mend = f"vllm_mode.url=[{url.rstrip('/').removesuffix('/v1')}]"
            yield f"vllm_mode.url: is the server's root, without /v1 (got {url!r}); mend: {mend}"
    if len({url.rstrip("/") for url in vllm.url}) < len(vllm.url):
        once = ",".join(dict.fromkeys(url.rstrip("/") for url in vllm.url))
        yield f"vllm_mode.url: a server stands more than once (got {vllm.url}); mend: vllm_mode.url=[{once}]"
    if vllm.launch:
        yield from _gpus(vllm)
    elif vllm.url:
        yield from _foreign(vllm)


def _gpus(vllm: ServerSpec) -> Iterator[str]:
    """Each launched server has its GPUs to itself."""
    gpus, size, needed = vllm.gpus, vllm.tensor_parallel_size, vllm.replicas * vllm.tensor_parallel_size
    if gpus is not None and not len(gpus) == len(set(gpus)) == needed:
        need = f"replicas={vllm.replicas} of tensor_parallel_size={size} need {needed} GPUs, each once"
        fit = len(set(gpus)) // size
        mend = f"vllm_mode.replicas={fit}" if fit else "vllm_mode.gpus=null"
        yield f"vllm_mode.gpus: {need} (got {gpus}); mend: {mend}"


def _foreign(vllm: ServerSpec) -> Iterator[str]:
    """What servers that run already were started with is not envrl's to set."""
    shipped = yaml.safe_load((CONF / "vllm_mode" / "server.yaml").read_text("utf-8"))
    for name in [*VllmSpec.model_fields, "replicas", "gpus"]:
        if (value := getattr(vllm, name)) != shipped[name]:
            mend = f"leave out vllm_mode.{name}, or vllm_mode.launch=true"
            yield f"vllm_mode.{name}: the server at url has its own (got {value!r}); mend: {mend}"
    if (value := vllm.start_timeout_s) != shipped["start_timeout_s"]:
        shown = f"is for launched servers (got {value:g})"
        yield f"vllm_mode.start_timeout_s: {shown}; mend: vllm_mode.retry_timeout_s={value:g}"
