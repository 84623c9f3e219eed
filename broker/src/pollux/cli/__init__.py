"""The command line. Everything but the parser is imported when its command runs."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command ``pollux``.

    A plain ``pollux run FILE`` and ``pollux status`` go around the parser of all commands, which takes a tenth of a
    second to import: after a failure that is time without a broker, and playbooks and monitors ask all the time.
    """
    arguments = sys.argv[1:]
    if arguments[:1] == ["run"]:
        from pollux.cli import start

        if (plain := start.parse(arguments)) is not None:
            sys.exit(start.run_plain(plain))
    elif arguments[:1] == ["status"]:
        from pollux.cli import output, status

        if (question := status.parse(arguments)) is not None:
            output.run_command(lambda: status.ask(question))
    from pollux.cli.app import run

    run()
