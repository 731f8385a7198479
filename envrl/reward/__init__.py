"""Reward terms: each reads an episode's record and gives a number, or None for "no opinion"."""

from __future__ import annotations

from envrl.reward.terms import TERMS, Record, Term, is_group_term, resolve, total

__all__ = ["TERMS", "Record", "Term", "is_group_term", "resolve", "total"]
