"""Runs `pollux` on a host whose clock is wrong by as many hours as the file `hours` in the working directory says."""

from __future__ import annotations

import sys
import time
from pathlib import Path

SECONDS = float(Path("hours").read_text()) * 3600
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + SECONDS
time.time_ns = lambda: _time_ns() + int(SECONDS) * 10**9

from pollux.cli import main  # noqa: E402  (what imports them by name gets the wrong ones, too)

sys.argv[0] = "pollux"
main()
