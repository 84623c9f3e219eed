"""Paths that are not of this machine: URIs, read and written through the file systems that Spark has (s3a:, hdfs:).

What is read of them is copied here first, for journals and trails are read by Python. Tables are written where they
belong by Spark's own tasks; the few small files beside them by a `Remote`, which is to jobs what a `pathlib.Path` is.
"""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote

from pollux_pipeline.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

    from pyspark.sql import SparkSession

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/.*)", re.DOTALL)


def is_remote(text: str) -> bool:
    """Whether a path is a URI of another file system than this machine's."""
    match = _URI.fullmatch(text)
    return match is not None and match[1].lower() != "file"


def here(text: str) -> Path:
    """A path of this machine, which may be given as file:/... or file:///..."""
    match = _URI.fullmatch(text)
    if match is None:
        return Path(text)
    path = match[2]
    if path.startswith("//"):
        path = "/" + path[2:].partition("/")[2]
    return Path(unquote(path))


def local(text: str, option: str, why: str) -> Path:
    """The same; InputError, which says `why`, for a URI of another file system."""
    if is_remote(text):
        raise InputError(f"{option} {text}: {why}")
    return here(text)


class Remote:
    """A path of another file system. Raises InputError, with the words of that, where something does not work."""

    def __init__(self, session: SparkSession, uri: str, option: str = "--output") -> None:
        self._session = session
        self._uri = uri.rstrip("/")
        self._option = option
        with self._told():
            self._path = self._jvm.org.apache.hadoop.fs.Path(uri)
            self._system = self._path.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001

    @property
    def _jvm(self) -> Any:
        return self._session.sparkContext._jvm  # noqa: SLF001

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what the file system raises into one line."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            yield
        except Py4JJavaError as error:
            self._refuse(str(error.java_exception.toString()).splitlines()[0])
        except PySparkException as error:
            self._refuse(str(error).splitlines()[0])

    def _refuse(self, words: str) -> NoReturn:
        scheme = self._uri.partition(":")[0]
        if "ClassNotFoundException" in words or "UnsupportedFileSystemException" in words:
            version = self._jvm.org.apache.hadoop.util.VersionInfo.getVersion()
            jar = f", for s3a: --conf spark.jars.packages=org.apache.hadoop:hadoop-aws:{version}"
            raise InputError(
                f"{self._option} {self._uri}: Spark has no file system for {scheme}: ({words}); give it the jar{jar}"
            )
        raise InputError(f"{self._option} {self._uri}: {words[:500]}")

    def __str__(self) -> str:
        return self._uri

    def __truediv__(self, name: str) -> Remote:
        return Remote(self._session, f"{self._uri}/{name}", self._option)

    @property
    def name(self) -> str:
        """The part behind the last slash."""
        return self._uri.rpartition("/")[2]

    def with_suffix(self, suffix: str) -> Remote:
        """Another file beside this one."""
        stem = self.name.rpartition(".")[0] or self.name
        return Remote(self._session, f"{self._uri.rpartition('/')[0]}/{stem}{suffix}", self._option)

    def exists(self) -> bool:
        """Whether it is there."""
        with self._told():
            return bool(self._system.exists(self._path))

    def is_dir(self) -> bool:
        """Whether it is there and a directory."""
        with self._told():
            return self.exists() and bool(self._system.getFileStatus(self._path).isDirectory())

    def iterdir(self) -> Iterator[Remote]:
        """List the directory."""
        with self._told():
            found = [str(one.getPath().getName()) for one in self._system.listStatus(self._path)]
        yield from (self / name for name in sorted(found))

    def matching(self) -> list[Remote]:
        """Return all that it matches as a pattern; itself, where it is there and no pattern."""
        with self._told():
            told = self._system.globStatus(self._path) or ()
            return [Remote(self._session, str(one.getPath().toString()), self._option) for one in told]

    def glob(self, pattern: str) -> list[Remote]:
        """Return all that is below it and matches a pattern with as many parts as the way there has."""
        return (self / pattern).matching()

    @property
    def parent(self) -> Remote:
        """The directory that it is in."""
        return Remote(self._session, self._uri.rpartition("/")[0], self._option)

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Make it a directory, and those above it, as all of these file systems do."""
        del parents, exist_ok
        with self._told():
            self._system.mkdirs(self._path)

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Delete the file."""
        del missing_ok
        with self._told():
            self._system.delete(self._path, False)

    def remove(self) -> None:
        """Delete it, with all that is below it."""
        with self._told():
            self._system.delete(self._path, True)

    def replace(self, target: Remote) -> None:
        """Rename it. Most of these file systems replace nothing by that, so what was there is deleted before."""
        target.unlink()
        with self._told():
            renamed = bool(self._system.rename(self._path, self._jvm.org.apache.hadoop.fs.Path(str(target))))
        if not renamed:
            raise InputError(f"{self._option} {target}: cannot be written")

    @contextmanager
    def open(self, mode: str = "rb") -> Iterator[BinaryIO]:
        """The file, read (`rb`) or written (`wb`) by way of one of this machine."""
        with tempfile.TemporaryDirectory(prefix="pollux-pipeline-") as directory:
            file = Path(directory, "file")
            if mode == "rb":
                self.fetch(file)
                with file.open("rb") as stream:
                    yield stream
                return
            with file.open("wb") as stream:
                yield stream
            with self._told():
                self._system.copyFromLocalFile(False, True, self._local(file), self._path)

    def read_bytes(self) -> bytes:
        """All of it. Raises FileNotFoundError too."""
        if not self.exists():
            raise FileNotFoundError(2, "No such file", str(self))
        with self.open("rb") as stream:
            return stream.read()

    def write_text(self, text: str, encoding: str = "utf-8") -> None:
        """Replace it."""
        with self.open("wb") as stream:
            stream.write(text.encode(encoding))

    def touch(self) -> None:
        """Make it an empty file."""
        self.write_text("")

    def fetch(self, to: Path) -> None:
        """Copy the file, or the directory with all that is below it, to this machine."""
        with self._told():
            self._system.copyToLocalFile(False, self._path, self._local(to), True)

    def _local(self, path: Path) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.net.URI(path.absolute().as_uri()))


#: Where a job writes.
Output = Path | Remote


def remove(path: Output) -> None:
    """Delete a directory with all that is below it, where it is there."""
    if isinstance(path, Remote):
        path.remove()
    else:
        shutil.rmtree(path, ignore_errors=True)


def finish(unfinished: Any, path: Output) -> None:
    """Put a file, which is of the same kind, in the place of another one, which may be there."""
    unfinished.replace(path)


def write_text(path: Output, text: str) -> None:
    """Replace a file."""
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(text, encoding="utf-8")
    finish(unfinished, path)


def fetched(session: SparkSession, uris: Sequence[str], option: str = "--input") -> list[str]:
    """Copy what URIs, which may be patterns, name to this machine, until this process ends; where it is then.

    Raises InputError when there is nothing.
    """
    top = Path(tempfile.mkdtemp(prefix="pollux-pipeline-"))
    atexit.register(shutil.rmtree, top, ignore_errors=True)
    found = []
    for number, uri in enumerate(uris):
        every = Remote(session, uri, option).matching()
        if not every:
            raise InputError(f"{option} {uri}: does not exist")
        for each, one in enumerate(every):
            place = top / f"{number}-{each}" / (one.name or "top")
            place.parent.mkdir()
            one.fetch(place)
            found.append(str(place))
    return found
