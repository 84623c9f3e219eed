"""``pollux transaction``: prepared transactions (the first of two phases is over) and their outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pollux.cli import api
from pollux.cli.output import Result, listed

if TYPE_CHECKING:
    from collections.abc import Callable

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
    "half": "half",
}
Xid = Annotated[str, typer.Argument(metavar="XID", help="Identifier in hexadecimal digits, as `list` shows it.")]


@api.remote(app, "list", epilog="Example: pollux transaction list --json")
def list_transactions(client: api.Client) -> Result:
    """List them: what each would add to queues, and take out of them.

    Nobody but an operator, or the transaction manager that prepared one, knows its outcome.

    A half is one that another node was handing over when this one crashed: what it sends is here, and what it
    acknowledges is at that node. It comes again, whole; decide it here only when that node is lost for good.
    """
    return listed(client.items(_PATH), _COLUMNS, right=("sends", "acknowledges"))


@api.remote(app, "commit", epilog="Example: pollux transaction commit 0102ab")
def commit(client: api.Client, xid: Xid) -> Result:
    """Have all of one happen.

    What it sends is in its queues, and what it acknowledges is gone.
    """
    return _decided(client.post(f"{_PATH}/{xid}/commit"), "committed", _half_committed)


@api.remote(app, "rollback", epilog="Example: pollux transaction rollback 0102ab")
def rollback(client: api.Client, xid: Xid) -> Result:
    """Have nothing of one happen.

    What it sends is gone, and what it acknowledges is in its queues again, at their ends.
    """
    return _decided(client.post(f"{_PATH}/{xid}/rollback"), "rolled back", _half_rolled_back)


def _decided(answer: Any, how: str, of_half: Callable[[dict[str, Any]], str]) -> Result:
    words = f"transaction {answer['xid']} {how}: {answer['count']} messages appeared in queues"
    return Result(answer, "\n".join([words, *(of_half(half) for half in answer["halves"])]))


def _half_committed(half: dict[str, Any]) -> str:
    return (
        f"half of it had come from node {half['from']}: all that it sends, and of the {half['acknowledges']} messages "
        "that it acknowledges none. Should that node come back and hand it over again, they are gone there. If it was "
        "committed on another node too, what it sends is there twice"
    )


def _half_rolled_back(half: dict[str, Any]) -> str:
    return (
        f"half of it had come from node {half['from']}: what it sends is gone here; the {half['acknowledges']} "
        "messages that it acknowledges were never here, and are lost if that node is. Should that node come back, the "
        "transaction comes again, whole, and is to be decided again"
    )
