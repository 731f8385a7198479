"""Addresses of servers that a user names."""

from __future__ import annotations

import re
from urllib.parse import urlsplit


def is_address(url: str, schemes: str) -> bool:
    """Whether it has one of the schemes (`http|https`), a host, and a port below 65536 if any."""
    try:
        parts = urlsplit(url)
        return bool(re.fullmatch(rf"({schemes})://\S+", url) and parts.hostname and parts.port != 0)
    except ValueError:  # a port that is none, or half an IPv6 address
        return False
