"""`pollux-pipeline JOB`: the command line of the jobs, their progress and exit codes."""

from __future__ import annotations

import glob
import json
import logging
import os
import sys
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from pollux_pipeline import ends
from pollux_pipeline.errors import InputError, text_of
from pollux_pipeline.places import Remote, fetched, here, is_remote, local
from pollux_pipeline.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from pollux_pipeline.jobs.base import Result, Run
    from pollux_pipeline.places import Output as Place
    from pollux_pipeline.sources.inputs import Inputs

EXIT_CLEAN, EXIT_FAILED, EXIT_USAGE, EXIT_FINDINGS = 0, 1, 2, 3

app = typer.Typer(
    name="pollux-pipeline",
    help="What happened to every message: jobs over Pollux journals and ledgers, on Spark.",
    epilog=(
        "Exit codes: 0 no findings; 1 Spark failed; 2 bad input or usage; 3 findings (see the report); 130 interrupted"
        ", 143 terminated. Needs Java 17 or newer."
    ),
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _complete(text: str) -> list[str]:
    """Paths of this machine that begin so: paths are texts here, as a Path would make one slash of a URI's two."""
    return [f"{one}/" if Path(one).is_dir() else one for one in sorted(glob.glob(f"{glob.escape(text)}*"))]  # noqa: PTH207


Input = Annotated[
    list[str],
    typer.Option(
        "--input",
        "-i",
        autocompletion=_complete,
        help="A ledger, or a directory with journals, ledgers or both below it; several times. A path or a URI.",
    ),
]
Output = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        autocompletion=_complete,
        help="Directory for tables (Parquet), report.html, result.json. A path or a URI.",
    ),
]
Master = Annotated[str, typer.Option("--master", help="Spark master: local[*], spark://HOST:7077, yarn, k8s://...")]
Memory = Annotated[str, typer.Option("--memory", help="Memory of the driver (in local mode of all).")]
Conf = Annotated[list[str] | None, typer.Option("--conf", help="A Spark property, NAME=VALUE; several times.")]
Delta = Annotated[
    bool, typer.Option("--delta", help="Write a Delta Lake log beside each table (pollux-pipeline[delta]).")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


class Spark:
    """Where and with what Spark runs."""

    def __init__(self, master: str, memory: str, conf: list[str] | None) -> None:
        self.master = master
        self.memory = memory
        self._conf = conf or []
        self._session: SparkSession | None = None
        self._starting = False

    def start(self, size: int | None) -> SparkSession:
        """The session, started when it is first asked for. `size`: bytes of input it is for; None: not known."""
        from pollux_pipeline.session import build_session

        if self._session is None:
            quiet_spark()
            settings = self.settings()
            self._starting = True
            self._session = build_session(self.master, memory=self.memory, settings=settings, size=size)
            ends.take_back()
        return self._session

    def end(self) -> None:
        """End it in the middle, where it was started or is starting."""
        if self._session is not None:
            ends.end_spark(self._session.sparkContext)
        elif self._starting:
            from pyspark import SparkContext

            ends.end_spark(SparkContext)

    def settings(self) -> dict[str, str]:
        """The properties of --conf. Raises InputError."""
        found: dict[str, str] = {}
        for text in self._conf:
            name, equals, value = text.partition("=")
            if not equals or not name.startswith("spark."):
                raise InputError(f"--conf {text}: expected spark.NAME=VALUE")
            found[name] = value
        return found


def execute(
    job: Callable[[Run], Result],
    inputs: Callable[[], Inputs],
    output: str | Path,
    *,
    spark: Spark,
    as_json: bool,
    options: dict[str, Any] | None = None,
) -> NoReturn:
    """Run a job, print its verdict and exit as its result says."""
    name = getattr(job, "__name__", "job")
    progress = Progress(name)
    with ends.signals(), _swept(str(output)):
        try:
            result = _run(job, inputs(), str(output), options or {}, progress, spark=spark)
        except InputError as error:
            progress.done()
            _stop(f"pollux-pipeline {name}: {error}", EXIT_USAGE)
        except OSError as error:
            progress.done()
            _stop(f"pollux-pipeline {name}: {error.filename or output}: {error.strerror or error}", EXIT_USAGE)
        except ends.Signalled as error:
            spark.end()
            progress.done()
            _stop(f"pollux-pipeline {name}: {error.word}; run it again, it starts over", error.code)
    progress.done()
    if as_json:
        sys.stdout.write(json.dumps(result.as_dict(), indent=2, default=str) + "\n")
    else:
        sys.stdout.write(f"{result.verdict}\n")
        if result.report is not None:
            sys.stdout.write(f"report: {result.report}\n")
    sys.stdout.flush()
    sys.exit(EXIT_FINDINGS if result.found else EXIT_CLEAN)


@contextmanager
def _swept(output: str) -> Iterator[None]:
    """Leave nothing half written behind in a directory of this machine, however a job ends."""
    try:
        yield
    except BaseException:
        if not is_remote(output):
            from pollux_pipeline.jobs.manifest import sweep

            sweep(here(output))
        raise


def _run(
    job: Callable[[Run], Result],
    inputs: Inputs,
    output: str,
    options: dict[str, Any],
    progress: Progress,
    *,
    spark: Spark,
) -> Result:
    from py4j.protocol import Py4JError

    from pollux_pipeline.jobs.base import Run

    progress.tell(f"starting Spark ({spark.master})")
    session = spark.start(inputs.size() or None)
    from pyspark.errors import PySparkException

    progress.watch(lambda: running_tasks(session))
    try:
        place: Place = Remote(session, output) if is_remote(output) else here(output).absolute()
        result = job(Run(session, inputs, place, options, progress.tell))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        progress.done()
        with suppress(PySparkException, Py4JError, OSError):  # there may be no JVM any more
            session.stop()
        if isinstance(error, (PySparkException, Py4JError, ConnectionError)):
            _failed(error, spark.memory, ended=ends.spark_has_ended(session.sparkContext))
        raise
    progress.done()
    session.stop()
    return result


def running_tasks(session: SparkSession) -> tuple[int, int]:
    """How many tasks of the stages that run now are done, and how many they have."""
    from py4j.protocol import Py4JError

    tracker = session.sparkContext.statusTracker()
    try:
        found = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    except (Py4JError, OSError):  # the JVM is gone: the job itself finds out, and says so
        return 0, 0
    stages = [stage for stage in found if stage is not None]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)


