"""From finished episodes to one number each.

A term of our own reads an episode's record. A reward function as TRL calls them takes the columns of a
group by keyword, its environments among them, so it is called once per group while those are still open;
those that hold a session of a server have given it back by then.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from envrl.errors import WorldError, finite_number
from envrl.model.tool_calls import parse_tool_calls
from envrl.reward import is_group_term, resolve, total
from envrl.rollout.boundary import boundary
from envrl.rollout.trajectory import Episode
from envrl.spec import RunSpec
from envrl.stop import StopReason


def terms_of(spec: RunSpec, env: str) -> list[str]:
    """The names of the terms that score an environment's episodes."""
    return spec.env[env].reward if spec.reward.terms is None else spec.reward.terms


def needs_group(terms: Iterable[str]) -> bool:
    """Whether a term is called once per group."""
    return any(is_group_term(resolve(name)) for name in terms)


async def score(episodes: Sequence[Episode], spec: RunSpec) -> None:
    """Scores the episodes of one group; those that ended as `error` stay unscored.

    A term that raises, or gives what is no finite number, ends as `error` what it was asked about: one
    episode, or the group.
    """
    terms = terms_of(spec, episodes[0].task.env)
    for name in terms:
        term, live, where = resolve(name), _live(episodes), f"reward term {name}: "
        if not is_group_term(term):
            for episode in live:
                with boundary(episode, where=where):
                    _enter(name, [episode], [term(episode.record())])
        elif live:
            with boundary(*live, where=where):
                _enter(name, live, await _called(term, live))
    weights = spec.reward.weight_of(terms)
    for episode in _live(episodes):
        episode.reward = total(episode.rewards, weights)


def _live(episodes: Iterable[Episode]) -> list[Episode]:
    return [episode for episode in episodes if episode.stop is not StopReason.ERROR]


def _enter(name: str, episodes: Sequence[Episode], values: Sequence[Any]) -> None:
    """Enters a term's values; None is "no opinion". Raises WorldError for what is no finite number."""
    if len(values) != len(episodes):
        raise WorldError(f"reward term {name}: {len(values)} values for {len(episodes)} episodes")
    for episode, value in zip(episodes, values, strict=True):
        what = f"env {episode.task.env}: reward term {name}"
        episode.rewards[name] = None if value is None else finite_number(what, value)


async def _called(function: Callable[..., Any], episodes: Sequence[Episode]) -> list[Any]:
    """A TRL-style function's values, called with the keywords that TRL gives."""
    noted = [{**episode.extra, **episode.task.row} for episode in episodes]
    columns = {
        name: [own.get(name) for own in noted] for name in {name: None for own in noted for name in own}
    }

    def log_metric(name: str, value: float) -> None:
        for episode in episodes:
            episode.metrics[name] = finite_number(f"metric {name}", value)

    def log_extra(column: str, values: Sequence[Any]) -> None:
        for episode, value in zip(episodes, values, strict=True):
            episode.extra[column] = value

    given = {
        "prompts": [episode.messages[: episode.prompt_messages] for episode in episodes],
        "completions": [_completion(episode) for episode in episodes],
        "completion_ids": [
            t.ids[t.prompt_tokens :] for t in (episode.transcripts[-1] for episode in episodes)
        ],
        "environments": [episode.host.environment.unwrapped for episode in episodes],
        "trainer_state": None,
        "log_metric": log_metric,
        "log_extra": log_extra,
    }
    values = function(**{**columns, **given})  # a column of one of these names gives way, as in TRL
    return list(await values if inspect.isawaitable(values) else values)


def _completion(episode: Episode) -> list[dict[str, Any]]:
    """The messages after the prompt, with the calls in them parsed as TRL has them."""
    completion = [dict(message) for message in episode.messages[episode.prompt_messages :]]
    for message in completion:
        calls = parse_tool_calls(message["content"]) if message["role"] == "assistant" else []
        if calls:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
                for call in calls
                if call.error is None
            ]
    return completion
