"""Selectors: grammar, meaning, errors, bounds."""

from __future__ import annotations

from uuid import UUID

import pytest

from pollux.message import Encoding, Message, RoutingType
from pollux.routing.selector import Selector, SelectorError, parse
from pollux.routing.selector.parser import MAX_DEPTH, MAX_LENGTH
from pollux.wire.content import Content, PropertyValue

PROPERTIES: dict[str, PropertyValue] = {
    "color": "red",
    "price": 12,
    "weight": 2.5,
    "big": 2**62,
    "flag": True,
    "off": False,
    "quoted": "it's",
    "empty": "",
    "number_text": "12",
    "one_text": "2",
    "a.b": 1,
    "$x": 2,
    "_y": 3,
    "my-prop": "hyphen",
    'odd"name': 1,
    "blob": b"red",
    "größe": 42,
}


def message() -> Message:
    made = Message(
        Encoding.AMQP,
        "orders.eu",
        b"abc",
        priority=7,
        expiration=2000,
        timestamp=1000,
        group="g1",
        group_sequence=5,
        user="alice",
        routing_type=RoutingType.ANYCAST,
    )
    made.content = Content(
        properties=dict(PROPERTIES), message_id="ID:1", correlation_id=17, subject="order", reply_to="answers"
    )
    made.annotations = {"_AMQ_ORIG_ADDRESS": "old"}
    return made


TRUE = [
    "color = 'red'",
    "color <> 'blue'",
    "price = 12",
    "price = 12.0",
    "price >= 12 AND price <= 12",
    "price > 11 and price < 13",
    "weight = 2.5",
    "weight = 25e-1",
    "weight > .5",
    "weight < 3.",
    "weight < 1e1",
    "weight = 2.5d",
    "price = 12L",
    "price = 0xC",
    "price = 014",
    "big = 4611686018427387904",
    "-price = -12",
    "- - price = 12",
    "+price = 12",
    "price + 1 = 13",
    "price * 2 - 4 = 20",
    "price / 5 = 2",
    "-price / 5 = -2",
    "price / 5.0 = 2.4",
    "price % 5 = 2",
    "-price % 5 = -2",
    "2 + 3 * 4 = 14",
    "(2 + 3) * 4 = 20",
    "10 - 3 - 2 = 5",
    "flag",
    "flag = TRUE",
    "flag <> FALSE",
    "NOT off",
    "off = false",
    "flag AND NOT off",
    "TRUE",
    "NOT FALSE",
    "(flag)",
    "color = 'red' OR missing = 1",
    "missing = 1 OR color = 'red'",
    "NOT (missing = 1 AND off)",
    "price BETWEEN 12 AND 20",
    "price NOT BETWEEN 13 AND 20",
    "price BETWEEN 10 + 1 AND 20",
    "color IN ('blue', 'red')",
    "color NOT IN ('blue')",
    "price IN (1, 12)",
    "price IN (-1, 12.0)",
    "color LIKE 'r%'",
    "color LIKE '_ed'",
    "color NOT LIKE 'b%'",
    "price NOT LIKE 'x'",
    "quoted = 'it''s'",
    "empty = ''",
    "empty LIKE ''",
    "empty LIKE '%'",
    "missing IS NULL",
    "color IS NOT NULL",
    "a.b = 1 AND $x = 2 AND _y = 3",
    "größe = 42",
    "\"my-prop\" = 'hyphen'",
    '"odd""name" = 1',
    "hyphenated_props:my-prop = 'hyphen'",
    "convert_string_expressions:number_text = 12",
    "convert_string_expressions:number_text + 1 = 13",
    "convert_string_expressions:number_text > one_text AND number_text BETWEEN one_text AND 100",
    "NOT (color > empty)",
    "color NOT BETWEEN empty AND color",
    "convert_string_expressions:hyphenated_props:number_text > 11 AND my-prop = 'hyphen'",
    "(price > 5) = TRUE",
    "price > 5 = flag",
    "JMSPriority = 7",
    "AMQPriority > 6",
    "JMSDeliveryMode = 'PERSISTENT'",
    "AMQDurable = 'DURABLE'",
    "JMSTimestamp = 1000 AND AMQTimestamp = 1000",
    "JMSExpiration = 2000 AND AMQExpiration = 2000",
    "JMSMessageID = 'ID:1' AND AMQUserID LIKE 'ID:%'",
    "JMSCorrelationID = '17'",
    "JMSType = 'order'",
    "JMSReplyTo = 'answers'",
    "JMSXGroupID = 'g1' AND JMSXGroupSeq = 5 AND AMQGroupID = 'g1'",
    "JMSXUserID = 'alice'",
    "AMQAddress = 'orders.eu'",
    "AMQSize > 3",
    "_AMQ_ORIG_ADDRESS = 'old'",
    "_AMQ_SCHED_DELIVERY IS NULL",
    "  color\t=\n'red'  ",
    "color='red'AND price=12",
]

