"""Guesses of what is hidden, at each door that takes changes: their answers must not tell whether they are right."""

from typing import Any

from tests.views_stage import Stage, add, put, remove, splice, version_of

__all__ = ["guess", "guess_by_a_run"]


async def guess(stage: Stage, name: str) -> None:
    """Guess what is hidden, at each door that takes changes."""
    state = await stage.whole()
    await guess_by_pushes(stage, name, state)
    await guess_over_http(stage, name, state)
    await guess_by_whole_states(stage, name, state)
    assert await stage.whole() == state
    await guess_on_old_states(stage, name)


async def guess_by_pushes(stage: Stage, name: str, state: Any) -> None:
    key, value = next(iter(state["vault"].items()))
    length = len(state["deck"])
    guesses: list[dict[str, Any]] = [
        remove("/deck/0"),
        remove("/deck/99"),
        add(f"/deck/{length}", "x"),
        add(f"/deck/{length + 1}", "x"),
        put("/deck", state["deck"]),
        put("/deck/0", state["deck"][0]),
        put(f"/vault/{key}", value),
        put(f"/vault/{key}", "x"),
        put("/vault/no-key", "x"),
        remove("/hands/ada"),
        remove("/hands/nobody-else"),
        splice("/deck/0", "x", 3),
        splice("/deck/0", "x", 300),
        splice("/story/private", "x", 300),
        splice("/story/private", "x"),
        splice("/blurb", "x"),
        splice("/story", "x"),
        put("/rows/0", state["rows"][0]),
        put("/rows/0/price", state["rows"][0]["price"]),
        put("/rows/99/price", "x"),
        put("/tiers/1/price", "x"),
        put("/tiers/7/price", "x"),
        put("/deck/0/x", 1),
        put("/unknown/member", 1),
        put("/deck", {"no": "list"}),
        remove("/hands"),
        put("", state),
        put("", {}),
    ]
    socket = await stage.user(name).join("guesses")
    answers = set()
    for each in guesses:
        answer = await socket.push_and_wait(each)
        assert answer.get("path") == each["path"], answer
        answers.add((answer["type"], answer.get("code"), answer.get("message"), answer["version"]))
    assert len(answers) == 1, answers
    beside = await socket.push_and_wait(put("/table", []), put("/deck/0", "x"))
    assert beside["code"] == "forbidden"


async def guess_on_old_states(stage: Stage, name: str) -> None:
    """Push at hidden places that others have changed and taken away since, and on versions that there are not."""
    socket = await stage.user(name).join("guesses")
    await stage.change([put("/deck", [stage.secret(), stage.secret()]), put("/rows", [stage.row("r"), stage.row("s")])])
    await socket.until(lambda socket: socket.version == stage.version)
    epoch, version = socket.epoch, socket.version
    await stage.change([add("/deck/0", stage.secret())], [remove("/deck/1"), put("/deck/1", stage.secret())])
    await stage.change([put("/rows/1/price", stage.secret())], [remove("/rows/0")], [put("/story/private", "x")])
    await socket.until(lambda socket: socket.version == stage.version)
    answers = set()
    bases = (epoch, version), (epoch, version + 1), ("another", version), (epoch, 10_000), (epoch, -1)
    for base in (*bases, (epoch.partition(".")[0], version)):
        for op in (
            put("/deck/0", "x"),
            put("/deck/1", "x"),
            put("/deck/2", "x"),
            remove("/deck/0"),
            splice("/deck/1", "x"),
            put("/rows/0/price", "x"),
            put("/rows/1/price", "x"),
            splice("/story/private", "x", 90),
        ):
            answer = await socket.push_and_wait(op, base=base)
            assert answer.get("path") == op["path"], (base, answer)
            answers.add((answer["type"], answer["code"], answer["message"]))
    assert len(answers) == 1, answers
    await socket.close()


async def guess_over_http(stage: Stage, name: str, state: Any) -> None:
    user = stage.user(name)
    picture = await user.state()
    answers = set()
    for whole in (
        {**picture, "deck": state["deck"]},
        {**picture, "deck": ["x"]},
        {**picture, "deck": 7},
        {**picture, "vault": state["vault"]},
        {**picture, "vault": {"x": "x"}},
        {**picture, "hands": state["hands"]},
        {**picture, "hands": {**picture["hands"], "ada": ["x"]}},
        {**picture, "rows": state["rows"]},
        {**picture, "rows": [{**row, "price": "x"} for row in state["rows"]]},
        {**picture, "blurb": state["blurb"]},
        {**picture, "blurb": "x"},
        state,
        {**state, "deck": ["x"]},
    ):
        answer = await user.ask(method="PUT", json=whole)
        answers.add((answer.status_code, answer.json()["error"]["message"]))
    assert len(answers) == 1, answers
    (status, _) = answers.pop()
    assert status == 403
    answer = await user.ask(method="PUT", json=picture, headers={"if-match": '"other:1"'})
    assert answer.status_code == (403 if stage.varies else 412)
    answer = await user.ask(method="PUT", json=picture)
    assert answer.status_code == (403 if stage.varies else 200)


async def guess_by_whole_states(stage: Stage, name: str, state: Any) -> None:
    page = await stage.user(name).connect("cloudflare guesses")
    picture = page.state
    for each in ({**picture, "deck": state["deck"]}, {**picture, "deck": ["x"]}, state, {**state, "blurb": "x"}):
        page.refusals.clear()
        page.states.clear()
        await page.push(each)
        await page.until(lambda page: page.refusals and page.states)
        assert (page.refusals, page.states) == (["State update rejected"], [picture])
    if not stage.varies:
        await page.push({**picture, "table": [*picture["table"], "from a page"]})
        await page.call("sync")  # Is answered after it.
        assert len(page.refusals) == 1
        await stage.change([put("/table", picture["table"])])
    await page.close()


async def guess_by_a_run(stage: Stage, name: str) -> None:
    """Send a state with a run: what is hidden, and a change of what is seen."""
    user, state = stage.user(name), await stage.whole()
    answer = await user.ask()
    version, picture = answer.headers["etag"].strip('"'), answer.json()
    raw = f"{version.partition('.')[0]}:{version_of(version)}"
    answers = set()
    for whole in ({**picture, "deck": state["deck"]}, {**picture, "deck": ["x"]}, state, {**state, "deck": []}):
        run = user.run(state=whole, version=version, door="ag-ui guesses")
        await run.until_end()
        error = next(event for event in run.events if event["type"] == "RUN_ERROR")
        answers.add((run.status, error["code"], error["message"]))
    assert len(answers) == 1, answers
    run = user.run(state=picture, version=raw, door="ag-ui guesses")
    await run.until_end()
    assert any(event.get("code") == "conflict" for event in run.events)
    assert await stage.whole() == state
    run = user.run(state={**picture, "turn": "by a run"}, version=version)
    await run.until_end()
    assert (await stage.whole())["turn"] == (state["turn"] if stage.varies else "by a run")
