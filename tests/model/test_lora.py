"""Adapters: what they merge to, what is refused, and where training began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from envrl.errors import ConfigError
from envrl.grpo.checkpoints import save_weights
from envrl.model.lora import adapt, at_start, keep_start, load_adapter, save_adapter
from envrl.model.tiny import bootstrap_tokenizer
from envrl.model.weights import Weights
from envrl.spec import LoraSpec

IDS = torch.arange(2, 22)[None]


def build(dtype: torch.dtype = torch.float32, *, tied: bool = True, hidden_size: int = 32) -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=300,
        hidden_size=hidden_size,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config).eval().to(dtype)


def adapted(
    spec: LoraSpec | None = None, dtype: torch.dtype = torch.float32, *, tied: bool = True, seed: int = 1
) -> Any:
    """With adapters that have learned something."""
    model = build(dtype, tied=tied)
    adapt(model, spec or LoraSpec(rank=4), base="base", seed=seed)
    change(model, seed)
    return model


def change(model: Any, seed: int) -> None:
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)


theirs_warn = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated"
)  # peft's PeftModel

SPECS = {
    "all": (LoraSpec(rank=4), True),
    "rslora": (LoraSpec(rank=4, rslora=True, alpha=3), True),
    "several": (LoraSpec(rank=2, targets=["q_proj", "down_proj"], dropout=0.5), True),
    "head": (LoraSpec(rank=2, targets=["lm_head", "o_proj"]), False),
}


@theirs_warn
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", SPECS)
def test_merged_weights_are_those_of_peft(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    spec, tied = SPECS[kind]
    model = adapted(spec, dtype, tied=tied)
    save_adapter(model, tmp_path)
    theirs: Any = PeftModel.from_pretrained(build(dtype, tied=tied), tmp_path)
    merged = dict(theirs.merge_and_unload().named_parameters())
    ours = dict(Weights(model))
    assert ours.keys() == merged.keys() == dict(build(tied=tied).named_parameters()).keys()
    assert all(torch.equal(ours[name], merged[name]) for name in merged)
    changed = {
        name for name, value in build(dtype, tied=tied).named_parameters() if not value.equal(ours[name])
    }
    targets = spec.targets or ["proj"]
    assert changed == {name for name in ours if any(target in name for target in targets)}


def test_adapters_begin_without_effect_and_alone_are_trained() -> None:
    model, before = build(torch.bfloat16), build(torch.bfloat16)
    state = torch.get_rng_state()
    adapt(model, LoraSpec(rank=4), base="base", seed=1)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(model(IDS).logits, before(IDS).logits)
    trained = {name: p.dtype for name, p in model.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in name and dtype is torch.float32 for name, dtype in trained.items())


@theirs_warn
@pytest.mark.parametrize("tied", [True, False])
def test_a_checkpoint_is_a_plain_model_with_the_adapter_beside_it(tmp_path: Path, tied: bool) -> None:
    model = adapted(tied=tied)
    save_weights(tmp_path / "saved", model=model, tokenizer=bootstrap_tokenizer())
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert type(plain) is Qwen3ForCausalLM
    torch.testing.assert_close(plain(IDS).logits, model(IDS).logits, atol=2e-5, rtol=0)
    theirs: Any = PeftModel.from_pretrained(build(tied=tied), tmp_path / "saved" / "adapter")
    assert torch.equal(theirs(IDS).logits, model(IDS).logits)
    assert theirs.peft_config["default"].base_model_name_or_path == "base"
    again = adapted(tied=tied, seed=2)
    load_adapter(again, tmp_path / "saved" / "adapter")
    assert torch.equal(again(IDS).logits, model(IDS).logits)
    assert all(p.requires_grad for name, p in again.named_parameters() if "lora_" in name)


@pytest.mark.parametrize("saved", [True, False])
def test_where_training_began_is_kept_beside_what_it_became(tmp_path: Path, saved: bool) -> None:
    model = adapted() if saved else build()
    if not saved:
        adapt(model, LoraSpec(rank=4), base="base", seed=1)
    save_adapter(model, tmp_path)
    began = model(IDS).logits.detach()
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    keep_start(model, tmp_path if saved else None)
    assert [name for name, p in model.named_parameters() if p.requires_grad] == trainable
    change(model, 3)
    became = model(IDS).logits.detach()
    with at_start(model), torch.no_grad():
        assert torch.equal(model(IDS).logits, began)
    assert torch.equal(model(IDS).logits, became)
    assert not torch.equal(began, became)
    assert dict(Weights(model)).keys() == dict(build().named_parameters()).keys()


def test_looking_back_between_forward_and_backward_leaves_the_gradient_alone() -> None:
    def gradient(*, look_back: bool) -> list[torch.Tensor]:
        model = adapted()
        keep_start(model, None)
        model.train()
        loss = torch.log_softmax(model(IDS).logits, -1)[..., 3].sum()
        if look_back:
            with at_start(model), torch.no_grad():
                model(IDS)
        assert model.training
        loss.backward()
        return [p.grad for p in model.parameters() if p.requires_grad]

    plain, looked = gradient(look_back=False), gradient(look_back=True)
    assert len(plain) == len(looked) == 2 * 7 * 2
    assert all(torch.equal(a, b) for a, b in zip(plain, looked, strict=True))
    assert all(value.abs().max() > 0 for value in plain)


def test_gradient_checkpointing_gives_adapters_the_same_gradient() -> None:
    def gradient(*, checkpointing: bool) -> list[torch.Tensor]:
        model = adapted()
        if checkpointing:
            model.activation_checkpointing_enable()
        model.train()
        torch.log_softmax(model(input_ids=IDS, use_cache=False).logits, -1)[..., 3].sum().backward()
        return [p.grad for p in model.parameters() if p.requires_grad]

    pairs = zip(gradient(checkpointing=False), gradient(checkpointing=True), strict=True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


REFUSED = {
    "q_prj": "model.lora.targets: unknown 'q_prj'; did you mean q_proj?; mend: model.lora.targets=null",
    "lm_head": "model.lora.targets: lm_head shares its weights with the embedding, and would change that",
}


@pytest.mark.parametrize("target", REFUSED)
def test_targets_that_cannot_be_are_refused(target: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        adapt(build(), LoraSpec(targets=["v_proj", target]), base="base", seed=1)
    assert str(refusal.value).startswith(REFUSED[target])


OTHERS = {
    "model.lora.rank: .* has 4 (got 8); mend: model.lora.rank=4": {"rank": 8},
    "model.lora.alpha: .* has 32.0 (got 16.0)": {"rank": 4, "alpha": 16.0},
    "model.lora.rslora: .* has false (got true); mend: model.lora.rslora=false": {"rank": 4, "rslora": True},
    "model.lora.targets: .*up_proj,v_proj] (got [q_proj])": {"rank": 4, "targets": ["q_proj"]},
}


@pytest.mark.parametrize("message", OTHERS)
def test_an_adapter_of_another_kind_is_refused(tmp_path: Path, message: str) -> None:
    save_adapter(adapted(), tmp_path)
    pattern = message.translate({ord(sign): f"\\{sign}" for sign in "()[]"})
    with pytest.raises(ConfigError, match=pattern):
        load_adapter(adapted(LoraSpec(**OTHERS[message])), tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="was trained without adapters; mend: model.lora=null"):
        load_adapter(adapted(), tmp_path / "adapter")


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    save_adapter(adapted(), tmp_path)
    other = build(hidden_size=48)
    adapt(other, LoraSpec(rank=4), base="other", seed=1)
    with pytest.raises(ConfigError, match="fits base .got other.; mend: model.name_or_path=base"):
        load_adapter(other, tmp_path)
