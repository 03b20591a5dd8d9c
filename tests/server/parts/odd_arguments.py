"""Arguments that no writer expects: each is refused, or stored so that it can be read."""

import asyncio
import collections
import dataclasses
import enum
import math
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import msgspec

__all__ = ["make_odd"]


class _Text(str):
    """A str that is not exactly one."""


class _Number(int):
    """An int that is not exactly one."""


class _Fraction(float):
    """A float that is not exactly one."""


class _List(list[Any]):
    """A list that is not exactly one."""


class _Dict(dict[Any, Any]):
    """A dict that is not exactly one."""


class _Color(enum.Enum):
    RED = "red"
    NOTHING = None
    UNKNOWN = math.nan


class _Level(enum.IntEnum):
    LOW = 1


class _Name(enum.StrEnum):
    USER = "user"


class _Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class _Plain:
    a: Any


class _Struct(msgspec.Struct):
    a: Any


class _Tagged(msgspec.Struct, tag="t", array_like=True):
    a: Any = msgspec.UNSET


class _Slotted:
    __slots__ = ("a",)


class _Rude:
    def __bool__(self) -> bool:
        raise ValueError("neither true nor false")


def _nest(depth: int, *, by: str = "list") -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found] if by == "list" else {"a": found}
    return found


def _make_cycles() -> Iterator[Any]:
    a: list[Any] = []
    a.append(a)
    yield a
    b: dict[str, Any] = {}
    b["b"] = b
    yield b
    c = _Plain(None)
    c.a = [c]
    yield c
    d = _Struct(None)
    d.a = {"d": d}
    yield d
    yield [{"a": (a,)}]


def _generate() -> Iterator[int]:
    yield 1


def _function(*_: Any) -> None:
    """Accept anything."""


_LEAVES: list[Any] = [
    *[None, True, False, 0, 1, -1, 2, 255, 1000, 1001],
    *[2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**30, 10**400, 10**4000, -(10**4000)],
    *[0.0, -0.0, 0.5, 1.0, 1e15, 1e22, 1e308, 5e-324, math.nan, math.inf, -math.inf, -1.5],
    *[
        "",
        " ",
        "a",
        "1",
        "user",
        "null",
        "NaN",
        "\0",
        "\x7f",
        "\n",
        "ä",
        "😀",
        ".",
        "..",
        "/",
        "%",
        "*",
        "a:b",
        "x" * 1025,
    ],
    *["\ud800", "\udfff", "a\ud83d", "\udc00\ud800", "x" * 100_000, "\u2028", "\ufffe", "é" * 300],
    *[_Text("a"), _Text(""), _Number(3), _Fraction(1.5), _Fraction(math.nan)],
    *[b"", b"a", b"null", b"1", b"[1]", b"\xff", b"{", b'"\\ud800"', b"1e400", bytearray(b"a"), memoryview(b"a")],
    *[1j, Decimal("1.5"), Decimal("NaN"), Decimal("1e999999"), Fraction(1, 3), uuid.UUID(int=1), PurePosixPath("a")],
    *[
        datetime(2030, 1, 1),  # noqa: DTZ001
        datetime(2030, 1, 1, tzinfo=UTC),
        datetime.max,  # noqa: DTZ901
        datetime.min.replace(tzinfo=UTC),
    ],
    *[datetime(2030, 1, 1, tzinfo=timezone(timedelta(hours=23))), date.max, time(1), timedelta(days=1), timedelta.max],
    *[_Color.RED, _Color.NOTHING, _Color.UNKNOWN, _Level.LOW, _Name.USER, _Color, _Level],
    *[object(), type, Exception("a"), _function, lambda: None, len, asyncio, SimpleNamespace(a=1), _Slotted(), _Rude()],
    *[range(3), slice(1), Ellipsis, NotImplemented, iter([1]), map(str, [1]), zip([1], [2], strict=True)],
    *[
        msgspec.UNSET,
        msgspec.NODEFAULT,
        msgspec.Raw(b""),
        msgspec.Raw(b"1"),
        msgspec.Raw(b"junk"),
        msgspec.Raw(b"1e400"),
    ],
    *[msgspec.Raw(b"[1,"), msgspec.Raw(b'"\xff"'), msgspec.Raw(b"null,null"), msgspec.Raw(b"[" * 600 + b"]" * 600)],
    *[
        _Plain(1),
        _Plain(math.nan),
        _Plain(object()),
        _Struct(1),
        _Struct("\ud800"),
        _Struct(math.inf),
        _Tagged(),
        _Tagged(1),
    ],
    *[_Point(1, None), _Point(math.nan, None), _Point("\ud800", 1)],
]

_CONTAINERS: list[Any] = [
    *[
        [],
        {},
        (),
        set(),
        frozenset(),
        [None],
        [1],
        ["a"],
        [[]],
        [{}],
        {"a": 1},
        {"a": None},
        ({},),
        ({"a": 1},),
        {1, 2},
    ],
    *[{1: 2}, {1.5: 2}, {math.nan: 1}, {None: 1}, {True: 1}, {(1,): 2}, {b"a": 1}, {"": 1}, {"\ud800": 1}, {"\0": 1}],
    *[{_Text("a"): 1}, {_Color.RED: 1}, {_Name.USER: 1}, {uuid.UUID(int=1): 1}, {date.max: 1}, {1: 1, "1": 2}],
    *[
        _List([1]),
        _List([{}]),
        _Dict(a=1),
        _Dict({1: math.nan}),
        collections.OrderedDict(a=1),
        collections.Counter("aab"),
    ],
    *[
        collections.defaultdict(list, a=[1]),
        collections.deque([1]),
        collections.ChainMap({"a": 1}),
        collections.UserDict(a=1),
    ],
    *[MappingProxyType({"a": 1}), {"a": 1}.keys(), {"a": 1}.values(), {"a": 1}.items(), frozenset([("a", 1)])],
    *[
        _nest(63),
        _nest(64),
        _nest(199),
        _nest(499),
        _nest(500),
        _nest(501),
    ],
    *[_nest(400, by="dict"), [_nest(300), _nest(300, by="dict")]],
    *[["x" * 1000] * 2000, list(range(50_000)), {str(n): n for n in range(1000)}, [10**400] * 10],
]


# It takes as long to find the fault of one of these as of all others.
_DEEPEST: list[Any] = [_nest(990), _nest(990, by="dict"), _nest(5_000), _nest(100_000)]


def make_odd(*, with_deepest: bool) -> list[Any]:
    """Return about 200 arguments; some can be used up, so they are new at each call."""
    deepest = _DEEPEST if with_deepest else []
    return [*_LEAVES, *_CONTAINERS, *deepest, *_make_cycles(), _generate(), (n for n in [1])]
