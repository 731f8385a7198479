"""What composes, what it becomes, and how everything else is refused."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra

from envrl import compose
from envrl.env import REGISTRY
from envrl.errors import ConfigError
from envrl.paths import groups, options
from envrl.spec import RunSpec, SchedulerKind, VllmModeSpec

UNBUILT = {"scheduler=harness"}
NO_VLLM = find_spec("vllm") is None
NEEDS = {
    "env=custom": ["env.custom.target=envrl.env.frozen_lake:FrozenLake"],
    "env=openenv": ["env.openenv.url=http://localhost:8000", "model.warm_start=null"],
    "vllm_mode=server": ["vllm_mode.url=[http://localhost:8000]"],
    "env=tools": ["model.warm_start=null", "env.tools.dataset=recipes/data/arithmetic.jsonl"],
}
INSTALL = "mend: pip install -e '.[vllm]', or vllm_mode=none"


def refused(*overrides: str) -> str:
    """The text of the ConfigError."""
    with pytest.raises(ConfigError) as caught:
        compose(overrides)
    return str(caught.value)


@pytest.mark.parametrize("choice", [f"{group}={option}" for group in groups() for option in options(group)])
def test_every_option_and_recipe_composes(choice: str) -> None:
    if choice in UNBUILT:
        assert f"{choice}: not built yet; mend:" in refused(choice)
    elif NO_VLLM and choice == "vllm_mode=colocate":
        assert refused(choice) == f"{choice}: vllm is not installed; {INSTALL}"
    else:
        assert compose([choice, *NEEDS.get(choice, [])]).seed == 1


def test_groups_are_fields_of_the_spec() -> None:
    assert set(groups()) - {"recipe"} <= set(RunSpec.model_fields)


def test_yaml_files_registry_and_kinds_name_the_same_things() -> None:
    assert set(options("env")) == {*REGISTRY, "custom"}
    assert set(options("scheduler")) == set(SchedulerKind)
    assert set(options("vllm_mode")) == {
        get_args(mode.model_fields["kind"].annotation)[0] for mode in get_args(VllmModeSpec)
    }


def test_the_default_is_the_quickstart() -> None:
    spec = compose()
    assert list(spec.env) == ["frozen_lake"]
    assert (spec.model.label, spec.vllm_mode.kind, spec.scheduler.kind) == ("tiny", "none", "tool_calling")
    assert spec.stages == ["check", "warm_start", "evaluate", "train", "evaluate", "report"]


def test_the_name_comes_from_the_spec() -> None:
    spec = compose(["env=[frozen_lake,custom]", *NEEDS["env=custom"], "seed=7"])
    assert spec.name == f"frozen_lake+custom-tiny-7-{spec.digest[:6]}"
    assert spec.output_dir == Path("outputs") / spec.name


def test_a_given_name_or_directory_stays() -> None:
    assert compose(["name=mine"]).output_dir == Path("outputs/mine")
    assert compose(["name=mine", "output_dir=/tmp/x"]).output_dir == Path("/tmp/x")


def test_name_and_directory_do_not_shape_the_digest() -> None:
    assert compose(["name=mine", "output_dir=/tmp/x", "resume=never"]).digest == compose().digest
    assert compose(["seed=2"]).digest != compose().digest


def test_keys_that_no_yaml_spells_out_need_no_plus() -> None:
    overrides = ["env.frozen_lake.weight=2", "model.chat_template_kwargs.enable_thinking=true"]
    spec = compose([*overrides, "env.big={kind: frozen_lake, args: {size: 6}}"])
    assert spec.env["frozen_lake"].weight == 2
    assert spec.model.chat_template_kwargs == {"enable_thinking": True}
    assert spec.env["big"].args == {"size": 6}


def test_a_model_brings_settings_and_the_command_line_wins() -> None:
    assert compose(["model=qwen3_4b"]).grpo.learning_rate == 1e-6
    assert compose(["model=qwen3_4b", "grpo.learning_rate=5e-6"]).grpo.learning_rate == 5e-6


def test_the_command_line_wins_over_a_recipe() -> None:
    assert compose(["recipe=frozen_lake_gym"]).scheduler.kind == "gym"
    assert compose(["recipe=frozen_lake_gym", "scheduler=tool_calling"]).scheduler.kind == "tool_calling"


def test_signs_and_letters_survive_a_quoted_override() -> None:
    text = "a|b #1 {x} = 'q', 你好"
    assert compose([f'env.frozen_lake.prompt="{text}"']).env["frozen_lake"].prompt == text


def test_composing_leaves_a_callers_own_hydra_alone(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: 1\n")
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(tmp_path)):
        compose()
        refused("grpo.steps=0")
        assert hydra.compose("config") == {"a": 1}
    assert not GlobalHydra.instance().is_initialized()


def test_a_config_folder_of_ones_own_joins_the_groups(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "pond.yaml").write_text("# @package env.pond\nkind: frozen_lake\nargs: {size: 3}\n")
    assert compose([f"hydra.searchpath=[file://{tmp_path}]", "env=pond"]).env["pond"].args == {"size": 3}


BAD = {
    "grpo.num_generations=1": "grpo.num_generations: must be greater than or equal to 2 (got 1); mend",
    "grpo.groups_per_step=0": "mend: grpo.groups_per_step=1",
    "scheduler.max_turns=0": "scheduler.max_turns: must be greater than or equal to 1 (got 0)",
    "scheduler.max_tokens=-5": "(got -5); mend: scheduler.max_tokens=1",
    "grpo.learning_rate=fast": "grpo.learning_rate: must be a valid number",
    "check.require_signal=3": "mend: check.require_signal=true|false",
    "grpo.loss=dap": "grpo.loss: unknown 'dap'; did you mean dapo?",
    "stages=[check,trian]": "stages[1]: unknown 'trian'; did you mean train?",
    "stages=[]": "stages: must not be empty",
    "stages=[train,check]": "mend: stages=[check,train]",
    "stages=[train,train]": "stages: train stands more than once",
    "stages=[report,evaluate]": "stages: report comes last",
    "sed=3": "sed: unknown key; did you mean seed?",
    "learning_rate=3": "learning_rate: unknown key; did you mean model.warm_start.learning_rate or grpo.",
    "grpo.stepz=3": "grpo.stepz: unknown key; did you mean grpo.steps?",
    "++grpo.stepz=3": "grpo.stepz: unknown key; did you mean grpo.steps?",
    "env.frozen_lake.wieght=2": "did you mean env.frozen_lake.weight?",
    "env=nope": "unknown 'nope'; choose from: catch, custom, echo, frozen_lake",
    "env=[frozen_lake,nope]": "unknown 'nope'; choose from: catch, custom, echo, frozen_lake",
    "env=[]": "env: no value; mend: env=catch|custom|echo|frozen_lake",
    "env=custom": "env.custom.target: no value; mend: env.custom.target=...",
    "env.custom.weight=2": "env.custom: set, but not chosen; add it: env=[frozen_lake,custom]",
    "env.frozenlake.weight=2": "env.frozenlake: set, but not chosen; did you mean env.frozen_lake?",
    "env.frozen_lake.kind=frozn": "env.frozen_lake.kind: unknown 'frozn'; did you mean frozen_lake?",
    "env.frozen_lake.target=a:B": "env.frozen_lake.target: 'a:B' is for kind=custom (got kind=frozen_lake)",
    "env.frozen_lake.args.size=1": "size: input should be greater than or equal to 2, got 1",
    "env.frozen_lake.args.p=0": "p: input should be greater than 0, got 0",
    "env.frozen_lake.args.sise=4": "unknown 'sise'; did you mean size?",
    "env.frozen_lake.dataset=nowhere.jsonl": "cannot read 'nowhere.jsonl'",
    "env.frozen_lake.backend=url": "env.frozen_lake.url: missing for backend=url; mend: env.frozen_lake.url=",
    "model=qwen3": "model=qwen3: unknown 'qwen3'; did you mean qwen3_4b?",
    "model=null": "a group takes an option's name",
    "model.name_or_path=./nowhere": "model.name_or_path: no such folder (got './nowhere')",
    "model.lora.rnk=8": "model.lora.rnk: unknown key; did you mean model.lora.rank?",
    "model.tiny.num_key_value_heads=3": "must divide num_attention_heads, which is 2 (got 3)",
    "recipe=nope": "unknown 'nope'; choose from: ",
    "reward.terms=[succes]": "unknown 'succes'; did you mean success?",
    "reward.terms=[nowhere:f]": "cannot import nowhere",
    "reward.terms=[]": "reward.terms: no terms",
    "reward.terms=[env,env]": "a term stands more than once (got [env,env]); mend: reward.terms=[env]",
    "reward.terms=[envrl.reward.terms:total]": "must take a record, or the columns of a group and **kwargs",
    "reward.weights={sucess: 2}": "reward.weights: unknown 'sucess'",
    "reward.weights={env: x}": "reward.weights.env: must be a valid number",
    "reward.weights=[x]": "reward.weights[0]: must be a valid number",
    "reward.weights=1": "reward.weights: must be a valid list (got 1); mend: reward.weights=[...]",
    "scheduler.target=nowhere:Loop": "scheduler.target: cannot import nowhere",
    "scheduler.target=envrl.spec:RunSpec": "envrl.spec:RunSpec is no finished envrl.scheduler.Scheduler",
    "plugins=[nowhere]": "plugins: cannot import nowhere",
    "vllm_mode.launch=true": "vllm_mode.launch: not for this vllm_mode; mend: vllm_mode=server",
    "vllm_mode.sleep=true": "vllm_mode.sleep: not for this vllm_mode; mend: vllm_mode=colocate",
    "vllm_mode.dtype=float16": "vllm_mode.dtype: not for this vllm_mode; mend: vllm_mode=colocate|server",
    "vllm_mode.lanch=true": "vllm_mode.lanch: unknown key; did you mean vllm_mode.launch?",
    "vllm_mode.kind=ray": "vllm_mode.kind: unknown 'ray'; choose from: colocate, none, server; mend:",
    "vllm_mode.kv_cache_gib=0": "vllm_mode.kv_cache_gib: must be greater than 0 (got 0)",
    "grpo.staleness=1": "mend: grpo.staleness=0",
    "grpo.kl_coef=-1": "grpo.kl_coef: must be greater than or equal to 0 (got -1)",
    "tracker=[wandb]": "tracker=[wandb]: not built yet; mend: tracker=[local]",
    "sweep.retries=3": "mend: sweep.retries=0",
    "resume=nver": "resume: unknown 'nver'; did you mean never?",
    "name=a/b": "name: must be one folder name (got 'a/b')",
    "seed=${nope}": "seed: Interpolation key 'nope' not found",
    "seed": "seed: not an override; write key=value",
    "env.frozen_lake.prompt=groß (a)": 'env.frozen_lake.prompt="groß (a)"\'',
}


SERVER = {
    "vllm_mode.url=[]": "either servers that run or launch=true (got [], launch=False)",
    "vllm_mode.launch=true": "either servers that run or launch=true (got ['http://a:1'], launch=True)",
    "vllm_mode.url=[ws://a:1]": "vllm_mode.url: must be http:// or https:// and a host (got 'ws://a:1'); "
    "mend: vllm_mode.url=[http://host:port]",
    "vllm_mode.url=[https+x://a:1]": "and a host (got 'https+x://a:1')",
    "vllm_mode.url=[http://a:70000]": "and a host (got 'http://a:70000')",
    "vllm_mode.gpus=[0]": "vllm_mode.gpus: the server at url has its own (got [0]); mend: leave out",
    "vllm_mode.max_model_len=9": "vllm_mode.max_model_len: the server at url has its own (got 9)",
    "vllm_mode.start_timeout_s=9": "vllm_mode.start_timeout_s: is for launched servers (got 9); "
    "mend: vllm_mode.retry_timeout_s=9",
    "grpo.temperature=3": "grpo.temperature: vLLM takes 0 and 0.01 to 2 (got 3); mend: grpo.temperature=1",
    "evaluate.temperature=1e-3": "evaluate.temperature: vLLM takes 0 and 0.01 to 2 (got 0.001)",
    "vllm_mode.url=[http://a:1/v1]": "the server's root, without /v1 (got 'http://a:1/v1'); mend: ",
    "vllm_mode.url=[http://a:1,http://a:1/]": "a server stands more than once",
    "vllm_mode.gpus=[a]": "vllm_mode.gpus[0]: must be a valid integer",
    "vllm_mode.transfer=rdma": "vllm_mode.transfer: unknown 'rdma'; choose from: auto, file, nccl",
}


@pytest.mark.parametrize("override", SERVER)
def test_settings_of_servers_that_do_not_fit(override: str) -> None:
    assert SERVER[override] in refused("vllm_mode=server", "vllm_mode.url=[http://a:1]", override)


def test_launched_servers_have_their_gpus_each_to_itself() -> None:
    server = ["vllm_mode=server", "vllm_mode.launch=true", "vllm_mode.replicas=2"]
    server.append("vllm_mode.tensor_parallel_size=2")
    mends = {
        "[0,1]": "replicas=1",
        "[0,1,2,2]": "replicas=1",
        "[0,1,2,3,4,5]": "replicas=3",
        "[]": "gpus=null",
    }
    for gpus, mend in mends.items():
        text = refused(*server, f"vllm_mode.gpus={gpus}")
        assert "replicas=2 of tensor_parallel_size=2 need 4 GPUs" in text
        assert f"mend: vllm_mode.{mend}" in text
    if not NO_VLLM:
        assert compose([*server, "vllm_mode.gpus=[1,2,3,4]"])


@pytest.mark.parametrize("mode", [["colocate"], ["server", "vllm_mode.launch=true"]])
def test_a_context_that_leaves_no_room_for_a_prompt_is_refused(mode: list[str]) -> None:
    kind, *launch = mode
    vllm = [f"vllm_mode={kind}", *launch, "scheduler.max_tokens=100"]
    text = refused(*vllm, "vllm_mode.max_model_len=100")
    assert "vllm_mode.max_model_len: an episode needs a prompt beside its scheduler.max_tokens=100" in text
    assert "(got 100); mend: vllm_mode.max_model_len=null, or a smaller scheduler.max_tokens" in text
    if not NO_VLLM:
        assert compose([*vllm, "vllm_mode.max_model_len=101"])


def test_a_run_goes_on_where_its_server_has_moved() -> None:
    here, there = (compose(["vllm_mode=server", f"vllm_mode.url=[http://a:{port}]"]) for port in (1, 2))
    assert here.digest == there.digest
    assert here.digest != compose().digest


@pytest.mark.parametrize("override", BAD)
def test_bad_input_says_what_and_how_to_mend_it(override: str) -> None:
    started = time.perf_counter()
    text = refused(override)
    assert BAD[override] in text
    assert "Traceback" not in text
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize(
    "limit",
    [
        "scheduler.max_turns",
        "scheduler.max_turn_tokens",
        "scheduler.step_timeout_s",
        "scheduler.episode_timeout_s",
        "rollout.max_inflight",
        "env.frozen_lake.max_turns",
        "env.frozen_lake.sessions.capacity",
        "env.frozen_lake.sessions.ping_interval_s",
    ],
)
def test_zero_is_not_taken_for_no_limit(limit: str) -> None:
    """(trl#6423)"""
    assert f"{limit}: must be greater than" in refused(f"{limit}=0")
    compose([f"{limit}=null"])


def test_greedy_play_is_not_sampled_twice() -> None:
    text = refused("evaluate.samples=4", "evaluate.temperature=0")
    assert "evaluate.samples: greedy play repeats itself (got 4 at temperature 0)" in text
    assert compose(["evaluate.samples=4"]).evaluate.temperature > 0


def test_problems_are_raised_together() -> None:
    lines = refused("grpo.steps=0", "sed=1", "env.custom.weight=2", "grpo.loss=x").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["env.custom", "grpo.steps", "grpo.loss", "sed"]


def test_broken_rules_are_raised_together() -> None:
    greedy = ["evaluate.samples=2", "evaluate.temperature=0"]
    lines = refused("grpo.staleness=1", "reward.terms=[x]", *greedy, "plugins=[nowhere]").splitlines()
    named = [line.split(":")[0].split("=")[0] for line in lines]
    assert named == ["plugins", "grpo.staleness", "reward.terms", "evaluate.samples"]


def test_every_environment_needs_a_group() -> None:
    mixture = ["env=[frozen_lake,custom]", *NEEDS["env=custom"]]
    assert "mend: grpo.groups_per_step=2" in refused(*mixture, "grpo.groups_per_step=1")


def test_ranks_share_whole_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert "3 ranks share whole groups (got 16); mend: grpo.groups_per_step=18" in refused()


MUTE = """
from envrl.env import Environment
class Mute(Environment):
    def instructions(self, face): return ""
    def reset(self, *, seed=None): return None
"""


def test_what_an_environment_lacks_for_the_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "mute.py").write_text(MUTE)
    overrides = ["env=custom", "env.custom.target=envrl_plugin_mute:Mute", f"plugins=[{tmp_path}/mute.py]"]
    text = refused(*overrides)
    assert "env.custom: Mute has no @tool for scheduler=tool_calling" in text
    assert "warm_start needs an environment with a solver" in text
    assert "Mute has no parse_action for scheduler=gym" in refused(*overrides, "scheduler=gym")


