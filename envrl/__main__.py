"""`python -m envrl`."""

from __future__ import annotations

import sys

from envrl.cli import main

if __name__ == "__main__":
    sys.exit(main())
