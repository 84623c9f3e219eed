"""Masked passwords and their key file."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.config import load
from pollux.config.masked import MaskingError, generate_key, is_masked, mask, read_key, unmask, write_key

from .documents import document, messages

if TYPE_CHECKING:
    from pathlib import Path

KEY = generate_key()


@given(st.text(max_size=200))
def test_round_trip(text: str) -> None:
    masked = mask(text, KEY)
    assert is_masked(masked)
    assert unmask(masked, KEY) == text
    assert unmask(masked.removeprefix("ENC(").removesuffix(")"), KEY) == text


def test_the_same_password_is_masked_differently_each_time() -> None:
    assert mask("secret", KEY) != mask("secret", KEY)
    assert "secret" not in mask("secret", KEY)


def test_another_key_or_a_changed_text_is_refused() -> None:
    masked = mask("secret", KEY)
    with pytest.raises(MaskingError, match="does not fit the key"):
        unmask(masked, generate_key())
    changed = masked[:20] + ("A" if masked[20] != "A" else "B") + masked[21:]
    with pytest.raises(MaskingError, match="does not fit the key"):
        unmask(changed, KEY)


@pytest.mark.parametrize("text", ["ENC(v1.)", "ENC(v1.!!!)", "ENC(v1.AAAA)", "ENC(v1.AAAAA)"])
def test_damaged_texts_are_refused(text: str) -> None:
    with pytest.raises(MaskingError, match="does not fit the key"):
        unmask(text, KEY)


def test_passwords_masked_by_others_are_refused_with_the_remedy() -> None:
    with pytest.raises(MaskingError, match="mask it again with this broker's key"):
        unmask("ENC(-1c2d3e4f)", KEY)


def test_key_files(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_key(path, KEY)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_key(path) == KEY
    with pytest.raises(MaskingError, match="exists already"):
        write_key(path, generate_key())
    path.chmod(0o640)
    with pytest.raises(
        MaskingError, match=f"^key file {path} has mode 0640; others must have no access: chmod 600 {path}$"
    ):
        read_key(path)
    path.chmod(0o600)
    for content in ("", "short", "!" * 44, "A" * 100):
        path.write_text(content)
        with pytest.raises(MaskingError, match="does not hold a key: 32 bytes in base64 are expected"):
            read_key(path)
    with pytest.raises(MaskingError, match="cannot be read: No such file"):
        read_key(tmp_path / "none")
    with pytest.raises(MaskingError, match="cannot be created: No such file"):
        write_key(tmp_path / "none" / "key", KEY)


SECURITY = "<px:security><px:key-file>key</px:key-file></px:security>"


def test_the_loader_unmasks(tmp_path: Path) -> None:
    write_key(tmp_path / "key", KEY)
    file = tmp_path / "broker.xml"
    acceptor = (
        '<acceptors><acceptor name="a">tcp://a:1?sslEnabled=true;keyStorePath=x;keyStorePassword='
        f"{mask('p;q', KEY)}</acceptor></acceptors>"
    )
    file.write_text(document(f"<cluster-password>{mask('sésame', KEY)}</cluster-password>{acceptor}", SECURITY))
    loaded = load(file, {})
    assert loaded.cluster_password == "sésame"
    assert loaded.acceptors[0].settings.key_store_password == "p;q"


def test_mask_password_masks_all(tmp_path: Path) -> None:
    write_key(tmp_path / "key", KEY)
    file = tmp_path / "broker.xml"
    bare = mask("secret", KEY).removeprefix("ENC(").removesuffix(")")
    core = f"<cluster-password>{bare}</cluster-password>"
    file.write_text(document(f"<mask-password>true</mask-password>{core}", SECURITY))
    assert load(file, {}).cluster_password == "secret"
    file.write_text(document(f"<mask-password>false</mask-password>{core}", SECURITY))
    assert load(file, {}).cluster_password == bare


def test_problems_with_the_key_are_reported_at_the_element(tmp_path: Path) -> None:
    text = document("<cluster-password>ENC(v1.x)</cluster-password>", SECURITY.replace(">key<", f">{tmp_path}/none<"))
    assert messages(text) == [
        "<cluster-password>: the password is masked, but no usable key-file is given in px:security",
        f"key file {tmp_path}/none cannot be read: No such file or directory",
    ]