def _failed(error: Exception, memory: str, *, ended: bool) -> NoReturn:
    """Spark's own failures: the one line of a long text that says something. `ended`: whether its JVM has."""
    text = text_of(error)
    found, most_often = little_memory(memory)
    if "OutOfMemoryError" in text:
        _stop(f"pollux-pipeline: Spark failed: {found}", EXIT_FAILED)
    if ended:
        _stop(f"pollux-pipeline: Spark failed: {most_often}", EXIT_FAILED)
    if "InputError: " in text:
        _stop(f"pollux-pipeline: {text.rpartition('InputError: ')[2].splitlines()[0]}", EXIT_USAGE)
    # py4j's first line names only the call; what went wrong is the next one.
    nothing = ("at ", "An error occurred while calling ")
    lines = [line.strip().removeprefix(": ") for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith(nothing)]
    _stop(f"pollux-pipeline: Spark failed: {lines[0][:500] if lines else type(error).__name__}", EXIT_FAILED)


def little_memory(memory: str) -> tuple[str, str]:
    """Return how it is told that memory was too little, and that Spark's JVM ended without a word."""
    found = f"--memory {memory} is not enough for this input: give more"
    return found, f"its JVM ended in the middle; most often {found}"


def _stop(text: str, code: int) -> NoReturn:
    sys.stderr.write(text + "\n")
    sys.exit(code)


def quiet_spark() -> None:
    """Keep Spark's chatter off the terminal."""
    configuration = Path(__file__).parent / "log4j2.properties"
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-Dlog4j2.configurationFile={configuration.as_uri()}")
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addHandler(logging.NullHandler())  # py4j writes to the root as well, with traces
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")


def _here(paths: list[str], spark: Spark, option: str = "--input") -> list[str]:
    """Paths of this machine; what URIs of other file systems name is copied here. Raises InputError."""
    remote = [path for path in paths if is_remote(path)]
    mine = [str(here(path)) for path in paths if not is_remote(path)]
    if not remote:
        return mine
    if not spark.master.startswith("local"):
        raise InputError(f"{option} {remote[0]}: is copied to this machine, which the workers of --master do not see")
    return mine + fetched(spark.start(None), remote, option)


