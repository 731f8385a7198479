"""RunSpec: everything about a run, typed and frozen. One model per YAML group.

compose.py is the only door: it turns a Hydra composition into plain data and has this module judge it.
Numbers carry their unit in the name where it helps (`_s`, `_tokens`). Defaults live in conf/, except
for those of `env.<key>`, which every environment's file would otherwise repeat, and of `model.lora`, which is
null there.
"""

from __future__ import annotations

import json
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
Rate = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Spec(BaseModel):
    """Frozen, and a typo is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True, allow_inf_nan=False)


class Stage(StrEnum):
    """One file of envrl/stage/ each."""

    CHECK = "check"
    WARM_START = "warm_start"
    EVALUATE = "evaluate"
    TRAIN = "train"
    REPORT = "report"


class Backend(StrEnum):
    """Where an environment runs."""

    IN_PROCESS = "in_process"
    SERVER = "server"
    URL = "url"
    DOCKER = "docker"


class SchedulerKind(StrEnum):
    """Which loop drives an episode."""

    TOOL_CALLING = "tool_calling"
    GYM = "gym"
    HARNESS = "harness"


class SessionSpec(Spec):
    """Sessions of an OpenEnv server; for every backend but in_process."""

    capacity: Positive | None = None
    """At once; None: as many as a training step has episodes."""
    open_timeout_s: Seconds = 300
    """For starting the server, and for a session to become free."""
    ping_interval_s: Seconds | None = None
    """Of WebSocket keepalive; None sends none, so that a server that computes for long is not cut off."""


class EnvSpec(Spec):
    """One environment of the mixture; its key is free, `kind` says which environment it is.

    What one backend alone uses stands here flat, so that `env.<key>.url=...` is all there is to type;
    rules.py refuses it elsewhere.
    """

    kind: str
    """A name of envrl.env.REGISTRY or of a plugin, or `custom` together with `target`."""
    target: str | None = None
    """For kind=custom: a class, ours or for TRL or ms-swift, by import path or by a plugin's name."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Share of the groups of a step, relative to the other environments' weights."""
    backend: Backend = Backend.IN_PROCESS
    args: dict[str, Any] = {}
    """Keyword arguments of the environment's class."""
    max_turns: Positive | None = None
    """Overrides scheduler.max_turns here."""
    scheduler: SchedulerKind | None = None
    """Overrides the scheduler's kind here."""
    url: str | None = None
    """Of a running OpenEnv server; for backend=url."""
    image: str | None = None
    """Of a container that runs an OpenEnv server; for backend=docker."""
    adapter: str = "auto"
    """How the server behind `url` or `image` speaks: a name of envrl.env.openenv.adapters, or auto."""
    sessions: SessionSpec = SessionSpec()
    dataset: str | None = None
    """A .jsonl or .parquet file, or a name on the hub. Rows go to reset(**row); every tenth is held out."""
    prompt: str | None = None
    """Replaces the environment's own instructions."""
    reward: list[str] = ["env"]
    """Reward terms of this environment; reward.terms overrides them."""


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
    quantization: str | None
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
    """How long a turn waits for a server that does not answer."""


VllmModeSpec = TransformersSpec | ColocateSpec | ServerSpec
"""Which engine samples."""


class RewardSpec(Spec):
    """Reward terms of the whole run."""

    terms: list[str] | None
    """None: each environment's own env.<key>.reward. A term is a name or `package.module:function`."""
    weights: dict[str, float] | list[float] | None
    """By term, 1 where a term is not named; or one per term, in the order of `terms`."""

    def weight_of(self, terms: list[str]) -> dict[str, float]:
        """The weight of each term."""
        if isinstance(self.weights, list):
            return dict(zip(terms, self.weights, strict=True))
        return {term: (self.weights or {}).get(term, 1.0) for term in terms}


