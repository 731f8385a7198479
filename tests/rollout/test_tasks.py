from __future__ import annotations

from collections import Counter
from itertools import accumulate, islice
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from envrl.rollout.tasks import Tasks, mixture
from envrl.seeds import task_seed
from envrl.spec import EnvSpec

weights = st.dictionaries(st.sampled_from("abc"), st.floats(0.1, 10), min_size=1)


@given(weights, st.integers(1, 200))
def test_every_prefix_of_a_mixture_keeps_the_shares(share: dict[str, float], total: int) -> None:
    count: Counter[str] = Counter()
    for env, earlier in islice(mixture(share), total):
        assert earlier == count[env]
        count[env] += 1
    for env, weight in share.items():
        assert abs(count[env] - total * weight / sum(share.values())) < 1


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 20), min_size=1), st.integers(1, 4))
def test_whole_shares_are_met_exactly(share: dict[str, int], times: int) -> None:
    """And however many environments there are, none is ever two groups away from its share."""
    total = times * sum(share.values())
    count: Counter[str] = Counter()
    for done, (env, _) in enumerate(islice(mixture(share), total), 1):
        count[env] += 1
        assert all(abs(count[key] - done * share[key] / sum(share.values())) < 2 for key in share)
    assert count == {env: times * weight for env, weight in share.items()}


def test_quotas_of_a_step_are_the_largest_remainders_carried_over() -> None:
    order = [env for env, _ in islice(mixture({"a": 2, "b": 1}), 48)]
    steps = [Counter(order[start : start + 16]) for start in range(0, 48, 16)]
    assert [(step["a"], step["b"]) for step in steps] == [(11, 5), (10, 6), (11, 5)]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_the_order_does_not_depend_on_how_it_is_asked_for(sizes: list[int]) -> None:
    envs = {"a": EnvSpec(kind="frozen_lake", weight=2), "b": EnvSpec(kind="frozen_lake", weight=3)}
    whole, parts = (Tasks(envs, seed=1, stage="train", members=2) for _ in range(2))
    ends = list(accumulate(sizes))
    asked = [parts.groups(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    assert [group for part in asked for group in part] == whole.groups(0, ends[-1])


def tasks(**kwargs: object) -> Tasks:
    envs = {"frozen_lake": EnvSpec(kind="frozen_lake", **kwargs)}  # type: ignore[arg-type]
    return Tasks(envs, seed=1, stage="train", members=4)


def test_members_share_a_seed_and_groups_do_not() -> None:
    groups = tasks().groups(0, 20)
    assert all(len({task.seed for task in group}) == 1 for group in groups)
    assert len({group[0].seed for group in groups}) == 20


def test_ranks_share_whole_groups() -> None:
    whole = tasks().groups(8, 16)
    shared = [tasks().groups(8, 16, rank=rank, world=3) for rank in range(3)]
    assert sorted(g[0].group for part in shared for g in part) == [g[0].group for g in whole]


def test_evaluation_never_meets_a_training_seed() -> None:
    train = {task_seed(1, "train", group) for group in range(1000)}
    held_out = {task_seed(1, "evaluate", group) for group in range(1000)}
    assert max(train) < min(held_out)
    assert max(held_out) < 2**31


def rows_of(folder: Path, count: int) -> Path:
    file = folder / "rows.jsonl"
    file.write_text("".join(f'{{"grid": ["S{i}"], "seed": {i}}}\n' for i in range(count)))
    return file


def test_a_dataset_is_walked_whole_in_every_epoch(tmp_path: Path) -> None:
    groups = tasks(dataset=str(rows_of(tmp_path, 5))).groups(0, 10)
    seeds = [group[0].seed for group in groups]
    assert sorted(seeds[:5]) == sorted(seeds[5:]) == list(range(5))
    assert groups[0][0].row == {"grid": [f"S{seeds[0]}"], "seed": seeds[0]}


def test_a_resumed_run_plays_the_rows_and_seeds_of_an_unbroken_one(tmp_path: Path) -> None:
    """Rows without a seed too, in the middle of the second epoch (ms-swift#10050)."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"n": {n}}}\n' for n in range(7)))
    envs = {key: EnvSpec(kind="frozen_lake", dataset=str(file), weight=w) for key, w in (("a", 2), ("b", 1))}

    def log(start: int, stop: int) -> list[tuple[str, int, int]]:
        tasks = Tasks(envs, seed=1, stage="train", members=2)
        return [(g[0].env, g[0].row["n"], g[0].seed) for g in tasks.groups(start, stop)]

    unbroken = log(0, 30)
    assert log(0, 17) + log(17, 30) == unbroken
    first, second = ([n for env, n, _ in unbroken if env == "a"][k : k + 7] for k in (0, 7))
    assert sorted(first) == sorted(second) == list(range(7))
    assert first != second


def test_some_keys_of_a_mixture_are_played_alone() -> None:
    envs = {key: EnvSpec(kind="frozen_lake") for key in "abc"}
    part = Tasks(envs, seed=1, stage="check", members=1, only=["b", "c"])
    assert [group[0].env for group in part.groups(0, 4)] == ["b", "c", "b", "c"]


def test_held_out_rows_are_never_trained_on(tmp_path: Path) -> None:
    envs = {"frozen_lake": EnvSpec(kind="frozen_lake", dataset=str(rows_of(tmp_path, 25)))}
    seen = {
        stage: {g[0].seed for g in Tasks(envs, seed=1, stage=stage, members=1).groups(0, 50)}
        for stage in ("train", "warm_start", "evaluate")
    }
    assert seen["evaluate"] == {9, 19}
    assert seen["train"] == seen["warm_start"] == set(range(25)) - {9, 19}