def _found(paths: list[str], spark: Spark) -> Callable[[], Inputs]:
    from pollux_pipeline.sources.inputs import find

    return lambda: find(_here(paths, spark))


def _found_here(paths: list[str]) -> Callable[[], Inputs]:
    """The same where URIs of other file systems are refused."""
    from pollux_pipeline.sources.inputs import find

    why = "give a copy on this machine, always the same one: what was read already is known by its path"
    return lambda: find([str(local(path, "--input", why)) for path in paths])


@app.callback()
def _root() -> None:
    """Tell what happened to every message: jobs over Pollux journals and ledgers, on Spark."""


@app.command("reconcile", epilog="Example: pollux-pipeline reconcile -i drill/ledger.txt -i castor/data -o out")
def reconcile(
    inputs: Input,
    output: Output,
    *,
    queue: Annotated[
        list[str] | None, typer.Option(help="A queue each message must have been received from; several times.")
    ] = None,
    master: Master = "local[*]",
    memory: Memory = "2g",
    conf: Conf = None,
    delta: Delta = False,
    as_json: Json = False,
) -> None:
    """Find what was lost, duplicated, invented, out of order or is stuck; what each activation cost."""
    from pollux_pipeline.jobs.reconcile import reconcile as job

    options = {"queues": queue or [], "delta": delta}
    spark = Spark(master, memory, conf)
    execute(job, _found(inputs, spark), output, spark=spark, as_json=as_json, options=options)


SideA = Annotated[
    str, typer.Option("--a", autocompletion=_complete, help="Data directory of one side: its journal and bindings.")
]
SideB = Annotated[str, typer.Option("--b", autocompletion=_complete, help="Data directory of the other side.")]


#: Of the two sides, whose files a plan names.
_COPY = "give a copy on this machine: what is decided about it names files in it"


def _sides(a: str, b: str, options: dict[str, Any]) -> Callable[[], Inputs]:
    """Inputs of the jobs that compare two journals: checked, and put into `options`."""

    def check() -> Inputs:
        from pollux_pipeline.jobs.pair import check_sides
        from pollux_pipeline.sources.inputs import Inputs

        options["sides"] = check_sides(local(a, "--a", _COPY), local(b, "--b", _COPY))
        return Inputs((options["sides"]["a"], options["sides"]["b"]), ())

    return check


@app.command(
    "compare_journals", epilog="Example: pollux-pipeline compare_journals --a castor/data --b pollux/data -o out"
)
def compare_journals(
    a: SideA,
    b: SideB,
    output: Output,
    *,
    master: Master = "local[*]",
    memory: Memory = "2g",
    conf: Conf = None,
    delta: Delta = False,
    as_json: Json = False,
) -> None:
    """Tell which of two stopped journals of one node is the newest, as a whole and for each queue."""
    from pollux_pipeline.jobs.compare_journals import compare_journals as job

    options: dict[str, Any] = {"delta": delta}
    execute(job, _sides(a, b, options), output, spark=Spark(master, memory, conf), as_json=as_json, options=options)


@app.command("split_brain", epilog="Example: pollux-pipeline split_brain --a castor/data --b pollux/data -o out")
def split_brain(
    a: SideA,
    b: SideB,
    output: Output,
    *,
    keep: Annotated[str, typer.Option(help="Which side's data is kept: a, b, or auto (the longer tail).")] = "auto",
    master: Master = "local[*]",
    memory: Memory = "2g",
    conf: Conf = None,
    delta: Delta = False,
    as_json: Json = False,
) -> None:
    """Find what each of two lives accepted and consumed alone, and write a plan that merges them exactly once."""
    from pollux_pipeline.jobs.split_brain import split_brain as job

    if keep not in ("a", "b", "auto"):
        _stop(f"pollux-pipeline split_brain: --keep {keep}: is not one of a, b, auto", EXIT_USAGE)
    options: dict[str, Any] = {"keep": keep, "delta": delta}
    execute(job, _sides(a, b, options), output, spark=Spark(master, memory, conf), as_json=as_json, options=options)


