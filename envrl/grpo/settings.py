"""What GRPO's settings must hold together, and which of them bias the estimate."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from envrl.rollout.scoring import terms_of
from envrl.spec import RunSpec


def broken(spec: RunSpec) -> Iterator[str]:
    """A line per broken rule: what is wrong, the value, and the override that mends it."""
    yield from _delta(spec)
    yield from _credit(spec)
    episodes = spec.grpo.num_generations * spec.grpo.groups_per_step
    if spec.grpo.mini_batches > episodes:
        yield (
            f"grpo.mini_batches: a step has {episodes} episodes to split (got {spec.grpo.mini_batches}); "
            f"mend: grpo.mini_batches={episodes}"
        )
    attention = spec.model.attn_implementation
    if spec.grpo.share_prompts is True and attention != "sdpa":
        mend = "grpo.share_prompts=auto, or model.attn_implementation=sdpa"
        yield f"grpo.share_prompts=true: needs attention by sdpa (got {attention}); mend: {mend}"
    if spec.grpo.optimizer == "adamw_8bit" and find_spec("bitsandbytes") is None:
        mend = "pip install -e '.[bitsandbytes]', or grpo.optimizer=adamw"
        yield f"grpo.optimizer=adamw_8bit: bitsandbytes is not installed; mend: {mend}"


def _delta(spec: RunSpec) -> Iterator[str]:
    delta, bound = spec.grpo.clip_delta, 1 + spec.grpo.clip_high
    if delta is None:
        return
    if spec.grpo.loss == "cispo":
        yield f"grpo.clip_delta: cispo has no use for it (got {delta:g}); mend: grpo.clip_delta=null"
    elif delta <= bound:
        yield (
            f"grpo.clip_delta: must be above 1 + grpo.clip_high, which is {bound:g} (got {delta:g}); "
            f"mend: grpo.clip_delta={bound + 1:g}"
        )


def _credit(spec: RunSpec) -> Iterator[str]:
    """Credit by turn needs rewards by turn, and a ratio that tells tokens apart."""
    if spec.grpo.credit == "episode":
        return
    mend = "grpo.credit=episode"
    if spec.grpo.loss == "gspo":
        yield f"grpo.credit: gspo has one ratio for all turns of an episode (got turn); mend: {mend}"
    for key in spec.env:
        terms = terms_of(spec, key)
        if "env" not in terms:
            where = f"env.{key}.reward" if spec.reward.terms is None else "reward.terms"
            shown = f"the environment's own, env, is told by turn (got turn, and {where}=[{','.join(terms)}])"
            yield f"grpo.credit: of all terms only {shown}; mend: {where}=[env], or {mend}"


def biases(spec: RunSpec) -> Iterator[str]:
    """A line per setting with which the estimated gradient is not that of the policy that plays."""
    grpo, mismatch = spec.grpo, spec.grpo.mismatch
    for name, neutral in (("top_p", 1), ("top_k", 0), ("min_p", 0)):
        value = getattr(grpo, name)
        if value != neutral:
            yield (
                f"grpo.{name}={value:g}: episodes are sampled from a part of the vocabulary, and the trainer "
                f"scores tokens under all of it; {_what_is_biased(spec)}; unbiased: grpo.{name}={neutral}"
            )
    if mismatch is None and spec.vllm_mode.kind != "none":
        yield (
            f"grpo.mismatch=null with vllm_mode={spec.vllm_mode.kind}: vLLM's probabilities differ from the "
            "trainer's, and nothing corrects for it"
        )
    if mismatch is not None and (mismatch.level, mismatch.beyond) == ("sequence", "mask"):
        yield (
            "grpo.mismatch.level=sequence with beyond=mask: small differences add up over an episode, so "
            "the longest are left out first; watch mismatch/touched_fraction"
        )
    if spec.model.lora is not None and spec.model.lora.dropout:
        yield (
            f"model.lora.dropout={spec.model.lora.dropout:g}: the trainer's log-probs are those of another "
            "policy than the one that sampled; unbiased: model.lora.dropout=0"
        )
    if spec.evaluates and spec.evaluate.temperature not in (0, grpo.temperature):
        yield (
            f"grpo.temperature={grpo.temperature:g}, and evaluate.temperature={spec.evaluate.temperature:g}: "
            "the policy that is trained is not the one that is evaluated"
        )


def _what_is_biased(spec: RunSpec) -> str:
    if spec.grpo.mismatch is None:
        return "nothing corrects for it"
    return "the weights of grpo.mismatch and kl_engine take that for a difference between the two"
