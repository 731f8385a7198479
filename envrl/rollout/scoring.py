"""From finished episodes to one number each.

A term of our own reads an episode's record. A reward function as TRL calls them takes the columns of a
group by keyword, its environments among them, so it is called once per group while those are still open.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from envrl.errors import WorldError
from envrl.model.tool_calls import parse_tool_calls
from envrl.reward import is_group_term, number, resolve, total
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
    """Scores the episodes of one group, or one alone; those that ended as `error` stay unscored.

    Raises WorldError for what is no finite number, and whatever a user's term raises.
    """
    live = [episode for episode in episodes if episode.stop is not StopReason.ERROR]
    if not live:
        return
    terms = terms_of(spec, live[0].task.env)
    for name in terms:
        term = resolve(name)
        values = await _called(term, live) if is_group_term(term) else [term(e.record()) for e in live]
        if len(values) != len(live):
            raise WorldError(f"reward term {name}: {len(values)} values for {len(live)} episodes")
        for episode, value in zip(live, values, strict=True):
            episode.scores[name] = number(name, value, env=episode.task.env)
    weights = spec.reward.weight_of(terms)
    for episode in live:
        episode.score = total(episode.scores, weights)


async def _called(function: Callable[..., Any], episodes: Sequence[Episode]) -> list[Any]:
    """A TRL-style function's values, called with the keywords that TRL gives."""
    noted = [{**episode.extra, **episode.task.row} for episode in episodes]
    columns = {
        name: [own.get(name) for own in noted] for name in {name: None for own in noted for name in own}
    }

    def log_metric(name: str, value: float) -> None:
        for episode in episodes:
            episode.metrics[name] = number(name, value, env=episode.task.env) or 0.0

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
