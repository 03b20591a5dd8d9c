"""Calls of models, with Pydantic AI's models for tests; nothing goes to the network."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from pydantic_ai import models
from pydantic_ai.exceptions import ModelAuthenticationError, ModelHTTPError, ModelRateLimitError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel
from tests.cases import each_case

from plait import Context, Message, Messages, Plait, Thread
from plait.agents.execution import asking
from plait.agents.execution.asking import load_model_call
from plait.agents.execution.definitions import Model
from plait.agents.execution.model_attempts import FIRST, Answer, ModelFailed, Progress
from plait.agents.execution.model_call import call_model
from plait.agents.execution.tools import ToolSpec
from plait.clock import read_due_clock
from plait.parts.messages.message import Role
from plait.parts.messages.model_history import MODEL, Side, select_history, view_history
from plait_schemas.codec import encode_json

LOOK = ToolSpec("look", "Look.", {"type": "object", "properties": {"at": {"type": "integer"}}})


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", False)


class Script:
    """A model that says what a function yields, and remembers what it was sent."""

    def __init__(self, say: Callable[[int], AsyncIterator[Any]], name: str = "script") -> None:
        self._say = say
        self.seen: list[list[ModelMessage]] = []
        self.tools: list[list[str]] = []
        self.settings: list[Any] = []
        self.id = FunctionModel(stream_function=self._stream, model_name=name)

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        self.seen.append([*messages])
        self.settings.append(info.model_settings)
        self.tools.append([each.name for each in info.function_tools])
        async for each in self._say(len(self.seen)):
            yield each


async def think_and_look(number: int) -> AsyncIterator[Any]:
    """Think and call a tool twice, and then tell what it has found."""
    if number > 1:
        yield "Found."
        return
    yield {0: DeltaThinkingPart(content="Hm.")}
    yield "I "
    yield "look."
    yield {2: DeltaToolCall("look", '{"at": 1}', tool_call_id="c1")}
    yield {3: DeltaToolCall("look", '{"at": 2}', tool_call_id="c2")}


async def agree(number: int) -> AsyncIterator[Any]:
    yield "Yes"
    yield "."


def fail_with(*errors: Exception) -> Callable[[int], AsyncIterator[Any]]:
    async def say(number: int) -> AsyncIterator[Any]:
        if number <= len(errors):
            yield "Half"
            raise errors[number - 1]
        yield "Yes."

    return say


def write(*lines: tuple[Role, str], **fields: Any) -> list[Message]:
    return [Message(id=text, role=role, content=text, position=at) for at, (role, text) in enumerate(lines, 1)]


async def call(model: Model, history: Sequence[Message], **options: Any) -> tuple[list[str], Answer]:
    """Return the texts that come, and the answer."""
    async with aclosing(call_model(model, history, **options)) as stream:
        found = [each async for each in stream]
    answer = found.pop()
    assert isinstance(answer, Answer)
    return [each for each in found if isinstance(each, str)], answer


async def fail(model: Model, progress: Progress = FIRST) -> ModelFailed:
    with pytest.raises(ModelFailed) as failed:
        await call(model, write(("user", "Hi")), progress=progress)
    return failed.value


def plain(messages: list[ModelMessage]) -> list[Any]:
    whole: list[Any] = ModelMessagesTypeAdapter.dump_python(messages, mode="json")
    return [[(part["part_kind"], part.get("content")) for part in each["parts"]] for each in whole]


async def test_a_call_yields_the_text_and_then_the_answer_with_its_calls_and_usage() -> None:
    script = Script(think_and_look)
    history = write(("system", "Be kind."), ("user", "Where?"), ("user", "Well?"))
    model = Model("fast", script.id, settings={"temperature": 0.5, "top_p": 0.1})
    texts, answer = await call(model, history, tools=[LOOK], settings={"top_p": 0.2})
    assert script.settings == [{"temperature": 0.5, "top_p": 0.2}]
    assert texts == ["I ", "look."]
    assert answer.text == "I look."
    function = {"name": "look", "arguments": '{"at": 2}'}
    assert answer.tool_calls is not None
    assert answer.tool_calls[1] == {"id": "c2", "type": "function", "function": function}
    assert answer.metadata.own[MODEL] == "function:script"
    assert answer.metadata.own["usage"]["output_tokens"] > 0
    assert [each["silent"] for each in answer.make_thoughts("m")] == [True]
    assert script.tools == [["look"]]
    assert plain(script.seen[0]) == [
        [("system-prompt", "Be kind."), ("user-prompt", "Where?"), ("user-prompt", "Well?")]
    ]


async def test_the_next_call_gets_the_answer_as_it_was_with_the_results() -> None:
    class Desk(Thread[None]):
        messages = Messages()

    script, thoughts = Script(think_and_look), list[dict[str, Any]]()
    app = Plait(Desk, store="memory:")

    @app.agent("step", thread=Desk)
    async def step(ctx: Context[Desk]) -> None:
        messages = ctx.thread.messages
        history = view_history(select_history((await messages.list()).messages), "a")
        async with messages.stream() as m:
            async for each in call_model(Model("fast", script.id), history, tools=[LOOK]):
                if isinstance(each, str):
                    m.append(each)
                elif isinstance(each, Answer):
                    m.finish(tool_calls=each.tool_calls, metadata=each.metadata)
                    thoughts[:] = each.make_thoughts(m.id)
        for fields in thoughts:
            messages.inject(**fields)
        for found in await messages.open_calls():
            messages.inject("tool", f"seen {found['id']}", name="look", tool_call_id=found["id"])

    async with app:
        messages = app.thread(Desk, "one").part(Desk.messages)
        await messages.inject("user", "Where?")
        await app.run("step", thread="one")
        await messages.inject("user", "Hurry!")
        await app.run("step", thread="one")
        found = (await messages.list()).messages
    assert plain(script.seen[1]) == [
        [("user-prompt", "Where?")],
        [("thinking", "Hm."), ("text", "I look."), ("tool-call", None), ("tool-call", None)],
        [("tool-return", "seen c1"), ("tool-return", "seen c2"), ("user-prompt", "Hurry!")],
    ]
    assert [each.content for each in found] == ["Where?", "I look.", "seen c1", "seen c2", "Hurry!", "Found."]


@each_case("side", ["a", "b"])
async def test_each_side_is_sent_its_own_messages_as_answers(side: Side) -> None:
    answers = [(await call(Model("m", Script(think_and_look).id), [], tools=[LOOK]))[1] for _ in "ab"]
    history = [
        Message(id=role, role=role, content=f"{role} said", tool_calls=each.tool_calls, metadata=each.metadata)
        for role, each in zip(("assistant", "user"), answers, strict=True)
    ]
    history += [Message(id=f"r{at}", role="tool", content=f"seen {at}", tool_call_id=f"c{at}") for at in (1, 2)]
    script = Script(agree)
    await call(Model("m", script.id), view_history(history, side))
    theirs, own = ("user said", "assistant said") if side == "a" else ("assistant said", "user said")
    seen = plain(script.seen[0])
    assert [("user-prompt", theirs)] in seen
    if side == "b":
        tools = [("tool-call", None)] * 2, [("tool-return", "seen 1"), ("tool-return", "seen 2")]
        assert seen[1:] == [[("text", own), *tools[0]], tools[1]]
    else:
        assert seen == [[("text", own)], [("user-prompt", theirs)]]


async def test_each_side_is_sent_the_answers_of_the_other_one_as_what_a_user_says() -> None:
    answer = (await call(Model("m", Script(agree).id), write(("user", "Hi"))))[1]
    said = Message(id="b1", role="user", content=answer.text, metadata=answer.metadata)
    script = Script(agree)
    await call(Model("m", script.id), view_history([*write(("assistant", "Hi")), said], "a"))
    assert plain(script.seen[0]) == [[("text", "Hi")], [("user-prompt", "Yes.")]]


@each_case(("wanted", "seconds"), [(7.0, 7), (0.5, 0.5), (float("inf"), 86_400), (float("nan"), 86_400)])
async def test_a_second_attempt_waits_as_long_as_the_model_wants(wanted: float, seconds: float) -> None:
    limited = ModelHTTPError.for_category(ModelRateLimitError, status_code=429, model_name="m", retry_after=wanted)
    script = Script(fail_with(limited))
    model = Model("fast", script.id)
    before = read_due_clock()
    failed = await fail(model)
    assert failed.retry is not None
    assert before <= failed.retry.due - seconds * 1e6 <= read_due_clock()
    progress = msgspec.json.decode(encode_json(failed.retry), type=Progress)
    assert (await call(model, write(("user", "Hi")), progress=progress))[1].text == "Yes."


async def test_each_model_is_attempted_twice_and_the_last_error_says_which_one_has_failed_how() -> None:
    first = Script(fail_with(*[ModelHTTPError(503, "m", {"error": "sk-secret"})] * 2), "first")
    second = Script(fail_with(*[RuntimeError("key sk-secret is wrong")] * 2), "second")
    model = Model("fast", first.id, fallback=[second.id])
    now, dues, progress = read_due_clock(), [], FIRST
    for _ in range(3):
        failed = await fail(model, progress)
        assert failed.retry is not None
        progress = failed.retry
        dues.append(progress.due)
    assert (len(first.seen), len(second.seen)) == (2, 1)
    assert [due > now for due in dues] == [True, False, True]
    failed = await fail(model, progress)
    assert failed.retry is None
    how = ["function:first: HTTP 503"] * 2 + ["function:second: RuntimeError"] * 2
    assert str(failed) == f"the model fast has failed: {'; '.join(how)}"


async def test_no_text_of_a_provider_is_in_the_error_or_the_log(caplog: pytest.LogCaptureFixture) -> None:
    script = Script(fail_with(ModelHTTPError(500, "m", {"error": "sk-secret"}, headers={"x": "sk-secret"})))
    with caplog.at_level(logging.DEBUG):
        failed = await fail(Model("fast", script.id))
    assert failed.__cause__ is None
    assert failed.__suppress_context__
    assert "sk-secret" not in caplog.text + str(failed)
    assert "the model fast has failed: function:script: HTTP 500" in caplog.text


REJECTED = ModelHTTPError.for_category(ModelAuthenticationError, status_code=401, model_name="m")


@each_case("id", ["unknown:model", Script(fail_with(REJECTED)).id])
async def test_a_failure_that_would_come_again_goes_on_with_the_fallback(id: Any) -> None:
    failed = await fail(Model("fast", id, fallback=[TestModel()]))
    how = "unknown:model: Unknown model: unknown:model" if isinstance(id, str) else "function:script: HTTP 401"
    assert failed.retry == Progress(1, 0, 0, [how])
    texts, answer = await call(
        Model("fast", id, fallback=[TestModel(custom_output_text="Yes.")]), write(("user", "Hi")), progress=failed.retry
    )
    assert ("".join(texts), answer.text, answer.metadata.own[MODEL]) == ("Yes.", "Yes.", "test:test")


@each_case("after", [0, 1])
async def test_a_model_that_says_nothing_more_has_failed(after: int) -> None:
    is_closed = asyncio.Event()

    async def hang(number: int) -> AsyncIterator[Any]:
        try:
            for _ in range(after):
                yield "Half"
            await asyncio.Event().wait()
            yield ""
        finally:
            is_closed.set()

    seconds: dict[str, Any] = (
        {"first_chunk": 0.02, "next_chunk": 30.0} if after == 0 else {"first_chunk": 30.0, "next_chunk": 0.02}
    )
    failed = await fail(Model("fast", Script(hang).id, **seconds))
    assert str(failed) == "the model fast has failed: function:script: no chunk within 0.02 s"
    assert failed.retry is not None
    async with asyncio.timeout(10):
        await is_closed.wait()


async def test_the_time_that_the_caller_takes_for_a_chunk_is_not_the_model_s() -> None:
    model = Model("fast", Script(agree).id, next_chunk=0.2)
    loop = asyncio.get_running_loop()
    texts = []
    async for each in call_model(model, write(("user", "Hi"))):
        texts.append(each)
        slow = loop.create_future()
        loop.call_later(0.3 if len(texts) == 1 else 0, slow.set_result, None)
        await slow
    assert texts[:2] == ["Yes", "."]


async def test_a_call_that_is_left_ends_the_model() -> None:
    is_closed = asyncio.Event()

    async def talk(number: int) -> AsyncIterator[Any]:
        try:
            yield "One"
            await asyncio.Event().wait()
        finally:
            is_closed.set()

    async def read() -> None:
        async with aclosing(call_model(Model("fast", Script(talk).id), write(("user", "Hi")))) as stream:
            async for _ in stream:
                begun.set()

    begun = asyncio.Event()
    reading = asyncio.create_task(read())
    async with asyncio.timeout(10):
        await begun.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await is_closed.wait()


@each_case("options", [{"attempts": 0}, {"first_chunk": 0}, {"next_chunk": -1}])
def test_a_model_needs_attempts_and_time(options: Any) -> None:
    with pytest.raises(ValueError, match="the model 'fast' needs"):
        Model("fast", "test", **options)


async def test_pydantic_ai_is_imported_at_the_first_call_only() -> None:
    code = (
        "import sys, asyncio\n"
        "from plait import Agent, Messages, Model, Plait, Prompt, Side, Tasks, Thread\n"
        "class Desk(Thread[None]):\n"
        "    tasks, messages = Tasks(), Messages(agent='desk')\n"
        "app = Plait(Desk, store='memory:')\n"
        "prompts, models = [Prompt('p', '', 'm')], [Model('m', 'test')]\n"
        "app.execution(Desk, agents=[Agent('desk', Side('p'))], prompts=prompts, models=models)\n"
        "async def start():\n"
        "    async with app: await app.run('desk', thread='one')\n"
        "asyncio.run(start())\n"
        "from plait.agents.execution.asking import load_model_call\n"
        "assert 'pydantic_ai' not in sys.modules\n"
        "asyncio.run(load_model_call())\n"
        "assert 'pydantic_ai' in sys.modules"
    )
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], capture_output=True, check=False)
    assert done.stderr.decode() == ""
    assert await load_model_call() is call_model


async def test_what_calls_models_is_imported_in_another_os_thread_only_once() -> None:
    asking._load.cache_clear()
    assert await load_model_call() is call_model
    with pytest.raises(StopIteration):  # It does not wait.
        load_model_call().send(None)


async def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asking._load.cache_clear()
    monkeypatch.setitem(sys.modules, "plait.agents.execution.model_call", None)
    with pytest.raises(ModuleNotFoundError, match=r"need the extra plait\[execution\]"):
        await load_model_call()


async def test_a_retry_of_a_fallback_that_was_removed_asks_the_last_one_that_is_left() -> None:
    model = Model("fast", Script(agree).id)
    assert (await call(model, write(("user", "Hi")), progress=Progress(number=2)))[0] == ["Yes", "."]
    failed = await fail(Model("fast", Script(fail_with(ValueError("x"))).id, attempts=1), Progress(number=2))
    assert failed.retry is None
