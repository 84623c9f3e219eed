"""SASLprep against RFC 4013's examples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.config.saslprep import saslprep


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("", ""),
    ],
)
def test_examples_of_rfc_4013(text: str, prepared: str) -> None:
    assert saslprep(text) == prepared


@pytest.mark.parametrize("text", ["\u0007", "\u0627\u0031", "\u0627a", "a\u0000", "\u200e", "\ue000x\u00e9"])
def test_prohibited(text: str) -> None:
    with pytest.raises(ValueError, match=r"not allowed|mixed|begin and end"):
        saslprep(text)


def test_unassigned_code_points_only_in_queries() -> None:
    assert saslprep("\u0221") == "\u0221"
    with pytest.raises(ValueError, match="unassigned"):
        saslprep("\u0221", stored=True)


@given(st.text(max_size=40))
def test_prepared_text_stays(text: str) -> None:
    try:
        prepared = saslprep(text)
    except ValueError:
        return
    assert saslprep(prepared) == prepared