FALSE = [
    "color = 'RED'",
    "price = '12'",
    "price <> '12'",
    "number_text = 12",
    "number_text > 11",
    "flag = 'true'",
    "flag = 1",
    "flag > off",
    "flag >= flag",
    "color > empty",
    "color >= color",
    "color <= color",
    "empty < color",
    "color > price",
    "price < color",
    "color BETWEEN empty AND color",
    "number_text < one_text",
    "JMSType >= JMSType",
    "convert_string_expressions:color > empty",
    "off",
    "color",
    "price",
    "NOT flag",
    "price / 0 = 1",
    "blob = 'red'",
    "color LIKE 'R%'",
    "price LIKE '12'",
    "color IN ('blue')",
    "price IN ('12')",
    "flag IN (1)",
    "blob IN ('red')",
    "color + 1 = 2",
    "flag + 1 = 2",
    "-color = 1",
    "convert_string_expressions:color = 12",
    "no_convert_string_expressions:number_text = 12",
    "blob LIKE 'red'",
]

#: Unknown, and so is their negation.
UNKNOWN = [
    "missing = 1",
    "missing <> 1",
    "missing > color",
    "color < missing",
    "missing BETWEEN empty AND color",
    "missing",
    "missing = FALSE",
    "missing = TRUE",
    "missing < flag",
    "missing BETWEEN 1 AND 2",
    "missing IN ('a')",
    "missing LIKE '%'",
    "missing + 1 = 2",
    "price + missing = 2",
    "missing = missing",
    "missing AND flag",
    "missing OR off",
    "flag AND missing",
    "off OR missing",
    "missing AND missing",
    "flag AND flag AND missing",
    "missing = other",
]


@pytest.mark.parametrize("text", TRUE)
def test_true(text: str) -> None:
    assert parse(text).matches(message())


@pytest.mark.parametrize("text", FALSE)
def test_false(text: str) -> None:
    assert not parse(text).matches(message())


@pytest.mark.parametrize("text", UNKNOWN)
def test_unknown(text: str) -> None:
    assert not parse(text).matches(message())
    assert not parse(f"NOT ({text})").matches(message())


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 0, "expected a property"),
        ("   ", 3, "found the end"),
        ("color =", 7, "expected a property, a value or '(', found the end"),
        ("= 1", 0, "found ="),
        ("(price = 1", 10, "expected ) to close the parenthesis of character 1"),
        ("price = 1)", 9, "expected AND, OR or the end, found )"),
        ("price = 1 2", 10, "expected AND, OR or the end, found 2"),
        ("price == 1", 6, "equal is '='"),
        ("price != 1", 6, "unequal is '<>'"),
        ("color = 'red", 8, "has no closing '"),
        ('"color = 1', 0, 'has no closing "'),
        ('"" = 1', 0, "a name cannot be empty"),
        ("price = 1 &", 10, "'&' is not part of any selector"),
        ("5", 0, "expected a condition"),
        ("'x'", 0, "expected a condition"),
        ("price + 1", 0, "expected a condition"),
        ("flag AND 5", 9, "expected a condition"),
        ("NOT 'x'", 4, "expected a condition"),
        ("5 OR flag", 0, "expected a condition"),
        ("color > 'a'", 8, "> compares numbers; strings and booleans are compared with = and <> only"),
        ("'a' <= color", 0, "<= compares numbers"),
        ("price = 1 AND color < 'a'", 22, "< compares numbers"),
        ("convert_string_expressions:number_text >= '5'", 42, ">= compares numbers"),
        ("flag > FALSE", 7, "> compares numbers"),
        ("(price = 1) < 5", 0, "< compares numbers"),
        ("5 >= (price > 1)", 5, ">= compares numbers"),
        ("color BETWEEN 'a' AND 's'", 14, "BETWEEN compares numbers"),
        ("price BETWEEN 1 AND 's'", 20, "BETWEEN compares numbers"),
        ("'a' NOT BETWEEN 1 AND 2", 0, "BETWEEN compares numbers"),
        ("color LIKE 5", 11, "expected a string after LIKE"),
        ("color LIKE other", 11, "expected a string after LIKE"),
        ("color LIKE 'a' ESCAPE 'xy'", 22, "one character"),
        ("'a' LIKE 'a'", 0, "LIKE asks for a property"),
        ("5 IN (5)", 0, "IN asks for a property"),
        ("color IN ()", 10, "found )"),
        ("color IN ('a' 'b')", 14, "expected ) after the list of IN"),
        ("color IN (other)", 10, "expected a string or number"),
        ("color IN 'a'", 9, "expected ( after IN"),
        ("price BETWEEN 1 OR 2", 16, "expected AND between the bounds"),
        ("color IS 5", 9, "expected NULL after IS"),
        ("color IS NOT 5", 13, "expected NULL after IS NOT"),
        ("5 IS NULL", 0, "IS NULL asks for a property"),
        ("price NOT = 5", 10, "expected LIKE, BETWEEN or IN after NOT"),
        ("price = NULL", 8, "found NULL"),
        ("'a' + 1 = 2", 0, "expected a number or a property to calculate with"),
        ("1 + TRUE = 2", 4, "expected a number or a property to calculate with"),
        ("-'a' = 1", 1, "expected a number or a property to calculate with"),
        ("price = 09", 8, "octal"),
        ("price = 12x", 10, "a number ends here"),
        ("price = 0x", 9, "a number ends here"),
        ("price = 9223372036854775808", 8, "at most 64 bits"),
        ("price = 99999999999999999999999999", 8, "at most 64 bits"),
        ("price = 1e999", 8, "too large"),
        ("AND = 1", 0, "found AND"),
        ("hyphenated_props:my- = 1", 21, "found ="),
    ],
)
def test_errors_say_where_and_what(text: str, position: int, problem: str) -> None:
    with pytest.raises(SelectorError) as caught:
        parse(text)
    assert caught.value.position == position
    assert problem in str(caught.value)
    assert f"character {position + 1}" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["color > 'a'", "'s' > color", "flag > FALSE", "color BETWEEN 'a' AND 's'", "(price = 12) >= FALSE"]
)
def test_what_was_stored_by_an_earlier_version_is_read_and_never_true(text: str) -> None:
    with pytest.raises(SelectorError):
        parse(text)
    kept = parse(text, strict=False)
    assert kept.text == text
    assert not kept.matches(message())
    assert parse(f"NOT ({text})", strict=False).matches(message()), "false, not unknown"
    with pytest.raises(SelectorError):
        parse(text)  # what was let through once is not remembered for clients
    with pytest.raises(SelectorError):
        parse(f"{text} AND", strict=False)


