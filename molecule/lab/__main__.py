"""`.venv/bin/python molecule/lab up`: runs the lab's command line out of its directory."""

import sys
from pathlib import Path

# Python puts this directory first in the path; it is the package's parent that belongs there.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from lab.cli import main  # noqa: E402

sys.exit(main())
