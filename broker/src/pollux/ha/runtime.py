"""Where the files of a running broker are: those by which the command line finds it, and its locks.

The command line asks here before each question; what a broker needs besides is imported by whoever needs it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pollux.config.model import Configuration

RUN_DIRECTORY = "run"
#: Environment variable that names the directory of a member of a group.
RUN_VARIABLE = "POLLUX_RUN"
STATUS_FILE = "pollux.status.json"
#: The lives of a host that has several.
LIVES_FILE = "pollux.lives.json"
TOKEN_FILE = "pollux.token"  # noqa: S105  (a file's name)


def runtime_directory(configuration: Configuration) -> Path:
    """Where the broker's status and token are (and a single broker's lock and node id).

    Members of a group that shares a store have each a directory of their own: the one that the environment variable
    POLLUX_RUN names, else ``run`` beside broker.xml, or, where that cannot be written, one among the members' files on
    the store. Who may write where differs between a service in a sandbox and a shell, so service managers set the
    variable for both.
    """
    base = store_directory(configuration)
    if not configuration.shares_store or configuration.path is None:
        return base
    if named := os.environ.get(RUN_VARIABLE):
        return Path(named)
    from pollux.ha.members import MEMBERS, member_id
    from pollux.ha.store_layout import NODE_DIRECTORY

    beside = configuration.path.resolve().parent / RUN_DIRECTORY
    if os.access(beside if beside.exists() else beside.parent, os.W_OK | os.X_OK):
        return beside
    return base / NODE_DIRECTORY / MEMBERS / member_id(configuration.path)


def store_directory(configuration: Configuration) -> Path:
    """Where the locks and the node id of the store are."""
    return configuration.node_manager_lock_directory or configuration.journal_directory
