"""Which file systems hold a shared store, and that a refused start leaves no trace on one."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.ha.group import PATIENCE, PREFERRED, Store
from harness.files import snapshot
from pollux.ha.shared_store import filesystem
from pollux.ha.shared_store.filesystem import StoreDirectoryError, mount_of, refusal

LOCAL = "25 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"


def mounted(point: str, kind: str, options: str) -> str:
    """One line of mountinfo, as the kernel writes it (blanks are \\040)."""
    return f"99 25 0:50 / {point} rw,relatime shared:2 - {kind} server:/export {options}\n"


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("nfs", "rw,vers=3,soft,timeo=20", "NFS version 3"),
        ("nfs", "rw", "NFS version 3"),
        ("nfs4", "rw,vers=3", "NFS version 3"),
        ("ocfs2", "rw,cluster_stack=o2cb", "OCFS2"),
        ("nfs4", "rw,vers=4.2,soft,timeo=20,retrans=2", ""),
        ("nfs4", "rw,vers=4.1,proto=tcp", ""),
        ("gfs2", "rw", ""),
        ("xfs", "rw", ""),
        ("overlay", "rw,lowerdir=/vers=3", ""),
    ],
)
def test_file_systems_whose_locks_do_not_serve_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: str, words: str
) -> None:
    with Store(tmp_path / "on a mount") as store:
        point = str(store.path).replace(" ", "\\040")
        mountinfo = tmp_path / "mountinfo"
        mountinfo.write_text(LOCAL + mounted(point, kind, options))
        monkeypatch.setattr(filesystem, "MOUNTINFO", mountinfo)
        before = snapshot(store.path)
        member = store.member("a", PREFERRED).start()
        if not words:
            member.serve()
            return
        assert member.end.wait(PATIENCE)
        (error,) = member.refusals
        assert isinstance(error, StoreDirectoryError)
        assert words in str(error)
        assert str(store.path) in str(error)
        assert "version 4" in str(error) or "NFSv4" in str(error), "the remedy"
        assert snapshot(store.path) == before


def test_every_directory_of_the_store_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path / "store") as store:
        mountinfo = tmp_path / "mountinfo"
        mountinfo.write_text(LOCAL + mounted(str(store.path / "bindings"), "nfs", "rw,vers=3"))
        monkeypatch.setattr(filesystem, "MOUNTINFO", mountinfo)
        member = store.member("a", PREFERRED).start()
        assert member.end.wait(PATIENCE)
        assert str(store.path / "bindings") in str(member.refusals[0])
        assert not store.node.exists()


def test_the_mount_of_a_path_is_the_longest_and_last_one() -> None:
    lines = (
        LOCAL
        + mounted("/srv", "nfs4", "rw,vers=4.2")
        + mounted("/srv/two\\040words", "gfs2", "rw")
        + mounted("/srv", "xfs", "rw")
        + "nonsense\n"
    )
    paths = {"/var": "ext4", "/srv": "xfs", "/srv/a": "xfs", "/srv/two words/x": "gfs2", "/srvx": "ext4"}
    for path, kind in paths.items():
        assert mount_of(Path(path), lines)[1] == kind, path
    assert refusal(Path("/srv"), "tmpfs", "rw") == ""
