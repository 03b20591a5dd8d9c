"""The runs of a thread's tasks that a client keeps."""

from plait_client.task_runs import TaskRuns
from plait_schemas.messages import Page, Part
from plait_schemas.task_run import RunStatus, TaskRun


def _run(number: int, status: RunStatus) -> TaskRun:
    return TaskRun(id=str(number), name="work", status=status, created_at=number)


def test_the_runs_that_are_not_over_and_the_last_ones_that_are_are_kept() -> None:
    runs, revision = TaskRuns("tasks"), 0

    def update(run: TaskRun) -> None:
        nonlocal revision
        revision += 1
        runs.receive(Part("tasks", revision, "update", run=run), 0.0)

    runs.join("e")
    runs.open(2)
    runs.take(0.0)
    runs.receive(Page("tasks", 0, reset=True, runs=[_run(1, "done"), _run(2, "running")]), 0.0)
    for number in range(3, 300):
        update(_run(number, "running"))
        update(_run(number, "done"))
    assert [run.id for run in runs.show()] == ["2", "298", "299"]
    update(_run(2, "failed"))
    assert [run.id for run in runs.show()] == ["2", "299"], "the last end counts, not the last beginning"
    update(_run(299, "waiting"))
    update(_run(298, "done"))
    assert [run.id for run in runs.show()] == ["2", "298", "299"]