class SchedulerSpec(Spec):
    """How an episode is driven, and its limits. `null` means no limit; 0 is refused."""

    kind: SchedulerKind
    target: str | None
    """A scheduler in place of this kind's loop: an import path, ms-swift's included, or a plugin's name."""
    max_turns: Positive | None
    max_tokens: Positive
    """Of one episode: all turns and observations after the prompt."""
    max_turn_tokens: Positive | None
    continue_on_length: bool
    """A turn cut short by its length goes on with the next observation instead of ending the episode."""
    step_timeout_s: Seconds | None
    episode_timeout_s: Seconds | None
    tools_visible: Literal["own", "all"]
    """Whether the model sees only its environment's tools or those of the whole mixture."""
    after_done: Literal["stop", "speak"]
    """`speak` lets the model say one more thing after the environment ended the episode."""


class RolloutSpec(Spec):
    """How the episodes of a step are run."""

    retries: Count
    """Fresh attempts for an episode that the world broke."""
    min_inflight: Positive
    """Episodes at once that the engine's memory is never taken to be too small for; max_inflight wins."""
    max_inflight: Positive | None
    """Episodes at once; None: as many as the engine's memory for keys and values carries."""
    max_error_rate: Share
    """The run stops when more than this share of a step's episodes ended as `error`."""


class MismatchSpec(Spec):
    """Importance weights for what the engine computes differently from the trainer."""

    level: Literal["token", "sequence"]
    """A weight for each token, or one for the whole row: the product of its tokens'."""
    beyond: Literal["truncate", "mask"]
    """A weight beyond the bounds becomes the bound, or 0."""
    floor: Annotated[float, Field(ge=0, lt=1)]
    cap: Annotated[float, Field(gt=1)]


