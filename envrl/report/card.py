"""The model card: what a checkpoint is, how it was made, and what it came to."""

from __future__ import annotations

from pathlib import Path

import yaml

from envrl.report.table import blocks, final, heading, labels, verdict
from envrl.spec import RunSpec
from envrl.summary import Summary


def card(spec: RunSpec, summary: Summary, *, step: int) -> str:
    """README.md of a checkpoint: front matter for the hub, results so far, and the whole spec."""
    dumped = yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    return "\n".join(
        [
            "---",
            yaml.safe_dump(_front(spec), sort_keys=False).strip(),
            "---",
            "",
            f"# {spec.name}",
            "",
            f"{spec.model.name_or_path}, trained by envrl with GRPO to play {', '.join(spec.env)}: "
            f"{step} of {spec.grpo.steps} steps. {_what(spec)}",
            "",
            "## Results",
            "",
            *(_results(summary) or ["No evaluation was recorded."]),
            "",
            "## Spec",
            "",
            "```yaml",
            dumped.rstrip(),
            "```",
            "",
        ]
    )


def _front(spec: RunSpec) -> dict[str, object]:
    name = spec.model.name_or_path
    front: dict[str, object] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    if name.count("/") == 1 and not Path(name).exists():
        front["base_model"] = name
    return front | {"tags": ["envrl", "grpo", "reinforcement-learning", "agent"]}


def _what(spec: RunSpec) -> str:
    loads = "`AutoModelForCausalLM.from_pretrained` and `vllm serve` load this folder"
    if spec.model.lora is None:
        return f"{loads}."
    return f"{loads}, which has the adapter merged; `adapter/` is the adapter alone, for peft."


def _results(summary: Summary) -> list[str]:
    """A table per environment, and what it says."""
    evaluations = final(summary)
    names = labels(evaluations)
    lines: list[str] = []
    for block in blocks(evaluations):
        rows = [[block.env, *map(heading, names)], ["---"] * (len(names) + 1)]
        rows += [[name, *cells] for name, cells in block.rows]
        lines += [f"| {' | '.join(row)} |" for row in rows] + [""]
    return [*lines, verdict(summary)] if lines else []
