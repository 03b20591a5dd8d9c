"""The rows of the table: the load, what plait is compared with, and the aim."""

import msgspec

__all__ = ["NATIVE", "ROWS", "Against", "Row"]

# plait's own server, spoken to in its own protocol.
NATIVE = "plait.v1"


class Against(msgspec.Struct, frozen=True):
    """Something that plait is compared with, and the least ratio that is aimed at."""

    peer: str
    label: str
    aim: float | None = None


class Row(msgspec.Struct, frozen=True):
    """One load with its settings for the generator's job."""

    name: str
    title: str
    unit: str
    load: str
    settings: dict[str, int | float | str]
    against: tuple[Against, ...]


def cloudflare(aim: float | None = None) -> Against:
    """The published SDK in workerd."""
    return Against("cloudflare", "Cloudflare", aim)


def bare(label: str, aim: float | None = None) -> Against:
    """The bare socket server."""
    return Against("socket", label, aim)


def native(label: str) -> Against:
    """The same server, in its own protocol."""
    return Against(NATIVE, label)


def add(name: str, title: str, load: str, settings: dict[str, int | float | str], *against: Against) -> Row:
    """A row that calls the method that persists a state."""
    return Row(name, title, "calls", load, {"method": "add", **settings}, against)


def burst(name: str, title: str, size: int, count: int, aim: float) -> Row:
    """A row in which one socket pushes states to one other."""
    settings: dict[str, int | float | str] = {"size": size, "count": count}
    own = (native("plait.v1, ops, acks"),) if size < 100 else ()
    beside = (*own, cloudflare(aim), bare("bare relay"))
    return Row(name, title, "pushes", "burst", settings, beside)


def fan_out(name: str, title: str, sockets: int, size: int, aim: float) -> Row:
    """A row in which one socket pushes states to many others."""
    settings: dict[str, int | float | str] = {"sockets": sockets, "size": size, "window": 16, "pause": 0.001}
    beside = bare("bare frame-once", 0.8 if size < 100 else None)
    own = (native("plait.v1, ops"),) if size < 100 else ()
    return Row(name, title, "deliveries", "fan-out", settings, (*own, cloudflare(aim), beside))


def stream(name: str, title: str, method: str, aim: float | None) -> Row:
    """A row with one streaming call after another."""
    settings: dict[str, int | float | str] = {"count": 2000, "method": method}
    return Row(name, title, "chunks", "stream", settings, (cloudflare(aim), bare("bare frames")))


ROWS = (
    Row("rpc", "rpc, 256 in flight", "calls", "rpc", {"window": 256}, (cloudflare(6), bare("bare echo"))),
    add(
        "persist",
        "set_state by rpc, one at a time",
        "rpc",
        {"window": 1},
        cloudflare(1.2),
        Against("sqlite-one", "bare SQLite commit", 0.8),
        bare("bare socket + commit"),
    ),
    add(
        "persist-pipelined",
        "set_state by rpc, 48 in flight",
        "rpc",
        {"window": 48},
        cloudflare(),
        Against("sqlite-group", "bare group commit"),
    ),
    add(
        "persist-apart",
        "set_state by rpc, 64 threads at once",
        "rpc-apart",
        {"sockets": 64},
        cloudflare(),
        Against("sqlite-group", "bare group commit"),
    ),
    burst("burst-30", "client state burst, 30 B", 30, 2000, 15),
    burst("burst-10k", "client state burst, 10 kB", 10_000, 500, 5),
    burst("burst-100k", "client state burst, 100 kB", 100_000, 150, 3),
    fan_out("fan-out-100", "fan-out to 100 sockets", 100, 30, 6),
    fan_out("fan-out-300", "fan-out to 300 sockets", 300, 30, 5),
    fan_out("fan-out-10k", "fan-out to 100 sockets, 10 kB", 100, 10_000, 2.4),
    Row("threads", "new threads", "threads", "threads", {"window": 32}, (cloudflare(20), bare("bare sockets"))),
    Row(
        "join",
        "300 sockets join one thread",
        "joins",
        "join",
        {"sockets": 300, "count": 4},
        (cloudflare(3), bare("bare sockets")),
    ),
    stream("stream", "stream chunks, sent", "count", 1),
    stream("stream-yield", "stream chunks, yielded", "generate", None),
)
