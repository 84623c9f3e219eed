"""What the services of a host have written to systemd's journal since some moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lab.hosts import Host


@dataclass(frozen=True)
class Journal:
    """The journal of a host since `since`, in seconds of its own clock."""

    host: Host
    since: str

    @classmethod
    def from_now(cls, host: Host) -> Journal:
        """What will be written."""
        return cls(host, host.run("date", "+%s.%N").strip())

    def says(self, text: str) -> bool:
        """Whether `text` is in it."""
        return text in self.host.run("journalctl", "--quiet", "--output=cat", f"--since=@{self.since}")
