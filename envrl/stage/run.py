"""What the stages of one run share: the spec, where things are written, and the policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from envrl.engine.base import Engine, Sampling
from envrl.engine.transformers import TransformersEngine
from envrl.env.base import Face
from envrl.grpo import checkpoints
from envrl.model.chat import Chat
from envrl.model.load import end_ids, load
from envrl.model.tiny import build_model
from envrl.progress import Progress
from envrl.rollout.corpus import tiny_tokenizer
from envrl.rollout.runner import Runner
from envrl.rollout.trajectory import Episode
from envrl.seeds import derive
from envrl.spec import RunSpec, Stage
from envrl.summary import Summary, machine
from envrl.tracking import Tracker

T = TypeVar("T")


@dataclass
class Policy:
    """The model that is trained, how it is spoken to, and the engine that samples from it."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    chat: Chat
    engine: Engine

    def engine_of(self, episode: Episode, face: Face) -> Engine:
        """Every episode is played by the one engine."""
        return self.engine

    async def sync(self, version: int) -> None:
        """Hands the trained weights to the engine."""
        await self.engine.load_weights(self.weights(), version)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and value of every parameter."""
        return ((name, value.detach()) for name, value in self.model.named_parameters())


class Run:
    """One run, as its stages see it."""

    def __init__(
        self, spec: RunSpec, directory: Path, summary: Summary, tracker: Tracker, progress: Progress
    ) -> None:
        self.spec = spec
        self.directory = directory
        self.summary = summary
        self.tracker = tracker
        self.progress = progress
        self._policy: Policy | None = None
        disable_progress_bar()  # transformers' bars would tear ours
        torch.set_num_threads(spec.threads)
        torch.manual_seed(derive(spec.seed, "torch"))

    @cached_property
    def accelerator(self) -> Accelerator:
        """Device, precision and ranks."""
        precision = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}[self.spec.model.dtype]
        accelerator = Accelerator(mixed_precision=precision, cpu=not torch.cuda.is_available())
        where = torch.cuda.get_device_name() if accelerator.device.type == "cuda" else None
        self.summary.machine = machine(where)
        return accelerator

    @property
    def checkpoints(self) -> Path:
        """Where this run's checkpoints lie."""
        return self.directory / "checkpoints"

    @property
    def label(self) -> str:
        """What the policy is by now: `untrained`, `warm_start` or `grpo`."""
        if Stage.TRAIN in self.summary.stages:
            return "grpo"
        warm = Stage.WARM_START in self.summary.stages and self.spec.model.warm_start is not None
        return "warm_start" if warm else "untrained"

    async def policy(self) -> Policy:
        """Loads model and tokenizer on first use, from the newest checkpoint where there is one."""
        if self._policy is None:
            self._policy = await self._load()
        return self._policy

    async def runner(self) -> Runner:
        """Plays episodes with the policy's rendering."""
        return Runner(self.spec, (await self.policy()).chat)

    def sampling(self, temperature: float) -> Sampling:
        """The settings of training rollouts at a temperature; limits and seeds are each episode's own."""
        grpo = self.spec.grpo
        return Sampling(
            max_tokens=self.spec.scheduler.max_tokens,
            temperature=temperature,
            top_p=grpo.top_p,
            top_k=grpo.top_k,
            min_p=grpo.min_p,
        )

    def gather(self, records: list[T]) -> list[T]:
        """What all ranks hold, on every rank."""
        if self.accelerator.num_processes == 1:
            return records
        return gather_object(records)  # type: ignore[no-any-return]

    @property
    def rank(self) -> dict[str, int]:
        """This process's place among those that share the work, as Tasks.groups takes it."""
        return {"rank": self.accelerator.process_index, "world": self.accelerator.num_processes}

    async def close(self) -> None:
        """Frees the engine."""
        if self._policy is not None:
            await self._policy.engine.close()

    async def _load(self) -> Policy:
        spec = self.spec.model
        checkpoint = self.checkpoint()
        if checkpoint is not None or spec.name_or_path != "tiny":
            source = str(checkpoint or spec.name_or_path)
            training = bool({Stage.TRAIN, Stage.WARM_START} & set(self.spec.stages))
            # Weights that are trained stay in float32; the precision is that of the arithmetic.
            dtype = "float32" if training else spec.dtype
            model, tokenizer = load(source, dtype=dtype, attn_implementation=spec.attn_implementation)
        else:
            tokenizer = await tiny_tokenizer(self.spec, cache=Path("outputs"))
            assert spec.tiny is not None
            model = build_model(spec.tiny, tokenizer, seed=derive(self.spec.seed, "init"))
        if spec.gradient_checkpointing:
            model.activation_checkpointing_enable()
        # Bare, on every rank: the trainer sums gradients over ranks itself.
        model = model.to(self.accelerator.device)
        chat = Chat(tokenizer, template_kwargs=spec.chat_template_kwargs, stop_ids=end_ids(model))
        engine = TransformersEngine(model)
        await engine.start()
        return Policy(model, tokenizer, chat, engine)

    def checkpoint(self) -> Path | None:
        """Where the weights are taken up again, if this run or resume=<path> has any."""
        warm = self.checkpoints / "warm_start"
        return self.training_checkpoint() or (warm if warm.exists() else None)

    def training_checkpoint(self) -> Path | None:
        """The newest checkpoint with an optimizer in it: this run's own, else that of resume=<path>."""
        own = checkpoints.latest(self.checkpoints)
        given = None if self.spec.resume in ("auto", "never") else Path(self.spec.resume)
        return own or given