class GrpoSpec(Spec):
    """Group-relative policy optimisation. A step rolls out a batch of groups and trains on it."""

    steps: Positive
    num_generations: Annotated[int, Field(ge=2)]
    """Episodes per group."""
    groups_per_step: Positive
    """Over all ranks."""
    passes: Positive
    """Over a step's episodes."""
    mini_batches: Positive
    """Parts that the episodes are split into, one optimizer step each; times `passes`."""
    optimizer: Literal["adamw", "adamw_8bit"]
    """Of the warm start, too; adamw_8bit needs bitsandbytes."""
    learning_rate: Rate
    lr_schedule: Literal["constant", "cosine"]
    warmup_steps: Count
    weight_decay: Annotated[float, Field(ge=0)]
    max_grad_norm: Rate
    loss: Literal["grpo", "dapo", "dr_grpo", "bnpo", "gspo", "cispo"]
    """A name of envrl.grpo.loss.VARIANTS, where each has its source."""
    clip_low: Rate
    clip_high: Rate
    """How far the ratio to the step's first policy may go from 1; idle with one update per step."""
    clip_delta: Rate | None
    """The ratio's bound where the advantage is negative, too; None: it has none there."""
    kl_coef: Annotated[float, Field(ge=0)]
    """Of the KL to the weights that GRPO began with; 0: they are not loaded."""
    entropy_coef: Annotated[float, Field(ge=0)]
    """Of the mean entropy, which is added to what is maximised."""
    mismatch: MismatchSpec | None
    """None switches the correction off."""
    off_policy_mask: Rate | None
    """Drift from the engine's policy, in nats per token, above which rows that did badly are left out."""
    credit: Literal["episode", "turn"]
    """One advantage for an episode, or one per turn, from the environment's rewards from there on."""
    scale_rewards: Literal["group", "batch", "none"]
    """Whose standard deviation advantages are divided by."""
    flat_groups: Literal["count", "drop"]
    """Whether groups of equal rewards, which teach nothing, count in the loss's denominator."""
    mask_truncated: bool
    """Leave episodes out of the loss that a limit cut short."""
    overlong_buffer: Share
    """Last share of scheduler.max_tokens, over which the reward falls by up to 1; 0: it does not."""
    micro_batch_tokens: Positive
    """Per forward pass: padded ones, or distinct ones where prompts are shared."""
    share_prompts: Literal["auto", True, False]
    """Compute once what rows have in common from their start; auto: where it pays and the model allows it."""
    temperature: Annotated[float, Field(gt=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: Count
    min_p: Share
    staleness: Count


class EvaluateSpec(Spec):
    """Play on held-out tasks."""

    episodes: Positive
    """Tasks, over all environments by weight."""
    samples: Positive
    """Episodes per task; above 1, avg@k and pass@k are reported."""
    temperature: Annotated[float, Field(ge=0)]
    """0 plays greedily."""
    seed: int
    """Of the held-out tasks; runs with the same one are compared on the same tasks."""
    every: Positive | None
    """Evaluate also during training, every so many steps, and keep the best checkpoint."""


class CheckSpec(Spec):
    """The preflight."""

    require_signal: bool
    """Whether a model whose groups never differ in reward stops the run."""
    groups: Count
    """Groups that the model plays to measure the learning signal; 0 skips it."""


class CheckpointSpec(Spec):
    """What is kept on disk while training, and where it goes in the end."""

    every: Positive | None
    keep: Positive
    push_to_hub: str | None
    """The hub's repository for the trained model, `owner/name`; made private where it is new."""


class SweepSpec(Spec):
    """Not built yet."""

    retries: Count
    objective: str
    dry_run: bool


class RunSpec(Spec):
    """One run."""

    seed: Count
    name: str
    output_dir: Path
    """The run directory itself."""
    stages: Annotated[list[Stage], Field(min_length=1)]
    resume: str
    """auto, never, or the path of a checkpoint."""
    plugins: list[str]
    """Modules or .py files imported before the rest is judged."""
    threads: Annotated[int, Field(ge=1, le=1024)]
    """CPU threads of torch; part of the spec because results depend on them."""
    env: Annotated[dict[str, EnvSpec], Field(min_length=1)]
    model: ModelSpec
    vllm_mode: Annotated[VllmModeSpec, Field(discriminator="kind")]
    reward: RewardSpec
    scheduler: SchedulerSpec
    rollout: RolloutSpec
    grpo: GrpoSpec
    evaluate: EvaluateSpec
    check: CheckSpec
    checkpoint: CheckpointSpec
    tracker: list[str]
    sweep: SweepSpec

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of all that shapes the results: equal digests, equal runs."""
        return digest(self.model_dump(mode="json"))

    @property
    def plays(self) -> bool:
        """Whether any stage plays episodes."""
        return set(self.stages) != {Stage.REPORT}

    @property
    def evaluates(self) -> bool:
        """Whether held-out tasks are played, in a stage of their own or during training."""
        return Stage.EVALUATE in self.stages or (Stage.TRAIN in self.stages and bool(self.evaluate.every))

    def scheduler_of(self, env: str) -> SchedulerSpec:
        """The scheduler's settings with the environment's own overrides."""
        own = self.env[env]
        changes = {"kind": own.scheduler, "max_turns": own.max_turns}
        return self.scheduler.model_copy(update={k: v for k, v in changes.items() if v is not None})


UNDIGESTED = {"name", "output_dir", "resume", "tracker", "sweep"}
_WHERE = {"url", "launch", "replicas", "gpus", "transfer", "start_timeout_s", "retry_timeout_s"}
"""Of vllm_mode: where the servers are changes nothing about what they sample."""


def digest(spec: dict[str, Any]) -> str:
    """Digest of a spec as plain data."""
    judged = {key: value for key, value in spec.items() if key not in UNDIGESTED}
    judged["vllm_mode"] = {k: v for k, v in spec["vllm_mode"].items() if k not in _WHERE}
    judged["checkpoint"] = {k: v for k, v in spec["checkpoint"].items() if k != "push_to_hub"}
    return sha256(json.dumps(judged, sort_keys=True).encode()).hexdigest()
