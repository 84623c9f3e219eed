"""``pollux transaction``: prepared transactions (the first of two phases is over) and their outcome."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pollux.cli import api
from pollux.cli.output import Result, listed

app = typer.Typer(
    help="Prepared transactions: list, commit, roll back.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_PATH = "/api/v1/prepared-transactions"
_COLUMNS = {
    "xid": "xid",
    "sends": "sends",
    "acknowledges": "acknowledges",
    "queues": "queues",
    "from node": "from",
    "being moved to": "away",
}
Xid = Annotated[str, typer.Argument(metavar="XID", help="Identifier in hexadecimal digits, as `list` shows it.")]


@api.remote(app, "list", epilog="Example: pollux transaction list --json")
def list_transactions(client: api.Client) -> Result:
    """List them: what each would add to queues, and take out of them.

    Nobody but an operator, or the transaction manager that prepared one, knows its outcome.
    """
    return listed(client.items(_PATH), _COLUMNS, right=("sends", "acknowledges"))


@api.remote(app, "commit", epilog="Example: pollux transaction commit 0102ab")
def commit(client: api.Client, xid: Xid) -> Result:
    """Have all of one happen.

    What it sends is in its queues, and what it acknowledges is gone.
    """
    return _decided(client.post(f"{_PATH}/{xid}/commit"), "committed")


@api.remote(app, "rollback", epilog="Example: pollux transaction rollback 0102ab")
def rollback(client: api.Client, xid: Xid) -> Result:
    """Have nothing of one happen.

    What it sends is gone, and what it acknowledges is in its queues again, at their ends.
    """
    return _decided(client.post(f"{_PATH}/{xid}/rollback"), "rolled back")


def _decided(answer: Any, how: str) -> Result:
    return Result(answer, f"transaction {answer['xid']} {how}: {answer['count']} messages appeared in queues")
