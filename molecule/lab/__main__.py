"""`.venv/bin/python molecule/lab up`: runs the lab's command line out of its directory."""

import sys
from pathlib import Path

# Python puts this directory first in the path; its parent belongs there, and the harness's.
sys.path[:1] = map(str, Path(__file__).resolve().parents[1:3])

from lab.cli import main  # noqa: E402

sys.exit(main())
