"""The policy that the KL term holds on to: the weights that GRPO began with, also after a resume."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedModel

from envrl.errors import StageError
from envrl.model.lora import ADAPTER, keep_start
from envrl.spec import Stage
from envrl.stage.base import Run
from envrl.stage.loading import load_weights


async def reference(run: Run) -> PreTrainedModel | None:
    """A frozen model, or with adapters the agent's own, which knows where it began; None without a KL term.

    Read from the warm start or model.name_or_path, or drawn again from the seed; never from a checkpoint of
    the training itself. Raises StageError where resume=<path> names a run whose warm start is gone.
    """
    if run.spec.grpo.kl_coef == 0:
        return None
    start = _warm_start(run)
    if run.spec.model.lora is not None:
        own = (await run.agent()).model
        keep_start(own, start / ADAPTER if start else None)
        return own
    model, _ = await load_weights(run.spec, start)
    run.synchronize(model.to(run.accelerator.device))
    return model


def _warm_start(run: Run) -> Path | None:
    """Where the weights lie that a warm start made, of this run or of the one that it resumes."""
    folders = [run.warm_start_folder]
    if run.spec.resume not in ("auto", "never"):
        folders.append(Path(run.spec.resume).resolve().parent / run.warm_start_folder.name)
    for folder in folders:
        if folder.exists():
            return folder
    if run.spec.model.warm_start is not None and Stage.WARM_START in run.spec.stages:
        raise StageError(
            f"grpo.kl_coef={run.spec.grpo.kl_coef:g}: the weights that GRPO began with are not at "
            f"{folders[-1]}; bring the warm start there, or give grpo.kl_coef=0"
        )
    return None
