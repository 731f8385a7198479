"""Chat: conversations as token ids, rendered piece by piece and never again.

A conversation grows by appending: what the model sampled stays as it was sampled, and new messages
are rendered alone. That is right only for chat templates whose text for a message does not depend on
what came before it; `check` finds out, and refuses the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NoReturn

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from envrl.env.base import ToolCall
from envrl.errors import ConfigError
from envrl.model.tool_calls import THINK_OPEN, format_tool_call

Message = dict[str, Any]
Tools = list[dict[str, Any]]

_SPOKEN = "The0assistant0spoke"
"""Stands for the turn that new messages follow; plain enough to pass any template unchanged."""
_HEARD = "Here0stands0a0message"
_PROBES = (
    "",
    " \n padded \n ",
    "a\n\nb",
    '{"k": "<v> & \'w\'"}',
    "<think>a</think>b",
    "<tool_response>a</tool_response>",
    "<tool_response>",
)
"""Contents that a template might treat in a way of its own."""


class Chat:
    """Renders for one tokenizer, its chat template and the template's settings."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        template_kwargs: dict[str, Any],
        stop_ids: Iterable[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._kwargs = template_kwargs
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            self._refuse("its tokenizer is not one of the tokenizers library")
        self._backend = tokenizer.backend_tokenizer
        # Some models are published with a cut set to their context; no text is ever cut or padded here.
        self._backend.no_truncation()
        self._backend.no_padding()
        # Group members share their prompt, and often meet the same observation.
        self._prompt = lru_cache(64)(self._render_prompt)
        self._pieces = lru_cache(1024)(self._split)
        self._ids = lru_cache(1024)(self._tokenize)
        self.turn_end = self._find_turn_end()
        """The token that ends an assistant turn."""
        self.thinks = bool(template_kwargs.get("enable_thinking", THINK_OPEN in str(tokenizer.chat_template)))
        """Whether the model is asked to reason before it acts."""
        self.stop_ids = frozenset({self.turn_end, *stop_ids})
        """All tokens that end generation."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """What it renders for; code of others asks for it."""
        return self._tokenizer

    def start(self, messages: Sequence[Message], tools: Tools | None = None) -> list[int]:
        """A whole conversation up to where the model speaks."""
        return list(self._ids(self._prompt(json.dumps([messages, tools]))))

    def extend(self, messages: Sequence[Message]) -> list[int]:
        """What follows the end token of an assistant turn: new messages, up to where the model speaks."""
        return list(self._ids(self._extension(messages)))

    def encode(self, text: str) -> list[int]:
        """Ids of a bare text; the text of an added token, such as `<tool_call>`, becomes that token."""
        return list(self._tokenize(text))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a model turn, without the token that ended it."""
        spoken = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        return str(self._backend.decode(list(spoken), skip_special_tokens=False))

    def check(self, tools: Tools | None) -> None:
        """Raises ConfigError with the reason where rendering piece by piece would not be right."""
        histories = list(_histories(tools))
        for history in histories:
            prompt = self._render(history, tools)
            if not prompt.startswith(self._render(history, tools, generation_prompt=False)):
                self._refuse("it changes the conversation when it asks the model to speak")
        for new in [[_user()], [_tool(0)], [_tool(0), _tool(1)]] if tools else [[_user()]]:
            text = self._extension(new)
            if text.count(_HEARD) != len(new):
                self._refuse(f"it does not show messages of role {new[0]['role']}")
            for history, spoken in product(histories, _turns(tools)):
                turn = {"role": "assistant", "content": spoken + _SPOKEN}
                self._check_appended(self._render([*history, turn, *new], tools), text)

    def _check_appended(self, whole: str, text: str) -> None:
        """That a conversation ends, in text and in tokens, with the text that is rendered alone."""
        _, _, after = whole.partition(_SPOKEN)
        if after != self._end_text() + text:
            self._refuse(
                f"the text of a message depends on the history: {after.removeprefix(self._end_text())!r}, "
                f"but {text!r} alone"
            )
        if self.encode(whole) != self.encode(whole.removesuffix(text)) + self.encode(text):
            self._refuse("the tokenizer reads the text behind a turn's end differently when it stands alone")

    def _find_turn_end(self) -> int:
        after = self._after_turn([_user()])
        first = self._tokenize(after)[:1]
        if not first or first[0] not in self._tokenizer.get_added_vocab().values():
            self._refuse(f"no special token ends an assistant turn; it is followed by {after[:40]!r}")
        return first[0]

    def _end_text(self) -> str:
        return str(self._backend.id_to_token(self.turn_end))

    def _extension(self, messages: Sequence[Message]) -> str:
        """The text behind an assistant turn's end token."""
        if all(isinstance(value, str) for message in messages for value in message.values()):
            pieces = self._pieces(tuple(_shape(message) for message in messages))
            if pieces is not None:
                contents = [message["content"] for message in messages]
                return pieces[0] + "".join(map(str.__add__, contents, pieces[1:]))
        return self._after_end(messages)

    def _split(self, shapes: tuple[tuple[tuple[str, str], ...], ...]) -> list[str] | None:
        """The template's text around the contents of such messages; None where it alters contents."""

        def render(content: str) -> str:
            return self._after_end([{**dict(shape), "content": content} for shape in shapes])

        pieces = render(_HEARD).split(_HEARD)
        if len(pieces) != len(shapes) + 1:
            return None
        return pieces if all(render(probe) == probe.join(pieces) for probe in _PROBES) else None

    def _after_end(self, messages: Sequence[Message]) -> str:
        after = self._after_turn(messages)
        if not after.startswith(self._end_text()):
            self._refuse(f"a turn ends with {self._end_text()!r}, but here with {after[:40]!r}")
        return after.removeprefix(self._end_text())

    def _after_turn(self, messages: Sequence[Message]) -> str:
        turn = [{"role": "user", "content": "x"}, {"role": "assistant", "content": _SPOKEN}]
        return self._render([*turn, *messages], None).partition(_SPOKEN)[2]

    def _render_prompt(self, conversation: str) -> str:
        messages, tools = json.loads(conversation)
        return self._render(messages, tools)

    def _render(self, messages: list[Message], tools: Tools | None, *, generation_prompt: bool = True) -> str:
        apply: Any = self._tokenizer.apply_chat_template
        settings = {"tokenize": False, "add_generation_prompt": generation_prompt, **self._kwargs}
        try:
            return str(apply(messages, tools=tools, **settings))
        except TemplateError as error:
            self._refuse(f"roles {[message['role'] for message in messages]}: {error}")

    def _tokenize(self, text: str) -> tuple[int, ...]:
        return tuple(self._backend.encode(text, add_special_tokens=False).ids)

    def _refuse(self, reason: str) -> NoReturn:
        raise ConfigError(
            f"model.name_or_path: the chat template of {self._tokenizer.name_or_path!r} cannot be used "
            f"for multi-turn training with model.chat_template_kwargs={self._kwargs}: {reason}"
        )


def _shape(message: Message) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, value in message.items() if key != "content")


def _user() -> Message:
    return {"role": "user", "content": _HEARD}


def _tool(number: int) -> Message:
    return {"role": "tool", "name": "probe", "tool_call_id": f"call_{number}", "content": _HEARD}


def _turns(tools: Tools | None) -> list[str]:
    """What a model may say before it ends its turn."""
    call = format_tool_call(ToolCall("probe", {"a": 1}))
    return ["", "<think>\nHm.\n</think>\n\n", *([call, f"<think>Hm.</think>{call}"] if tools else [])]


def _histories(tools: Tools | None) -> Iterator[list[Message]]:
    """Conversations that end where the model speaks."""
    system, user = {"role": "system", "content": "s"}, {"role": "user", "content": "u"}
    reply = {"role": "tool", "name": "probe", "tool_call_id": "call_9", "content": "t"} if tools else user
    yield [user]
    for spoken in _turns(tools):
        turn = {"role": "assistant", "content": f"{spoken}a"}
        yield [user, turn, reply]
        yield [system, user, turn, reply, turn, reply]
