"""What the stages of one run share: the spec, where things are written, and the agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast, gather_object
from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from envrl.engine.base import Engine, Sampling
from envrl.engine.transformers import TransformersEngine
from envrl.env.base import Face
from envrl.env.sources import sources
from envrl.errors import ConfigError
from envrl.grpo import checkpoints
from envrl.launch import is_main
from envrl.model.chat import Chat
from envrl.model.load import describe, end_ids
from envrl.model.weights import Weights
from envrl.progress import Progress
from envrl.rollout.runner import Runner
from envrl.rollout.tasks import Share
from envrl.rollout.trajectory import Episode
from envrl.seeds import derive
from envrl.spec import ColocateSpec, RunSpec, Stage, TransformersSpec
from envrl.stage.loading import load_agent
from envrl.summary import Summary, machine
from envrl.tracking import Tracker

T = TypeVar("T")


@dataclass
class Agent:
    """The model that is trained, how it is spoken to, and the engine that samples from it."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    chat: Chat
    engine: Engine

    def engine_of(self, episode: Episode, face: Face) -> Engine:
        """Every episode is played by the one engine."""
        return self.engine

    @asynccontextmanager
    async def updating(self, version: int) -> AsyncIterator[None]:
        """The weights change inside: meanwhile the engine makes room, afterwards it takes them."""
        await self.engine.sleep()
        yield
        await self.engine.wake()
        await self.sync(version)

    async def sync(self, version: int) -> None:
        """Hands the weights to the engine."""
        await self.engine.load_weights(Weights(self.model), version)


class Run:
    """One run, as its stages see it."""

    def __init__(self, spec: RunSpec, summary: Summary) -> None:
        self.spec = spec
        self.directory = spec.output_dir
        self.summary = summary
        self.tracker = Tracker(spec.output_dir, writes=is_main())
        self.progress = Progress(None if is_main() else Console(quiet=True))
        self.sources = sources(spec, spec.output_dir)
        self._agent: Agent | None = None
        disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers' bars would tear ours
        torch.set_num_threads(spec.threads)
        torch.manual_seed(derive(spec.seed, "torch"))

    @cached_property
    def accelerator(self) -> Accelerator:
        """Device, precision and ranks."""
        precision = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}[self.spec.model.dtype]
        AcceleratorState._reset_state()  # an earlier run of this process may have had another precision
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
        trained = self.training_checkpoint() or checkpoints.is_trained(Path(self.spec.model.name_or_path))
        if Stage.TRAIN in self.summary.stages or trained:
            return "grpo"
        return "warm_start" if self.warm_started else "untrained"

    @property
    def fresh(self) -> bool:
        """Whether the weights are drawn at random, so that nothing can be expected of them."""
        return self.spec.model.name_or_path == "tiny" and self.checkpoint() is None

    @property
    def warm_started(self) -> bool:
        """Whether the weights come from a warm start, of this run or as model.name_or_path."""
        return self.warm_start_folder.exists() or Path(self.spec.model.name_or_path).name == "warm_start"

    @property
    def warm_start_folder(self) -> Path:
        """Where the warm start leaves its weights."""
        return self.checkpoints / "warm_start"

    async def agent(self) -> Agent:
        """Loads model and tokenizer on first use, from the newest checkpoint where there is one."""
        if self._agent is None:
            self._agent = await self._load()
            await self._agent.engine.start()
            await self._agent.sync(version=0)
        return self._agent

    async def runner(self) -> Runner:
        """Plays episodes with the agent's rendering, where the spec says that the environments run."""
        return Runner(self.spec, (await self.agent()).chat, self.sources)

    async def scripted_runner(self) -> Runner:
        """The same for scripted policies, which look into the environment: it is always in this process."""
        return Runner(self.spec, (await self.agent()).chat)

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

    def synchronize(self, model: PreTrainedModel) -> None:
        """Gives every rank the first one's weights, so that rounding never sets them apart."""
        if self.accelerator.num_processes > 1:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_(broadcast(parameter.data.clone()))

    @property
    def share(self) -> Share:
        """This process's part of the groups, as Tasks.groups takes it."""
        return {"rank": self.accelerator.process_index, "world": self.accelerator.num_processes}

    async def close(self) -> None:
        """Frees the engine and the environments' servers."""
        for source in self.sources.values():
            await source.close()
        if self._agent is not None:
            await self._agent.engine.close()

    async def _load(self) -> Agent:
        spec = self.spec.model
        model, tokenizer = await load_agent(self.spec, self.checkpoint())
        if spec.gradient_checkpointing:
            model.activation_checkpointing_enable()
        # Bare, on every rank: the trainer sums gradients over ranks itself.
        model = model.to(self.accelerator.device)
        self.synchronize(model)
        chat = Chat(tokenizer, template_kwargs=spec.chat_template_kwargs, stop_ids=end_ids(model))
        return Agent(model, tokenizer, chat, self._engine(model, tokenizer))

    def _engine(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Engine:
        """The one that vllm_mode names. Modules that import vLLM are imported for it alone."""
        spec, on_gpu = self.spec.vllm_mode, self.accelerator.device.type == "cuda"
        if isinstance(spec, TransformersSpec):
            return TransformersEngine(
                model, kv_cache_gib=spec.kv_cache_gib, autocast=self.accelerator.autocast
            )
        folder = self.directory / "engine"
        if self.accelerator.is_main_process:
            describe(model, tokenizer, folder)
        self.accelerator.wait_for_everyone()
        dtype, threads = self.spec.model.dtype, self.spec.threads
        if isinstance(spec, ColocateSpec):
            from envrl.engine.vllm.colocate import ColocateEngine

            context = model.config.get_text_config(decoder=True).max_position_embeddings
            return ColocateEngine(
                spec, folder, dtype=dtype, max_context=context, eos=end_ids(model), threads=threads
            )
        from envrl.engine.vllm.server import ServerEngine

        return ServerEngine(
            spec,
            folder,
            directory=self.directory,
            tokenizer=tokenizer,
            eos=end_ids(model),
            dtype=dtype,
            threads=threads,
            min_context=self.spec.scheduler.max_tokens,
            on_gpu=on_gpu,
        )

    def broken_checkpoints(self) -> list[str]:
        """A line per checkpoint of this run that cannot be resumed."""
        return checkpoints.broken(self.checkpoints)

    def checkpoint(self) -> Path | None:
        """Where the weights are taken up again, if this run or resume=<path> has any."""
        warm = self.warm_start_folder
        return self.training_checkpoint() or (warm if warm.exists() else None)

    def training_checkpoint(self) -> Path | None:
        """The newest whole checkpoint with an optimizer in it: this run's own, else that of resume=<path>.

        Raises ConfigError where the latter is broken.
        """
        if own := checkpoints.latest(self.checkpoints):
            return own
        given = None if self.spec.resume in ("auto", "never") else Path(self.spec.resume)
        if given and (reason := checkpoints.fault(given)):
            raise ConfigError(f"resume={given}: {reason}; give another step-N directory")
        return given
