"""The policy that the KL term holds on to: the weights that GRPO began with, also after a resume."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedModel

from envrl.errors import StageError
from envrl.model.load import load
from envrl.model.tiny import build_model
from envrl.seeds import derive
from envrl.spec import Stage
from envrl.stage.base import Run


async def reference(run: Run) -> PreTrainedModel | None:
    """A model of its own; None where grpo.kl_coef is 0.

    Read from the warm start or model.name_or_path, or drawn again from the seed; never from a checkpoint of
    the training itself. Raises StageError where resume=<path> names a run whose warm start is gone.
    """
    if run.spec.grpo.kl_coef == 0:
        return None
    spec, agent = run.spec.model, await run.agent()
    start = _warm_start(run)
    if start is None and spec.name_or_path == "tiny":
        assert spec.tiny is not None
        model: PreTrainedModel = build_model(spec.tiny, agent.tokenizer, seed=derive(run.spec.seed, "init"))
        model.set_attn_implementation(spec.attn_implementation)
    else:
        source = str(start or spec.name_or_path)
        model, _ = load(source, dtype="float32", attn_implementation=spec.attn_implementation)
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
