"""Random selectors against a naive evaluator of three-valued logic, and LIKE against regular expressions."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pollux.routing.selector import Selector, SelectorError, parse
from pollux.routing.selector.like import compile_like

from .bench import make_message

NAMES = ("s", "t", "i", "j", "f", "b", "missing")
values = {
    "s": st.text("ab%", max_size=3),
    "t": st.text("ab%", max_size=3),
    "i": st.integers(-5, 5),
    "j": st.integers(-5, 5),
    "f": st.floats(-4, 4, allow_nan=False).map(lambda value: round(value, 1)),
    "b": st.booleans(),
}
#: Any property may also be absent.
properties = st.fixed_dictionaries({}, optional=values)

literals = st.one_of(
    st.integers(-5, 5),
    st.floats(0, 4, allow_nan=False).map(lambda value: round(value, 1)),
    st.text("ab%'", max_size=3),
    st.booleans(),
)

# Trees are tuples (kind, ...); a number, text or boolean is itself, a name is ("name", n).
names = st.sampled_from(NAMES).map(lambda name: ("name", name))
numeric = st.recursive(
    st.one_of(names, st.integers(0, 9)),
    lambda inner: st.tuples(st.just("arithmetic"), st.sampled_from("+-*/%"), inner, inner),
    max_leaves=4,
)
operands = st.one_of(names, literals, numeric)
conditions = st.recursive(
    st.one_of(
        names,
        st.booleans(),
        st.tuples(st.just("compare"), st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), operands, operands),
        st.tuples(st.just("between"), names, operands, operands),
        st.tuples(st.just("in"), names, st.lists(literals, min_size=1, max_size=3)),
        st.tuples(st.just("like"), names, st.text("ab%_", max_size=4)),
        st.tuples(st.just("null"), names),
    ),
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=4)),
    ),
    max_leaves=8,
)


def write(tree: Any) -> str:
    """The text of a tree, with parentheses everywhere."""
    if isinstance(tree, bool):
        return str(tree).upper()
    if isinstance(tree, str):
        return "'" + tree.replace("'", "''") + "'"
    if isinstance(tree, int | float):
        return str(tree)
    kind, *rest = tree
    if kind == "name":
        return str(rest[0])
    if kind in ("arithmetic", "compare"):
        return f"({write(rest[1])} {rest[0]} {write(rest[2])})"
    if kind == "between":
        return f"({write(rest[0])} BETWEEN {write(rest[1])} AND {write(rest[2])})"
    if kind == "in":
        return f"({write(rest[0])} IN ({', '.join(map(write, rest[1]))}))"
    if kind == "like":
        return f"({write(rest[0])} LIKE {write(rest[1])})"
    if kind == "null":
        return f"({write(rest[0])} IS NULL)"
    if kind == "not":
        return f"(NOT {write(rest[0])})"
    return "(" + f" {kind.upper()} ".join(map(write, rest[0])) + ")"


def number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def naive(tree: Any, message: dict[str, Any]) -> Any:
    """The value of a tree by the words of the specification; None is unknown."""
    if not isinstance(tree, tuple):
        return tree
    kind, *rest = tree
    if kind == "name":
        return message.get(rest[0])
    if kind == "arithmetic":
        return arithmetic(rest[0], naive(rest[1], message), naive(rest[2], message))
    if kind == "compare":
        return compare(rest[0], naive(rest[1], message), naive(rest[2], message))
    if kind == "between":
        value = naive(rest[0], message)
        low = compare(">=", value, naive(rest[1], message))
        return both(low, compare("<=", value, naive(rest[2], message)))
    if kind == "in":
        value = naive(rest[0], message)
        return None if value is None else any(compare("=", value, each) for each in rest[1])
    if kind == "like":
        value = naive(rest[0], message)
        if value is None:
            return None
        return isinstance(value, str) and like(rest[1], value)
    if kind == "null":
        return naive(rest[0], message) is None
    if kind == "not":
        value = truth(naive(rest[0], message))
        return None if value is None else not value
    result = truth(naive(rest[0][0], message))
    for each in rest[0][1:]:
        value = truth(naive(each, message))
        result = both(result, value) if kind == "and" else negate(both(negate(result), negate(value)))
    return result


def truth(value: Any) -> bool | None:
    return value if value is None or isinstance(value, bool) else False


def negate(value: bool | None) -> bool | None:
    return None if value is None else not value


def both(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def compare(sign: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    equality = sign in ("=", "<>")
    same = (
        (number(left) and number(right))
        or (isinstance(left, str) and isinstance(right, str) and equality)
        or (isinstance(left, bool) and isinstance(right, bool) and equality)
    )
    if not same:
        return False
    results: dict[str, bool] = {
        "=": left == right,
        "<>": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }
    return results[sign]


def parse_or_problem(text: str, *, strict: bool = True) -> Selector | SelectorError:
    try:
        return parse(text, strict=strict)
    except SelectorError as error:
        return error


def arithmetic(sign: str, left: Any, right: Any) -> Any:
    if not number(left) or not number(right):
        return None
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    if sign == "*":
        return left * right
    if isinstance(left, int) and isinstance(right, int):
        if right == 0:
            return None
        quotient = int(left / right)  # small numbers: exact, and towards zero
        return quotient if sign == "/" else left - quotient * right
    if right == 0:
        if sign == "%":
            return None
        return float("nan") if left == 0 else float("inf") if left > 0 else float("-inf")
    if sign == "/":
        return left / right
    return left - right * int(left / right) if abs(left) != float("inf") else None


def like(pattern: str, value: str) -> bool:
    expression = "".join(".*" if each == "%" else "." if each == "_" else re.escape(each) for each in pattern)
    return re.fullmatch(expression, value, re.DOTALL) is not None


def floats_in_modulo(tree: Any) -> bool:
    """Remainders of floats round differently when computed naively: left to the table of cases."""
    if isinstance(tree, list):
        return any(map(floats_in_modulo, tree))
    if not isinstance(tree, tuple):
        return False
    return (tree[0] == "arithmetic" and tree[1] in "%/") or any(map(floats_in_modulo, tree[1:]))


@settings(max_examples=1500, deadline=None)
@given(conditions, properties)
def test_selectors_mean_what_they_say(tree: Any, message: dict[str, Any]) -> None:
    text = write(tree)
    selector = parse_or_problem(text)
    if isinstance(selector, SelectorError) and "compares numbers" in selector.problem:
        # one that was stored before these were refused still has a meaning
        selector = parse_or_problem(text, strict=False)
    if isinstance(selector, SelectorError):
        # the grammar asks for conditions and numbers where the random tree may have other things
        assert "expected a condition" in selector.problem or "to calculate with" in selector.problem
        return
    if floats_in_modulo(tree):
        message = {name: int(value) if isinstance(value, float) else value for name, value in message.items()}
    assert selector.matches(make_message(1, message)) is (truth(naive(tree, message)) is True), text


@settings(max_examples=800, deadline=None)
@given(st.text("ab%_\\\n.*", max_size=12), st.text("ab%_\\\n.*", max_size=14), st.sampled_from([None, "\\", "%", "a"]))
def test_like(pattern: str, value: str, escape: str | None) -> None:
    expression = ""
    characters = iter(pattern)
    for each in characters:
        if each == escape:
            expression += re.escape(next(characters, each))
        else:
            expression += {"%": ".*", "_": "."}.get(each) or re.escape(each)
    expected = re.fullmatch(expression, value, re.DOTALL) is not None
    assert compile_like(pattern, escape)(value) is expected


def test_like_takes_no_more_than_text_times_pattern() -> None:
    """A backtracking matcher would not come back from these in a lifetime."""
    assert not compile_like("%a" * 30 + "%b", None)("a" * 20_000)
    assert not compile_like("%a_" * 30 + "%b", None)("a" * 20_000)


@settings(max_examples=1000, deadline=None)
@given(st.text(max_size=80) | st.text("()'\"= ANDORTLIKEabc123.-+*/%,<>", max_size=80))
def test_any_text_is_parsed_or_refused_politely(text: str) -> None:
    selector = parse_or_problem(text)
    if isinstance(selector, SelectorError):
        assert 0 <= selector.position <= len(text)
    else:
        selector.matches(make_message(1))
