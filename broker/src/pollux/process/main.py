"""The broker as a process: logging, event loop, signals, exit code. Everything the command line needs to run one."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import uvloop
from msgspec import Struct, field

from pollux import logs
from pollux.config import ConfigError, Problem, Severity
from pollux.config.colocated_ports import colocated_of
from pollux.errors import PolluxError, StoreError
from pollux.logs import event, failure
from pollux.process.broker import Broker
from pollux.process.exits import EXIT_FAILED, EXIT_USAGE
from pollux.process.failures import exit_code
from pollux.process.judgement import judge
from pollux.process.status import write_private

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from pathlib import Path

    from pollux.config.colocated_ports import Colocated
    from pollux.config.model import Configuration
    from pollux.config.users import Users
    from pollux.process.broker import Component

logger = logging.getLogger("pollux.broker")

#: Not an exit code: the process replaces itself.
_AGAIN = -1
#: What asks for the end of the process.
_ENDS = (signal.SIGTERM, signal.SIGINT)
#: Seconds that threads have for what they still do when everything else is over.
_PATIENCE = 5.0
#: Seconds in which the loop looks at its descriptors once more.
_LAST_LOOK = 0.001


class RunOptions(Struct, frozen=True):
    """Hold what the command line says. ``log_*`` None: as broker.xml says."""

    path: Path
    properties: Mapping[str, str] = field(default_factory=dict)
    ports_file: Path | None = None
    log_level: str | None = None
    log_json: bool | None = None
    #: Makes the components that run beside the broker, once it is built.
    components: Callable[[Broker], list[Component]] = lambda _broker: []
    #: A qpidd.conf beside it.
    qpidd: Path | None = None
    #: Runs what a colocated policy asks for: several lives, each a process like this one.
    supervise: Callable[[Configuration, Colocated], int] | None = None
    #: Which of several lives on a host this is: log lines say it.
    life: str | None = None


def run_broker(options: RunOptions) -> int:
    """Run a broker until it is stopped; returns the exit code (:mod:`pollux.process.exits`)."""
    # Until somebody listens to it: it would end this process.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
    logs.configure(options.log_level or "INFO", json_lines=bool(options.log_json), life=options.life)
    try:
        configuration, users = _load(options)
    except ConfigError as error:
        for problem in error.problems:
            print(problem.render(), file=sys.stderr)
        return EXIT_USAGE
    try:
        configure_logs(options, configuration)
    except OSError as error:
        text = f"px:logging: file {configuration.logging.file}: {error.strerror}"
        print(Problem(str(options.path), configuration.logging.line, Severity.ERROR, text).render(), file=sys.stderr)
        return EXIT_USAGE
    colocated = colocated_of(configuration)
    if colocated is not None and options.supervise is not None:
        return options.supervise(configuration, colocated)
    code = _run_loop(_run(options, configuration, users))
    if code == _AGAIN:
        # The broker handed its store over and becomes a standby: a new life in the same process.
        logging.shutdown()
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  (ourselves, no shell)
    if code:
        # Threads may hang in system calls on a store that failed; waiting for them would wait for ever.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)
    return code


def _run_loop(life: Coroutine[None, None, int]) -> int:
    """Run it to its end; returns its code. A loop waits for its threads then: one may hang on the store for ever."""
    code = EXIT_FAILED

    def leave() -> None:
        event(logger, logging.WARNING, "threads hang, on the store perhaps: the process ends without them")
        logging.shutdown()
        sys.stdout.flush()
        os._exit(EXIT_FAILED if code == _AGAIN else code)

    timer = threading.Timer(_PATIENCE, leave)
    timer.daemon = True

    async def whole() -> None:
        nonlocal code
        try:
            code = await life
        finally:
            timer.start()

    try:
        uvloop.run(whole())
    finally:
        timer.cancel()
    return code


def configure_logs(options: RunOptions, configuration: Configuration) -> None:
    """Log as the command line says, else as broker.xml says."""
    settings = configuration.logging
    json_lines = options.log_json if options.log_json is not None else settings.format.value == "JSON"
    stream = None
    if settings.file is not None:
        settings.file.parent.mkdir(parents=True, exist_ok=True)
        stream = settings.file.open("a", encoding="utf-8", buffering=1)
    logs.configure(options.log_level or settings.level.value, json_lines=json_lines, stream=stream, life=options.life)


def _load(options: RunOptions, *, again: bool = False) -> tuple[Configuration, Users]:
    given = {**os.environ, **options.properties}
    return judge(options.path, given, stores=not again, qpidd=options.qpidd).usable()


async def _run(options: RunOptions, configuration: Configuration, users: Users) -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_unhandled)
    if options.ports_file is not None and configuration.in_ha_group:
        with suppress(OSError):
            options.ports_file.unlink(missing_ok=True)  # of the life before, when this process started itself again
    asked: list[str] = []

    def end(name: str) -> None:
        asked.append(name)
        broker.request_stop(name)

    for number in _ENDS:
        loop.add_signal_handler(number, end, signal.Signals(number).name)
    reloads: set[asyncio.Task[None]] = set()

    def hang_up() -> None:
        task = loop.create_task(_reload(broker))
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    def heard(*_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(hang_up)

    # Not the loop's: whatever it listened to ends the process, for a moment, when it listens no more.
    signal.signal(signal.SIGHUP, heard)
    signal.siginterrupt(signal.SIGHUP, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
    # A signal that comes meanwhile is heard when the loop goes on, and there is a broker.
    try:
        broker = Broker(configuration, users, load=lambda: _load(options, again=True))
    except Exception as error:
        return _refused(error)
    broker.components = options.components(broker)
    start = loop.create_task(_start(broker))
    start.add_done_callback(lambda _: gc.enable())
    stop = loop.create_task(broker.stop_wanted())
    await asyncio.wait((start, stop), return_when=asyncio.FIRST_COMPLETED)
    if not start.done():
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        return broker.exit_code
    stop.cancel()
    code = start.result()
    if code is not None:
        return code
    if options.ports_file is not None:
        _write_ports(options.ports_file, broker)
    code = await broker.run()
    # A life to come reads everything when it begins.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if code or not broker.starts_again:
        return code
    # Whoever asks for its end now means the process, not the life that is over: it must not begin another one. From
    # here on it dies of the signal; what came before is heard of when the loop has looked once more.
    for number in _ENDS:
        signal.signal(number, signal.SIG_DFL)
    await asyncio.sleep(_LAST_LOOK)
    return code if asked else _AGAIN


def _write_ports(path: Path, broker: Broker) -> None:
    """Tell whoever started the broker where it listens. A broker that cannot tell it serves all the same."""
    try:
        write_private(path, json.dumps(broker.ports()) + "\n")
    except OSError as error:
        event(logger, logging.ERROR, "the file of the ports cannot be written", file=path, reason=error)


async def _start(broker: Broker) -> int | None:
    """Start the broker; None when it runs, else the exit code, with the reason logged."""
    try:
        await broker.start()
    except Exception as error:
        # Whatever it is, its end must not wait for threads that may hang: see run_broker.
        return _refused(error)
    return None


def _refused(error: Exception) -> int:
    """Log why the broker cannot start; returns the exit code."""
    if isinstance(error, ConfigError):
        for problem in error.problems:
            event(logger, logging.ERROR, problem.render())
    elif isinstance(error, PolluxError):
        event(logger, logging.CRITICAL if isinstance(error, StoreError) else logging.ERROR, str(error))
    elif isinstance(error, OSError):
        event(logger, logging.ERROR, "the broker cannot start", reason=error)
    else:
        failure(logger, logging.ERROR, "the broker cannot start", error)
        return EXIT_FAILED
    return exit_code(error)


async def _reload(broker: Broker) -> None:
    try:
        await broker.reload()
    except PolluxError:
        return  # logged with its reason
    except Exception:
        logger.exception("reload failed")


def _unhandled(_loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Log what the loop could not hand to anybody: one line with its traceback, never the loop's own format."""
    error = context.get("exception")
    if isinstance(error, (ConnectionError, TimeoutError)):
        return  # a connection that went away while something was sent to it
    given = error if isinstance(error, BaseException) else None
    failure(logger, logging.ERROR, "unhandled error in the event loop", given, what=context.get("message"))
