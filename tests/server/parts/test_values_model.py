"""Values beside a plain dict, whatever is done to them, rolled back, or lost."""

import copy
import tempfile
from pathlib import Path
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.schedules import schedules
from tests.server.agents.lab import Conversation, Lab, make_store, open_lab
from tests.server.agents.test_values_together import fail_writes

from plait import Context, Limits, StoreError

Model = dict[str, Any]
Step = tuple[str, str, int]

LONG: Final = 60

steps = st.tuples(
    st.sampled_from(["set", "list", "delete", "push", "trim", "clear", "update", "in place"]),
    st.sampled_from("abc"),
    st.integers(0, 9),
)
# How the steps of a group are done, and whether the thread sleeps after it.
ways = st.sampled_from(
    ["alone", "transaction", "raising transaction", "run", "raising run", "run with a transaction", "failing"]
)
groups = st.tuples(ways, st.lists(steps, max_size=6), st.booleans())


def change(model: Model, what: str, key: str, number: int) -> None:
    """Do a step to a dict."""
    match what:
        case "set":
            model[key] = number
        case "list":
            model[key] = list(range(number))
        case "delete":
            model.pop(key, None)
        case "push" | "trim" if isinstance(model.get(key, []), list):
            model[key] = [*model.get(key, []), "x" * number][-(number + 1 if what == "trim" else 10_000) :]
        case "clear":
            model.clear()
        case "update":
            model[key] = [model.get(key), number]
        case "in place" if isinstance(model.get(key), list):
            model[key] = [*model[key], number]


async def do(values: Any, model: Model, what: str, key: str, number: int) -> None:
    """Do a step to values and to their model."""
    match what:
        case "set":
            await values.set(key, number)
        case "list":
            await values.set(key, list(range(number)))
        case "delete":
            await values.delete(key)
        case "push" | "trim" if isinstance(model.get(key, []), list):
            await values.push(key, "x" * number, number + 1 if what == "trim" else None)
        case "clear":
            await values.clear()
        case "update":
            await values.update(key, lambda value: [value, number])
        case "in place" if isinstance(model.get(key), list):
            (await values.get(key)).append(number)
    change(model, what, key, number)


async def do_group(lab: Lab, model: Model, way: str, steps: list[Step]) -> Model:
    """Do the steps of a group; return what the values must be then."""
    thread, after = await lab.thread(), copy.deepcopy(model)
    if "run" not in way:  # Only an agent may change values in place.
        steps = [step for step in steps if step[0] != "in place"]

    async def work(ctx: Context[Conversation]) -> None:
        for number, step in enumerate(steps):
            if way == "run with a transaction" and number % 2:
                with ctx.thread.transaction():
                    ctx.thread.update("/answer", str(number))
                    await do(ctx.thread.values, after, *step)
            else:
                await do(ctx.thread.values, after, *step)
            assert dict(await ctx.thread.values.items()) == after
        if way == "raising run":
            raise ZeroDivisionError

    match way:
        case "alone":
            for step in steps:
                await do(thread.values, after, *step)
        case "transaction" | "raising transaction":
            await thread.values.items()  # So that nothing in the block waits for the store.
            try:
                async with thread.transaction():
                    for step in steps:
                        await do(thread.values, after, *step)
                    if way == "raising transaction":
                        raise ZeroDivisionError
            except ZeroDivisionError:
                after = model
        case "failing":
            await thread.values.items()
            fail_writes(lab, 100)
            for step in steps:
                try:
                    await do(thread.values, after, *step)
                except StoreError:
                    assert await thread.values.items() == list(model.items())
                after = copy.deepcopy(model)
            del lab.store.submit  # type: ignore[method-assign]
        case _:
            try:
                await lab.do(work)
            except ZeroDivisionError:
                after = model
    return after


async def compare_with_dict(store: str, groups: list[tuple[str, list[Step], bool]]) -> None:
    """Do the groups of steps to values on a store and to a dict."""
    model: Model = {}
    with tempfile.TemporaryDirectory() as folder:
        async with open_lab(make_store(store, Path(folder)), limits=Limits()) as lab:
            for way, steps, sleeps in groups:
                model = await do_group(lab, model, way, steps)
                if sleeps:
                    await lab.sleep()
                found = await (await lab.thread()).values.items()
                assert dict(found) == model
                if way != "run with a transaction":
                    assert [key for key, _ in found] == list(model)
                model = dict(found)
            await lab.sleep()
            assert await (await lab.thread()).values.items() == list(model.items())


@given(st.lists(groups, max_size=8))
async def test_values_do_what_a_dict_does(groups: list[tuple[str, list[Step], bool]]) -> None:
    await compare_with_dict("memory", groups)


@settings(max_examples=schedules(10))
@given(st.lists(groups, max_size=8))
async def test_values_do_what_a_dict_does_on_sqlite(groups: list[tuple[str, list[Step], bool]]) -> None:
    await compare_with_dict("sqlite", groups)
