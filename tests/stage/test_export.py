"""Every checkpoint is a model directory that others load, with a card that says how it did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from small import lake  # type: ignore[import-not-found]
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from envrl import compose, run
from envrl.errors import ConfigError

pytestmark = pytest.mark.usefixtures("elsewhere")

STAGES = ["stages=[warm_start,evaluate,train,evaluate]", "name=lakes", "output_dir=run"]


def card(step: int) -> tuple[dict[str, Any], str]:
    """Front matter and text."""
    _, front, text = Path(f"run/checkpoints/step-{step}/README.md").read_text().split("---\n", 2)
    return yaml.safe_load(front), text


def test_the_last_checkpoint_loads_and_says_how_it_did() -> None:
    spec = compose(lake(*STAGES))
    summary = run(spec)
    folder = "run/checkpoints/step-4"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "left"}], add_generation_prompt=True, return_tensors="pt"
    )
    said = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert said.shape[1] > prompt["input_ids"].shape[1]
    assert GenerationConfig.from_pretrained(folder).eos_token_id == [tokenizer.eos_token_id]
    assert (Path(folder) / "chat_template.jinja").exists()
    front, text = card(4)
    assert front["library_name"] == "transformers"
    assert "base_model" not in front  # drawn here
    assert "# lakes\n" in text
    assert "4 of 4 steps" in text
    rate = summary.evaluations[-1]["success_rate"]
    assert rate is not None
    assert "| frozen_lake | warm start | + GRPO |" in text
    assert f"| {rate:.1%} [" in text
    dumped = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    assert type(spec).model_validate(dumped) == spec
    assert "warm start" in card(2)[1]
    assert "+ GRPO |" not in card(2)[1]  # not evaluated yet


@pytest.mark.parametrize("network", ["offline", "unreachable"])
def test_a_hub_that_cannot_be_reached_is_told_once_and_breaks_nothing(network: str) -> None:
    """With the hub's own switch, and with a port where nobody listens."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    if network == "unreachable":
        environment |= {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": "none"}
    push = ["checkpoint.push_to_hub=someone/lakes", "stages=[train]", "check.require_signal=false"]
    command = [sys.executable, "-m", "envrl", *lake(*STAGES, *push, "grpo.steps=1")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: checkpoint.push_to_hub=someone/lakes: ") == 1, done.stderr
    assert "hf upload someone/lakes run/checkpoints/step-1" in Path("run/run.log").read_text()
    assert json.loads(Path("run/summary.json").read_text())["status"] == "ok"


def test_where_a_model_goes_makes_no_other_run() -> None:
    assert compose(["checkpoint.push_to_hub=someone/lakes"]).digest == compose().digest
    with pytest.raises(ConfigError, match="checkpoint.push_to_hub: no repository's name .got 'a b'.; mend"):
        compose(["checkpoint.push_to_hub=a b"])


def test_training_continues_from_a_checkpoint_that_is_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    settings = lake(*STAGES, "stages=[train]", "checkpoint.every=1", "checkpoint.keep=4")
    run(compose(settings))
    whole = torch.load("run/checkpoints/step-4/trainer.pt", weights_only=True)
    summary = json.loads(Path("run/summary.json").read_text())
    Path("run/summary.json").write_text(json.dumps(summary | {"status": "failed", "stages": []}))
    with Path("run/checkpoints/step-4/model.safetensors").open("r+b") as file:
        file.truncate(1000)
    Path("run/checkpoints/step-3/trainer.pt").unlink()
    run(compose(settings))
    told = capsys.readouterr().err
    assert told.count("step-4 is ignored: model.safetensors has 1000 bytes of") == 1
    assert told.count("step-3 is ignored: it has no trainer.pt") == 1
    again = torch.load("run/checkpoints/step-4/trainer.pt", weights_only=True)
    assert again["trainer"]["step"] == whole["trainer"]["step"] == 4
    with pytest.raises(ConfigError, match="resume"):
        compose([*settings, "output_dir=other", "resume=run/checkpoints/step-9"])
