"""`@task`: which methods may be tasks."""

from typing import Any

import pytest
from tests.cases import each_case

from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.parts.tasks.step import Step
from plait.parts.tasks.task import find_tasks, task
from plait.parts.tasks.thread_tasks import Tasks


def test_the_tasks_of_a_class_and_its_bases_are_found_by_name() -> None:
    class Base(Thread[None]):
        @task
        async def first(self, step: Step) -> None: ...

        async def other(self, step: Step) -> None: ...

    class Desk(Base):
        @task(timeout=5, clients=True)
        async def second(self, step: Step) -> None: ...

    found = find_tasks(Desk)
    assert {name: (each.timeout, each.is_for_clients) for name, each in found.items()} == {
        "first": (None, False),
        "second": (5, True),
    }


def test_a_task_must_be_an_async_def() -> None:
    with pytest.raises(RuntimeError) as raised:

        class Desk(Thread[None]):
            tasks = Tasks()

            @task
            def work(self, step: Step) -> None: ...

    assert "the task 'work' must be an async def" in str(raised.value.__cause__)


def test_a_task_must_not_replace_what_a_thread_has() -> None:
    async def work(self: Any, step: Step) -> None: ...

    Desk = type("Desk", (Thread,), {"destroy": task(work)})
    with pytest.raises(TypeError, match=r"Desk\.destroy is an attribute of Thread and cannot be a task"):
        find_tasks(Desk)


@each_case("timeout", [0, -1])
def test_a_timeout_must_be_above_0(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be above 0"):
        task(timeout=timeout)


@each_case("timeout", [float("inf"), float("nan"), "x"])
def test_a_timeout_must_be_a_finite_number(timeout: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="timeout must be"):
        task(timeout=timeout)


def test_a_task_must_have_a_step_and_parameters_with_places() -> None:
    async def no_step(self: Any) -> None: ...

    async def by_name(self: Any, step: Step, *, shop: str) -> None: ...

    for function in (no_step, by_name):
        with pytest.raises(TypeError, match="must have a step, and no parameter that is given by name only"):
            find_tasks(type("Desk", (Thread,), {"work": task(function)}))


def test_a_task_is_not_an_rpc_too() -> None:
    @rpc
    async def work(self: Any, step: Step) -> None: ...

    with pytest.raises(TypeError, match=r"Desk\.work is a task and an rpc: it can only be one of them"):
        find_tasks(type("Desk", (Thread,), {"work": task(work)}))
