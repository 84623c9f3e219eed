"""A fault of a host with two servers of PostgreSQL, one of them the other's standby. See :mod:`lab.faults`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lab.faults import Fault, wait_for
from lab.places import LabError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Sessions of brokers on a server that can be written to.
_WRITERS = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'pollux' AND NOT pg_is_in_recovery()"


@dataclass
class Promote(Fault):
    """The server that is written to is killed for good, and its standby promoted. Clusters by their Debian names.

    That is not undone: who was lost is an administrator's to bring back, as a standby.
    """

    name: ClassVar[str] = "promote"
    once: ClassVar[bool] = True
    version: int = 15
    lost: str = "main"
    standby: str = "standby"

    def _states(self) -> dict[str, str]:
        lines = self.host.run("pg_lsclusters", "--no-header").splitlines()
        return {name: state for _, name, _, state, *_ in map(str.split, lines)}

    def prepare(self) -> None:
        """Both must run, as what they are."""
        states = self._states()
        if (states.get(self.lost), states.get(self.standby)) != ("online", "online,recovery"):
            raise LabError(f"{self.host.name} has no server {self.lost} with a standby {self.standby}: {states}")

    def apply(self) -> float | None:
        """Kill the one, promote the other."""
        unit = f"postgresql@{self.version}-{self.lost}.service"
        at = self.host.strike("systemctl", "kill", "--signal=KILL", unit)
        self.host.run("pg_ctlcluster", str(self.version), self.standby, "promote")
        return at

    def check(self) -> None:
        """The one does not run, and the other is written to."""
        wait_for(
            lambda: (states := self._states())[self.lost].startswith("down") and states[self.standby] == "online",
            f"{self.standby} is in the place of {self.lost} on {self.host.name}",
        )

    def undo(self) -> None:
        """Leave it: whoever was lost stays so."""

    def check_undone(self) -> None:
        """Brokers use the new server."""
        words = ("runuser", "-u", "postgres", "--", "psql", "-XAtq", "--cluster", f"{self.version}/{self.standby}")
        wait_for(lambda: int(self.host.run(*words, "-c", _WRITERS)) > 0, f"brokers use {self.standby}")


FAULTS: Mapping[str, type[Fault]] = {Promote.name: Promote}
