"""Runs `pollux` so that it dies while it raises the activation sequence, where the file `die-at` of the working
directory says (:mod:`die_raising` of the lab, which does the same to deployed hosts): a program for tests.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pollux.cli import main

os.environ["POLLUX_DIE_AT"] = str(Path("die-at").absolute())
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "molecule" / "lab" / "playbooks" / "files"))
__import__("die_raising")
sys.argv[0] = "pollux"
main()
