"""Print what commands say: tables for people, JSON for machines, errors on standard error.

Colours only on a terminal (rich looks at NO_COLOR too). Errors name the thing, the place and the remedy.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


#: As shells have it: 128 and SIGINT.
EXIT_INTERRUPTED = 130


class CommandError(Exception):
    """A command failed; the text is printed on standard error and ``code`` is the exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Result(NamedTuple):
    """Hold what a command found: ``value`` for ``--json``; for people a line or ``show`` to print it; the exit code."""

    value: Any
    show: str | Callable[[], None]
    code: int = 0

    def print(self, *, as_json: bool) -> None:
        """Print it one way or the other, and end with its code unless that is 0."""
        if as_json:
            print_json(self.value)
        elif callable(self.show):
            self.show()
        else:
            print_line(self.show)
        if self.code:
            sys.exit(self.code)


def run_command(command: Callable[[], None]) -> NoReturn:
    """Run a command and end the program with the exit code that it has."""
    try:
        command()
    except CommandError as error:
        print_error(f"pollux: {error}")
        sys.exit(error.code)
    except BrokenPipeError:
        # `pollux queue list | head`: nobody reads any more.
        sys.stderr.close()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(0)


def print_json(value: Any) -> None:
    """``value`` as JSON on standard output."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False, default=str)
    sys.stdout.write("\n")


def print_line(text: str) -> None:
    """Print one line on standard output."""
    sys.stdout.write(text + "\n")


def print_error(text: str) -> None:
    """Print one line on standard error."""
    sys.stderr.write(text + "\n")


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()
) -> None:
    """A table; the columns named in ``right`` are numbers. One without rows is the word ``none``."""
    _print(title, columns, list(rows), right=right, header=True)


def print_pairs(title: str, pairs: Iterable[tuple[str, Any]]) -> None:
    """A thing's attributes, one per line."""
    _print(title, ("", ""), list(pairs), header=False)


def _print(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[str] = (), header: bool
) -> None:
    if not rows:
        print_line(f"{title}: none" if title else "none")
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Piped into another program, no line may be cut to the width of a terminal that is not there.
    console = Console(width=None if sys.stdout.isatty() else 400, highlight=False)
    table = Table(
        title=title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD if header else None,
        pad_edge=False,
        show_header=header,
    )
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    console.print(table)


def size(count: float) -> str:
    """Bytes for people: ``512 B``, ``11.8 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def listed(items: Iterable[dict[str, Any]], columns: dict[str, str], *, right: Sequence[str] = ()) -> Result:
    """A list as a result; ``columns`` are the table's titles and the items' fields."""
    found = list(items)
    rows = [[each[field] for field in columns.values()] for each in found]
    return Result(found, lambda: print_table("", list(columns), rows, right=right))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value) or "-"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    text = str(value)
    # What clients chose as a name must not write to the administrator's terminal.
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def fail(text: str, code: int) -> NoReturn:
    """Stop the command with an error."""
    raise CommandError(text, code)
