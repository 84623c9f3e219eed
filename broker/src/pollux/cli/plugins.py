"""``pollux plugin``: the plugins of a broker."""

from __future__ import annotations

import typer

from pollux.cli import api
from pollux.cli.output import Result, listed

app = typer.Typer(help="Plugins of a broker.", no_args_is_help=True, rich_markup_mode=None)

_COLUMNS = {
    "plugin": "name",
    "running": "running",
    "on error": "onError",
    "calls": "calls",
    "refused": "refused",
    "withheld": "withheld",
    "failures": "failures",
    "slow": "slow",
    "reason": "reason",
}


@api.remote(app, "list", epilog="Example: pollux plugin list --json")
def list_plugins(client: api.Client) -> Result:
    """List the plugins.

    Whether they run, what they refused or withheld, how often they failed or held the broker up.
    """
    return listed(client.get("/api/v1/plugins"), _COLUMNS, right=("calls", "refused", "withheld", "failures", "slow"))
