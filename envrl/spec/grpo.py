"""How the policy is updated."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from envrl.spec.base import Count, Positive, Rate, Share, Spec


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
