"""`plait import agentscope`, with files and keys as AgentScope 2.0 writes them."""

import json
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.commands import Done, run_command
from tests.redis import Redis
from tests.server.cli.java_state import LOADED, make_state

from plait import Plait, Thread, Values

APP = """
from plait import Plait, Thread, Values


class Conversation(Thread[None]):
    values = Values()


class Note(Thread[dict]):
    initial_state = {}


app = Plait(Conversation, Note)
"""


class Conversation(Thread[None]):
    values = Values()


def name(text: str) -> str:
    """Return the name of a folder, as `safeSegment` of AgentScope does."""
    is_safe = text.replace("-", "").replace("_", "").replace(".", "").isalnum() and text.isascii()
    return text if is_safe else urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def write(root: Path, user: str | None, session: str) -> Path:
    """Write a session, as `JsonFileAgentStateStore` does."""
    folder = root / name(user or "__anon__") / name(session)
    folder.mkdir(parents=True)
    (folder / "agent_state.json").write_text(json.dumps(make_state(user, session), indent=2))
    (folder / "memory_messages.jsonl").write_text('{"id":"m1"}\n{"id":"m2"}\n\n')
    (folder / "memory_messages.hash").write_text("1f")
    return folder


def plait(folder: Path, *arguments: str, store: str = "sqlite:///desk.db") -> Done:
    """Run a command for the app."""
    (folder / "desk.py").write_text(APP)
    return run_command(arguments, cwd=folder, environment={"PLAIT_STORE": store})


async def read(folder: Path, user: str | None, session: str) -> dict[str, Any]:
    """Return the values of a session."""
    app = Plait(Conversation, store=f"sqlite:///{folder}/desk.db")
    async with app:
        found = app.session(Conversation, session, user_id=user).part(Conversation.values)
        return {key: await found.get(key) for key in await found.keys()}


async def test_files_of_sessions_become_threads(tmp_path: Path) -> None:
    root = tmp_path / "state"
    ids = [("alice", "s1"), (None, "s1"), ("Zoë Ü", "s/1"), ("alice", "YQ"), ("bob.2", "s-1_2")]
    for user, session in ids:
        write(root, user, session)
    done = plait(tmp_path, "import", "agentscope", str(root), "desk:app")
    assert (done.stderr, done.stdout) == ("", "5 sessions imported, 0 were there already\n")
    for user, session in ids:
        assert await read(tmp_path, user, session) == {
            "agent_state": make_state(user, session)
            | {"context": json.loads(json.dumps(make_state("", "")["context"]))},
            "memory_messages": [{"id": "m1"}, {"id": "m2"}],
            "agentscope": LOADED | {"session_id": session},
        }


async def test_sessions_are_imported_into_a_folder_of_json_files_and_not_into_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "state", "alice", "s1") / "agent_state.json"
    path.write_text('{"summary":"They add.","context":null}')
    arguments, store = ("import", "agentscope", "state", "desk:app"), f"file://{tmp_path}/desk"
    refused = plait(tmp_path, *arguments, store="memory://")
    assert refused.stderr == "plait: desk:app keeps its threads in memory, where an import would be lost\n"
    done = plait(tmp_path, *arguments, store=store)
    assert (done.stderr, done.stdout) == ("", "1 session imported, 0 were there already\n")
    async with Plait(Conversation, store=store) as app:
        found = app.session(Conversation, "s1", user_id="alice").part(Conversation.values)
        assert await found.get("agentscope") == {"summary": "They add.", "context": []}


async def test_a_session_that_is_there_already_stays(tmp_path: Path) -> None:
    root = tmp_path / "state"
    write(root, "alice", "s1")
    assert plait(tmp_path, "import", "agentscope", str(root), "desk:app").returncode == 0
    (root / "alice" / "s1" / "agent_state.json").write_text('{"summary":"other"}')
    write(root, "alice", "s2")
    done = plait(tmp_path, "import", "agentscope", str(root), "desk:app")
    assert done.stdout == "1 session imported, 1 were there already\n"
    assert (await read(tmp_path, "alice", "s1"))["agentscope"] == LOADED


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("{", "agent_state.json: Input data was truncated"),
        ('{"context":[{"role":3}]}', "the session 's1' of 'alice' is not one of AgentScope: AttributeError"),
        ('{"context":[{"id":"a"}]}', "the session 's1' of 'alice' is not one of AgentScope: KeyError('role')"),
        ("[]", "the session 's1' of 'alice' is not one of AgentScope: AttributeError"),
        ('{"summary":"%s"}' % ("x" * 2_000_000), "the session 's1' of 'alice' cannot be stored: "),
    ],
    ids=["cut", "number", "member", "list", "large"],
)
async def test_a_session_that_cannot_be_imported_is_named(tmp_path: Path, data: str, why: str) -> None:
    (write(tmp_path / "state", "alice", "s1") / "agent_state.json").write_text(data)
    done = plait(tmp_path, "import", "agentscope", str(tmp_path / "state"), "desk:app")
    assert (done.returncode, done.stdout) == (1, "")
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_folder_and_a_wrong_kind_are_named(tmp_path: Path) -> None:
    done = plait(tmp_path, "import", "agentscope", "none", "desk:app")
    assert done.stderr == "plait: there is no folder none\n"
    done = plait(tmp_path, "import", "agentscope", "none", "desk:app", "--kind", "note")
    assert done.stderr == "plait: choose a kind that has values with --kind; found: none\n"
    done = plait(tmp_path, "import", "agentscope", "redis://127.0.0.1:1", "desk:app")
    assert done.stderr.startswith("plait: cannot read redis://127.0.0.1:1: ")


async def test_keys_of_redis_become_threads(tmp_path: Path) -> None:
    with Redis(tmp_path / "redis") as server, redis.Redis.from_url(server.url) as db:
        for user, session in (("alice", "s1"), ("a/b", "c"), (None, "s1")):
            slot = f"my[app]:{user or '__anon__'}/{session}"
            db.set(f"{slot}:agent_state", json.dumps(make_state(user, session)))
            db.set(f"{slot}:agent_state:_version", "3")
            db.rpush(f"{slot}:memory_messages:list", '{"id":"m1"}', '{"id":"m2"}')
            db.set(f"{slot}:memory_messages:list:_hash", "1f")
            db.sadd(f"{slot}:_keys", "agent_state", "memory_messages:list")
        db.sadd("mya:x/y:_keys", "agent_state")
        # AgentScope for Python.
        record = {"id": "p1", "user_id": "eve", "agent_id": "a", "state": LOADED}
        db.set("agentscope:user:eve:session:p1", json.dumps(record))
        db.rpush("agentscope:user:eve:session:p1:messages", "{}")
        done = plait(tmp_path, "import", "agentscope", server.url, "desk:app", "--prefix", "my[app]:")
        db.set("agentscope:user:eve:session:p2", "{}")
        odd = plait(tmp_path, "import", "agentscope", server.url, "desk:app", "--prefix", "my[app]:")
    assert (done.stderr, done.stdout) == ("", "4 sessions imported, 0 were there already\n")
    assert odd.stderr == "plait: agentscope:user:eve:session:p2 is not a session of AgentScope: KeyError('user_id')\n"
    for user, session in (("alice", "s1"), ("a/b", "c"), (None, "s1")):
        found = await read(tmp_path, user, session)
        assert found["agentscope"] == LOADED | {"session_id": session}
        assert found["memory_messages"] == [{"id": "m1"}, {"id": "m2"}]
        assert sorted(found) == ["agent_state", "agentscope", "memory_messages"]
    assert await read(tmp_path, "eve", "p1") == {"agentscope": LOADED}
