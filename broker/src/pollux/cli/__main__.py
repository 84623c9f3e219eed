"""``python -m pollux.cli``: the command line without the installed script."""

from __future__ import annotations

from pollux.cli import main

main()
