"""RunSpec: everything about a run, typed and frozen. One file per YAML group.

compose.py is the only door: it turns a Hydra composition into plain data and has this module judge it.
Numbers carry their unit in the name where it helps (`_s`, `_tokens`). Defaults live in conf/, except
for those of `env.<key>`, which every environment's file would otherwise repeat, and of `model.lora`, which is
null there.
"""

from envrl.spec.base import Count, Positive, Rate, Seconds, Share, Spec
from envrl.spec.env import Backend, EnvSpec, SessionSpec
from envrl.spec.grpo import GrpoSpec, MismatchSpec
from envrl.spec.model import LoraSpec, ModelSpec, TinySpec, WarmStartSpec
from envrl.spec.reward import RewardSpec
from envrl.spec.run import (
    UNDIGESTED,
    CheckpointSpec,
    CheckSpec,
    EvaluateSpec,
    RolloutSpec,
    RunSpec,
    Stage,
    SweepSpec,
    digest,
)
from envrl.spec.scheduler import SchedulerKind, SchedulerSpec
from envrl.spec.vllm_mode import ColocateSpec, ServerSpec, TransformersSpec, VllmModeSpec, VllmSpec

__all__ = [
    "UNDIGESTED",
    "Backend",
    "CheckSpec",
    "CheckpointSpec",
    "ColocateSpec",
    "Count",
    "EnvSpec",
    "EvaluateSpec",
    "GrpoSpec",
    "LoraSpec",
    "MismatchSpec",
    "ModelSpec",
    "Positive",
    "Rate",
    "RewardSpec",
    "RolloutSpec",
    "RunSpec",
    "SchedulerKind",
    "SchedulerSpec",
    "Seconds",
    "ServerSpec",
    "SessionSpec",
    "Share",
    "Spec",
    "Stage",
    "SweepSpec",
    "TinySpec",
    "TransformersSpec",
    "VllmModeSpec",
    "VllmSpec",
    "WarmStartSpec",
    "digest",
]
