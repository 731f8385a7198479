"""The language model's side: weights and tokenizer, chat rendering, tool-call parsing, the tiny model.

Only the text part is exported here; what needs torch or transformers is imported by its module.
"""

from __future__ import annotations

from envrl.model.tool_calls import format_tool_call, parse_tool_calls, strip_thinking

__all__ = ["format_tool_call", "parse_tool_calls", "strip_thinking"]
