"""The commands of ``pollux`` and how errors become exit codes. The work is in the modules beside this one."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from pollux.cli import (
    activation,
    addresses,
    audit,
    bridges,
    broker,
    cluster,
    connections,
    drill,
    ha,
    journal,
    migrate,
    plugins,
    queues,
    sequence,
    stores,
    transactions,
    users,
)
from pollux.cli.output import print_line, run_command

app = typer.Typer(
    name="pollux",
    help="Pollux, a message broker for AMQP 1.0, STOMP and MQTT.",
    epilog=(
        "Exit codes: 0 done; 1 failed; 2 wrong usage or configuration; 3 no broker answers or it is not ready; "
        "4 log-in or permission refused; 5 data directory in use; 6 store failed; 7 cannot listen; 8 halted by the "
        "critical analyzer; 9 journal damaged; 12 not a store; 10 lost the right to serve."
    ),
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        from pollux.version import VERSION

        print_line(f"pollux {VERSION}")
        raise typer.Exit


@app.callback()
def main(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Pollux, a message broker for AMQP 1.0, STOMP and MQTT."""
    del version  # its callback did what there is to do


broker.register(app)
activation.register(app)
migrate.register(app)
drill.register(app)
app.add_typer(queues.app, name="queue")
app.add_typer(addresses.app, name="address")
app.add_typer(transactions.app, name="transaction")
app.add_typer(connections.app, name="connection")
app.add_typer(cluster.app, name="cluster")
app.add_typer(bridges.app, name="bridge")
app.add_typer(plugins.app, name="plugin")
app.add_typer(users.app, name="user")
app.add_typer(journal.app, name="journal")
app.add_typer(stores.app, name="store")
app.add_typer(audit.app, name="audit")
app.add_typer(sequence.app, name="activation")
app.add_typer(ha.app, name="ha")


def run() -> NoReturn:
    """Run the command line and exit."""
    run_command(app)