@app.command("ingest", epilog="Example: pollux-pipeline ingest -i /var/lib/pollux/data -o /srv/lake --live")
def ingest(
    inputs: Input,
    output: Output,
    *,
    live: Annotated[bool, typer.Option("--live", help="The brokers run: leave their last write for later.")] = False,
    master: Master = "local[*]",
    memory: Memory = "2g",
    conf: Conf = None,
    delta: Delta = False,
    as_json: Json = False,
) -> None:
    """Add what is new in journals and ledgers to a Parquet lake, each record exactly once."""
    from pollux_pipeline.jobs.ingest import ingest as job

    options = {"live": live, "delta": delta}
    spark = Spark(master, memory, conf)
    execute(job, _found_here(inputs), output, spark=spark, as_json=as_json, options=options)


@app.command("sizing", epilog="Example: pollux-pipeline sizing -i castor/data -i pollux/data -o out --load 90000")
def sizing(
    inputs: Input,
    output: Output,
    *,
    load: Annotated[int, typer.Option(min=0, help="Messages a second to plan for; 0: the busiest second seen.")] = 0,
    capacity: Annotated[int, typer.Option(min=1, help="Messages a second that one pair takes.")] = 40_000,
    master: Master = "local[*]",
    memory: Memory = "2g",
    conf: Conf = None,
    delta: Delta = False,
    as_json: Json = False,
) -> None:
    """Show throughput, depth and skew over time, and how many pairs a load takes."""
    from pollux_pipeline.jobs.sizing import sizing as job

    options = {"load": load, "capacity": capacity, "delta": delta}
    spark = Spark(master, memory, conf)
    execute(job, _found(inputs, spark), output, spark=spark, as_json=as_json, options=options)


@app.command(
    "archive", epilog="Example: pollux-pipeline archive --lake /srv/lake -o /srv/lake/retention --keep-days 30"
)
def archive(
    lake: Annotated[str, typer.Option("--lake", autocompletion=_complete, help="Directory that `ingest` wrote.")],
    output: Output,
    *,
    keep_days: Annotated[int, typer.Option(min=0, help="Days that stay as they are; older ones are packed.")] = 30,
    drop_days: Annotated[int, typer.Option(min=0, help="Packed days older than this are deleted; 0: never.")] = 0,
    master: Master = "local[*]",
    memory: Memory = "2g",
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Pack old days of a lake, and delete very old ones."""
    from pollux_pipeline.jobs.archive import archive as job
    from pollux_pipeline.sources.inputs import Inputs

    if drop_days and drop_days < keep_days:
        _stop(f"pollux-pipeline archive: --drop-days {drop_days} is before --keep-days {keep_days}", EXIT_USAGE)
    options: dict[str, Any] = {"keep_days": keep_days, "drop_days": drop_days}

    def check() -> Inputs:
        why = "its days are renamed, which this does on this machine's paths alone"
        options["lake"] = str(local(lake, "--lake", why).absolute())
        return Inputs((), ())

    execute(job, check, output, spark=Spark(master, memory, conf), as_json=as_json, options=options)


@app.command("prepare", epilog="Example: pollux-pipeline prepare     # once, where it was installed")
def prepare() -> None:
    """Have Spark start faster: keep the classes that it loads in a file of some 200 MB beside this program."""
    from pollux_pipeline.startup import archive, prepare

    quiet_spark()
    progress = Progress("prepare")
    progress.tell("running Spark once")
    try:
        with ends.signals():
            prepare()
    except ends.Signalled as error:
        progress.done()
        _stop(f"pollux-pipeline prepare: {error.word}; nothing was kept", error.code)
    except InputError as error:
        progress.done()
        _stop(f"pollux-pipeline prepare: {error}", EXIT_USAGE)
    except OSError as error:
        progress.done()
        _stop(f"pollux-pipeline prepare: {error.filename}: {error.strerror}", EXIT_USAGE)
    progress.done()
    sys.stdout.write(f"prepare: {archive()}\n")


def main() -> None:
    """Run the command line and exit."""
    try:
        app()
    except KeyboardInterrupt:
        _stop("pollux-pipeline: interrupted; run it again, it starts over", ends.Signalled().code)


if __name__ == "__main__":
    main()
