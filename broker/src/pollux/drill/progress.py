"""Shows a running drill: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from rich.live import Live
    from rich.table import Table

    from pollux.drill.run import Progress

#: Seconds between plain lines.
_LINE_EVERY = 2.0


class Display:
    """A context manager; :attr:`show` takes each :class:`Progress`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live: Live | None = None
        self._last = -_LINE_EVERY
        self._notes = 0
        self._before: tuple[float, int] = (0.0, 0)
        self.show: Callable[[Progress], None] = self._line

    def __enter__(self) -> Self:
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=self._stream), refresh_per_second=4, transient=True)
            self._live.__enter__()
            self.show = self._table
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, traceback)

    def _table(self, progress: Progress) -> None:
        if self._live is not None:
            self._live.update(table(progress, self._rate(progress)))

    def _line(self, progress: Progress) -> None:
        for at, text in progress.notes[self._notes :]:
            self._stream.write(f"{at:8.3f} s  {text}\n")
        self._notes = len(progress.notes)
        if progress.elapsed - self._last >= _LINE_EVERY or progress.phase == "done":
            self._last = progress.elapsed
            self._stream.write(line(progress, self._rate(progress)) + "\n")
        self._stream.flush()

    def _rate(self, progress: Progress) -> float:
        """Confirmed messages a second since the last look."""
        total = sum(progress.confirmed.values())
        at, before = self._before
        self._before = progress.elapsed, total
        return max(total - before, 0) / (progress.elapsed - at) if progress.elapsed > at else 0.0


def line(progress: Progress, rate: float) -> str:
    """One line for logs."""
    states = ", ".join(f"{name} {state}" for name, state in progress.states.items())
    return (
        f"{progress.elapsed:8.3f} s  {progress.phase}: {sum(progress.confirmed.values())} confirmed ({rate:.0f}/s), "
        f"{sum(progress.received.values())} received, {progress.outstanding} outstanding; {states}"
    )


def table(progress: Progress, rate: float) -> Table:
    """The picture for a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    title = f"{progress.phase}  {progress.elapsed:.1f} s  {rate:.0f} confirmed/s  {progress.outstanding} outstanding"
    found = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    found.add_column("protocol")
    found.add_column("confirmed", justify="right")
    found.add_column("received", justify="right")
    for name, count in progress.confirmed.items():
        found.add_row(name, str(count), str(progress.received.get(name, 0)))
    found.add_section()
    for name, state in progress.states.items():
        style = "green" if state.startswith("live") else "red" if state == "down" else "cyan"
        found.add_row(Text(name), Text(state, style=style), "")
    for at, text in progress.notes[-5:]:
        found.add_row(Text(f"{at:.2f} s"), Text(text), "")
    return found
