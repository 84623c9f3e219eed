"""The command line. Everything but the parser is imported when its command runs."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of ``pollux``.

    A plain ``pollux run FILE`` goes around the parser of all commands, which takes a tenth of a second to
    import: after a failure that is time without a broker.
    """
    from pollux.cli import start

    plain = start.parse(sys.argv[1:])
    if plain is not None:
        sys.exit(start.run_plain(plain))
    from pollux.cli.app import run

    run()