def test_a_users_module_that_fails_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("\nx = undefined\n")
    text = refused(f"plugins=[{tmp_path}/broken.py]")
    assert f"NameError: name 'undefined' is not defined ({tmp_path}/broken.py, line 2)" in text


JUDGED = """
import sys
from envrl import compose
spec = compose(sys.argv[1:])
heavy = {"torch", "transformers", "openenv", "datasets", "accelerate", "vllm", "wandb"} & set(sys.modules)
print(spec.output_dir, sorted(heavy))
"""


def test_a_spec_is_judged_without_anything_heavy() -> None:
    command = [sys.executable, "-c", JUDGED, "recipe=frozen_lake_gym"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]"), done.stdout


def test_ranks_that_start_apart_agree_on_one_directory() -> None:
    command = [sys.executable, "-c", JUDGED, "seed=5"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    time.sleep(1.1)
    second = subprocess.run(command, capture_output=True, text=True, check=True)
    assert first.communicate()[0] == second.stdout


def test_tools_without_a_dataset_have_nothing_to_ask() -> None:
    text = refused("env=tools", "model.warm_start=null")
    assert text.startswith("env.tools: Tools has no tasks without a dataset; mend: env.tools.dataset=<file>")
    shipped = text.partition("mend: ")[2].replace("<file>", "recipes/data/arithmetic.jsonl")
    assert compose(["env=tools", "model.warm_start=null", shipped]).env["tools"].reward == ["answer"]


FACELESS = """
from envrl.scheduler import TurnScheduler
class Faceless(TurnScheduler):
    async def act(self, episode, turn): return []
"""


def test_a_scheduler_without_a_face_is_refused(tmp_path: Path) -> None:
    (tmp_path / "faceless.py").write_text(FACELESS)
    text = refused(f"plugins=[{tmp_path}/faceless.py]", "scheduler.target=envrl_plugin_faceless:Faceless")
    assert "scheduler.target: envrl_plugin_faceless:Faceless has no face: set face = Face.TOOL or Fac" in text


HINTED = """
from __future__ import annotations
from typing import TYPE_CHECKING
from envrl.env import Environment, tool
if TYPE_CHECKING:
    import numpy as np
class Hinted(Environment):
    def __init__(self, board: np.ndarray | None = None): super().__init__()
    def instructions(self, face): return ""
    def reset(self, *, seed=None): return None
    @tool
    def act(self) -> str: return ""
"""


def test_a_type_hint_that_does_not_exist_at_run_time_is_named(tmp_path: Path) -> None:
    (tmp_path / "hinted.py").write_text(HINTED)
    overrides = ["env=custom", "env.custom.target=envrl_plugin_hinted:Hinted", "model.warm_start=null"]
    assert "name 'np' is not defined" in refused(*overrides, f"plugins=[{tmp_path}/hinted.py]")


def test_no_environment_is_left_out_of_the_evaluation() -> None:
    uneven = ["env=[wordle,catch]", "env.wordle.weight=30"]
    with pytest.raises(ConfigError, match="leave none for env.catch; mend: evaluate.episodes=31"):
        compose([*uneven, "evaluate.episodes=8"])
    assert compose([*uneven, "evaluate.episodes=31"]).evaluates