def test_the_least_integer() -> None:
    assert parse("-9223372036854775808 < price").matches(message())
    assert parse("0xFFFFFFFFFFFFFFFF = -1").matches(message())


@pytest.mark.parametrize(
    "text",
    [
        "(" * (MAX_DEPTH + 1) + "flag" + ")" * (MAX_DEPTH + 1),
        "NOT " * (MAX_DEPTH + 1) + "flag",
        "-" * (MAX_DEPTH + 1) + "price = 1",
        "price" + " + 1" * 500 + " = 1",
        "flag" + " = flag" * 500,
        "(" * 30 + "price" + (" + 1" * 90 + ")") * 30 + " = 1",
        "a" * (MAX_LENGTH + 1),
        "(" * 30_000,
    ],
)
def test_what_is_too_deep_or_too_long_is_refused(text: str) -> None:
    with pytest.raises(SelectorError):
        parse(text)


def test_what_is_just_not_too_deep() -> None:
    assert parse("(" * MAX_DEPTH + "flag" + ")" * MAX_DEPTH).matches(message())
    assert parse("price" + " + 1" * 90 + " = 102").matches(message())
    many = " OR ".join(f"price = {i}" for i in range(1, 1500))
    assert parse(many).matches(message())
    everything = ", ".join(f"'{i}'" for i in range(3000))
    assert not parse(f"color IN ({everything})").matches(message())


def test_large_products_do_not_grow_without_bound() -> None:
    assert not parse("big * big * big * big * big = 1").matches(message())


def test_equal_texts_give_the_same_selector() -> None:
    assert parse("a = 1") is parse("a = 1")
    assert parse("a = 1") == parse("a = 1")
    assert parse("a = 1") != parse("a = 2")
    assert len({parse("a = 1"), parse("a = 1")}) == 1
    assert repr(parse("a = 1")) == "<Selector 'a = 1'>"


def test_fields_need_no_decoding() -> None:
    undecodable = Message(Encoding.CORE, "a", b"", priority=9)
    assert parse("JMSPriority > 5 AND AMQAddress = 'a' AND JMSDeliveryMode = 'PERSISTENT'").matches(undecodable)
    assert undecodable.content is None


@pytest.mark.parametrize(
    ("identity", "text"),
    [("x", "x"), (5, "5"), (b"\x01\xff", "01ff"), (UUID(int=1), "00000000-0000-0000-0000-000000000001")],
)
def test_message_ids_of_all_types(identity: str | int | bytes | UUID, text: str) -> None:
    made = message()
    made.content = Content(message_id=identity, correlation_id=identity)
    assert parse(f"JMSMessageID = '{text}' AND JMSCorrelationID = '{text}'").matches(made)


def test_a_selector_is_what_its_text_says() -> None:
    selector = parse("color = 'red'")
    assert isinstance(selector, Selector)
    assert selector.text == "color = 'red'"
