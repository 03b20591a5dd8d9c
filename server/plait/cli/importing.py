"""`plait import agentscope`: the sessions in a store of AgentScope, for Java or Python, become threads."""

import asyncio
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from inspect import getmembers_static
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from cyclopts import App, Parameter

from plait.app import Plait
from plait.cli.loading import load_lasting
from plait.cli.options import LoadError, Target, fail, give_up
from plait.errors import PlaitError, operator_message
from plait.parts.values import Values
from plait.spelling import count, hide_password
from plait_schemas.codec import NOT_JSON, decode_json, encode_json

__all__ = ["import_commands"]

import_commands = App(name="import", help="Store what other projects have stored as threads of an app.")

# The user of a session without one, and the value that has the state of its agent, in AgentScope for Java.
_ANONYMOUS: Final = "__anon__"
_STATE: Final = "agent_state"
# The value that `load_state` of `plait.adapters.agentscope` reads.
_LOADED: Final = "agentscope"
_MEDIA: Final = ("image", "audio", "video", "data")


class _Session(NamedTuple):
    """A session, and the stored values by their keys."""

    user: str | None
    id: str
    values: Mapping[str, Any]

    def __str__(self) -> str:
        return f"the session {self.id!r} of {'no user' if self.user is None else repr(self.user)}"


@import_commands.command
def agentscope(
    source: Annotated[str, Parameter(help="The folder of a JsonFileAgentStateStore, or the URL of a Redis.")],
    target: Target,
    *,
    kind: Annotated[str | None, Parameter(help="The kind of the threads, if the app has several.")] = None,
    prefix: Annotated[str, Parameter(help="The keyPrefix of a RedisAgentStateStore.")] = "agentscope:session:",
) -> None:
    """Store the sessions of AgentScope as threads; skip those already stored. No server may have the store open."""
    try:
        app = load_lasting(target)
        cls, part = _find_values(app, kind)
        sessions = _read_redis(source, prefix) if "://" in source else _read_folder(Path(source))
        made, there = asyncio.run(_store(app, cls, part, sessions))
    except (LoadError, PlaitError) as error:
        give_up(error)
    except OSError as error:
        fail(f"cannot read {error.filename or hide_password(source)}: {error.strerror or error}")
    print(f"{count(made, 'session')} imported, {there} were there already")


def _find_values(app: Plait, kind: str | None) -> tuple[type[Any], Values]:
    """Return the class of a kind, and its values. Raises LoadError."""
    found = {
        each.name: (each.cls, part)
        for each in app._kinds
        for _, part in getmembers_static(each.cls)
        if isinstance(part, Values) and kind in (None, each.name)
    }
    if len(found) != 1:
        raise LoadError(f"choose a kind that has values with --kind; found: {', '.join(found) or 'none'}")
    return next(iter(found.values()))


async def _store(app: Plait, cls: type[Any], part: Values, sessions: Iterator[_Session]) -> tuple[int, int]:
    """Store sessions, and return how many were stored, and how many were there. Raises PlaitError and LoadError."""
    made = there = 0
    async with app:
        for session in sessions:
            try:
                values: Any = app.session(cls, session.id, user_id=session.user).part(part)
                if await values.get(_LOADED) is not None:
                    there += 1
                    continue
                for key, value in _convert(session.values).items():
                    await values.set(key, value)
            except (AttributeError, KeyError, TypeError) as error:
                raise LoadError(f"{session} is not one of AgentScope: {error!r}") from error
            except PlaitError as error:
                raise LoadError(f"{session} cannot be stored: {operator_message(error)}") from error
            made += 1
    return made, there


# Where AgentScope stores sessions


def _read_folder(root: Path) -> Iterator[_Session]:
    """Read the files of `JsonFileAgentStateStore`: `user/session/key.json`, and `.jsonl` for lists."""
    if not root.is_dir():
        raise LoadError(f"there is no folder {root}")
    for folder in sorted(path for path in root.glob("*/*") if path.is_dir()):
        values: dict[str, Any] = {}
        for file in sorted(folder.glob("*.json")):
            (values[file.stem],) = _decode([file.read_bytes()], file)
        for file in sorted(folder.glob("*.jsonl")):
            values[file.stem] = _decode([line for line in file.read_bytes().splitlines() if line.strip()], file)
        known_user, known_id = _read_ids(values)
        user, id = _find_id(folder.parent, known_user), _find_id(folder, known_id)
        yield _Session(None if user == _ANONYMOUS else user, id, values)


