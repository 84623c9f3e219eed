"""Reads what the services of a host have written to systemd's journal; that is still there after a power cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lab.host import Host

#: Kept on disk, and what was written is there a second later: by default it is in memory where nobody has made the
#: directory for it, and else on disk after five minutes.
_SETTINGS = "[Journal]\\nStorage=persistent\\nSyncIntervalSec=1s\\n"


def keep(root: str = "") -> str:
    """Shell commands by which a host, whose root file system is at ``root``, keeps its journal over power cuts."""
    directory = f"{root}/etc/systemd/journald.conf.d"
    return f"mkdir -p {root}/var/log/journal {directory} && printf '{_SETTINGS}' > {directory}/lab.conf"


@dataclass(frozen=True)
class Journal:
    """The journal of a host since `since`, in seconds of its own clock."""

    host: Host
    since: str

    @classmethod
    def from_now(cls, host: Host) -> Journal:
        """Return what will be written."""
        return cls(host, host.run("date", "+%s.%N").strip())

    def says(self, text: str) -> bool:
        """Whether `text` is in it."""
        return text in self.host.run("journalctl", "--quiet", "--output=cat", f"--since=@{self.since}")
