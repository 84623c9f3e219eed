"""URIs with a real object store, which has neither directories nor renames: Hadoop's s3a and an S3 on this machine."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from harness.histories import History
from harness.s3 import JARS, Bucket
from harness.spark_cluster import SHORT_LIVED, UNCOMPILED
from pollux.formats.ledger import Confirmed, Received, Sent

COMMAND = Path(sys.executable).with_name("pollux-pipeline")


def test_a_history_in_a_bucket_is_judged_into_the_bucket(tmp_path: Path) -> None:
    """In the place of a run that was killed while it replaced its manifest. Breaks when a path is taken for one of this
    machine, or when what works by directories and by renaming onto a name is asked of an object store."""
    assert len(list(JARS.glob("*.jar"))) == 2, "make test sets them up"
    ledger = tmp_path / "host.ledger"
    History([Sent(1, "m1", "p"), Confirmed(2, "m1", "n", "castor", 1), Received(3, "m1", "q")]).write(ledger)
    (tmp_path / "cwd").mkdir()
    with Bucket("drills") as bucket:
        bucket.put("one/host.ledger", ledger.read_bytes())
        bucket.put("two/host.txt", b"what no pattern matches")
        bucket.put("out/_pollux.tmp", b'{"pollux_pipeline": 1, "wrote": ["messages", "result.json"]}')
        bucket.put("out/messages/part-0", b"of the run before")
        bucket.put("out/result.json", b"{}")
        bucket.put("out/mine/mail", b"somebody else's")
        confs = {"spark.driver.extraJavaOptions": SHORT_LIVED, **UNCOMPILED, **bucket.settings()}
        done = subprocess.run(
            [
                *(str(COMMAND), "reconcile", "-i", "s3a://drills/o?e/*.ledger", "-o", "s3a://drills/out"),
                *("--master", "local[2]", *(word for pair in confs.items() for word in ("--conf", "=".join(pair)))),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=1500,
            cwd=tmp_path / "cwd",
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.splitlines()[-1] == "report: s3a://drills/out/report.html"
        keys = bucket.keys()
        (messages,) = (key for key in keys if key.startswith("out/messages/part-"))
        assert pq.read_table(io.BytesIO(bucket.get(messages))).column("id").to_pylist() == ["m1"]
        assert json.loads(bucket.get("out/result.json"))["facts"]["confirmed"] == 1
        assert {"messages", "findings", "by_broker"} <= set(json.loads(bucket.get("out/_pollux.json"))["wrote"])
        assert bucket.get("out/mine/mail") == b"somebody else's"
    assert [key for key in keys if "_stage" in key or "_temporary" in key or key.endswith(".tmp")] == []
    assert list((tmp_path / "cwd").iterdir()) == [], "nothing is made on this machine"