def _find_id(folder: Path, id: object) -> str:
    """Return the id whose text or base64 is the name of a folder: only the state tells which it is."""
    if isinstance(id, str) and urlsafe_b64encode(id.encode()).rstrip(b"=").decode() == folder.name:
        return id
    return folder.name


def _read_redis(url: str, prefix: str) -> Iterator[_Session]:
    """Read the keys of `RedisAgentStateStore`, and those of `RedisStorage` of AgentScope for Python."""
    try:
        from redis import Redis, RedisError  # noqa: PLC0415
    except ModuleNotFoundError:
        raise LoadError("sessions in Redis need redis-py: pip install 'plait[redis]'") from None
    try:
        with Redis.from_url(url, decode_responses=True) as redis:
            yield from _read_java(redis, prefix)
            for name in redis.scan_iter(match="agentscope:user:*:session:*", _type="string"):
                (record,) = _decode([redis.get(name)], name)
                try:
                    session = _Session(record["user_id"], record["id"], {_LOADED: record["state"]})
                except (KeyError, TypeError) as error:
                    raise LoadError(f"{name} is not a session of AgentScope: {error!r}") from error
                yield session
    except (RedisError, ValueError) as error:
        raise LoadError(f"cannot read {hide_password(url)}: {error}") from error


def _read_java(redis: Any, prefix: str) -> Iterator[_Session]:
    """Each session has a set of its keys; those that end with `:list` are lists."""
    for name in redis.scan_iter(match=re.sub(r"([*?\[\]\\])", r"\\\1", prefix) + "*:_keys"):
        slot, values = name.removesuffix(":_keys"), dict[str, Any]()
        for key in redis.smembers(name):
            if key.endswith(":list"):
                values[key.removesuffix(":list")] = _decode(redis.lrange(f"{slot}:{key}", 0, -1), name)
            elif (data := redis.get(f"{slot}:{key}")) is not None:
                (values[key],) = _decode([data], name)
        user, _, id = slot.removeprefix(prefix).partition("/")
        known_user, known_id = _read_ids(values)
        if slot == f"{prefix}{known_user}/{known_id}":  # Both ids may have a slash.
            user, id = known_user, known_id
        yield _Session(None if user == _ANONYMOUS else user, id, values)


def _read_ids(values: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the ids of the user and the session in a state, in whatever form the state is."""
    state = values.get(_STATE)
    return (state.get("user_id"), state.get("session_id")) if isinstance(state, dict) else (None, None)


def _decode(texts: Iterable[Any], where: object) -> list[Any]:
    try:
        return [decode_json(text) for text in texts]
    except NOT_JSON as error:
        raise LoadError(f"{where}: {error}") from error


# The state of AgentScope for Java, as AgentScope for Python reads it


def _convert(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values to store. The state is the last one, so that a session is imported again if it was not stored."""
    state = values.get(_STATE, {})
    found = {name: state[name] for name in ("session_id", "summary", "reply_id", "cur_iter") if name in state}
    found["context"] = [_convert_message(each) for each in state.get("context") or ()]
    return {**values, _LOADED: values.get(_LOADED, found)}


def _convert_message(message: Mapping[str, Any]) -> dict[str, Any]:
    role = "assistant" if message["role"] == "TOOL" else message["role"].lower()
    content = [_convert_block(each) for each in message.get("content", ())]
    ids = {"id": message["id"]} if message.get("id") else {}
    return {**ids, "name": message.get("name") or role, "role": role, "content": content}


def _convert_block(block: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in block.items() if value is not None}
    if found["type"] == "tool_use":
        return {**found, "type": "tool_call", "input": encode_json(found.get("input", {})).decode()}
    if found["type"] == "tool_result":
        return {**found, "output": [_convert_block(each) for each in found.get("output", ())]}
    if found["type"] in _MEDIA:
        source = dict(found["source"])
        source.setdefault("media_type", source.pop("mime_type", None) or f"{found['type']}/*")
        return {**found, "type": "data", "source": source}
    return found
