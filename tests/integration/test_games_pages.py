"""The pages of tic-tac-toe and of the counter: changes that are shown at once, and a server that may refuse them."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.integration.browser import Demo, record, recorded
from tests.schedules import in_soak

# The nine cells in one word, a dot for an empty one, for `record`.
READ_MARKS = """[...document.querySelectorAll("[data-cell]")].map((cell) => cell.dataset.mark || ".").join("")"""
READ_COUNT = """document.querySelector("#count").textContent"""
# Where the seats and the grid are, and what is below them.
READ_PLACES = """[...document.querySelectorAll(".player, .turn, #grid, #cheats")].map((element) => {
    const { top, height } = element.getBoundingClientRect();
    return [top, height];
})"""
# Whether all that is said of the game is to be seen.
IS_WHOLE = """(() => {
    const turn = document.querySelector("#turn");
    return turn.scrollHeight <= turn.clientHeight;
})()"""
CHEATS = {
    "twice": "a player cannot move twice in a row",
    "taken": "that cell is taken",
    "undo": "earlier moves cannot be changed",
    "win": "a player can only join or move",
}


# Tic-tac-toe


def test_two_play_and_the_server_says_when_the_game_begins_and_who_has_won(demo: Demo) -> None:
    sent: list[Any] = []
    ada, bob = (demo.open("tictactoe/", sent=sent) for _ in range(2))
    join(ada, "Ada")
    expect(ada.locator("#turn")).to_have_text("Waiting for someone to join")
    expect(bob.locator(".player-name").first).to_have_text("Ada")
    assert demo.state("tic-tac-toe")["status"] == "waiting"
    join(bob, "Bob")
    expect(ada.locator("#turn")).to_have_text("Your turn")
    expect(bob.locator("#turn")).to_have_text("Ada\u2019s turn")
    assert demo.state("tic-tac-toe")["status"] == "playing"
    for page, cell, marks in (
        (ada, 4, "....X...."),
        (bob, 0, "O...X...."),
        (ada, 2, "O.X.X...."),
        (bob, 1, "OOX.X...."),
        (ada, 6, "OOX.X.X.."),
    ):
        click(page, cell)
        expect_marks(ada, marks)
        expect_marks(bob, marks)
    expect(ada.locator("#turn")).to_have_text("You won")
    expect(bob.locator("#turn")).to_have_text("Ada won")
    expect(bob.locator(".wins").first).to_have_text("1")
    game = demo.state("tic-tac-toe")
    assert game["status"] == "finished"
    assert game["winner"] == game["players"][0]["id"]
    pushed = [op["path"] for frame in sent if frame["type"] == "push" for op in frame["ops"]]
    assert pushed == ["/players/-"] * 2 + ["/moves/-"] * 5


@pytest.mark.release
def test_a_full_grid_without_a_line_is_a_draw_and_a_rematch_changes_who_begins(demo: Demo) -> None:
    ada, bob = begin(demo)
    for turn, cell in enumerate((0, 1, 2, 4, 3, 5, 7, 6, 8)):
        page = (ada, bob)[turn % 2]
        expect(page.locator("#turn")).to_have_text("Your turn")
        click(page, cell)
    for page in (ada, bob):
        expect(page.locator("#turn")).to_have_text("A draw")
    ada.click("#rematch")
    expect(bob.locator("#turn")).to_have_text("Your turn")
    expect_marks(bob, "." * 9)


def test_an_illegal_state_that_a_player_pushes_is_refused_and_rolled_back(demo: Demo) -> None:
    ada, bob = begin(demo)
    click(ada, 4)
    expect_marks(bob, "....X....")
    click(bob, 0)
    expect_marks(ada, "O...X....")
    before = demo.state("tic-tac-toe")
    record(bob, READ_MARKS)
    ada.click("#cheats summary")
    for cheat, why in CHEATS.items():
        record(ada, "document.querySelector('#turn').textContent + " + READ_MARKS)
        ada.click(f"[data-cheat={cheat}]")
        expect(ada.locator(".notice.refused").last).to_have_text(f"The server refused: {why}.")
        expect_marks(ada, "O...X....")
        expect(ada.locator("#turn")).to_have_text("Your turn")
        shown = recorded(ada)
        assert shown[0] == shown[-1] == "Your turnO...X...."
        assert len(set(shown)) == 2, "the push was shown and taken back"
        assert demo.state("tic-tac-toe") == before
    click(ada, 8)
    expect_marks(bob, "O...X...X")
    assert recorded(bob) == ["O...X....", "O...X...X"]


@pytest.mark.release
def test_a_move_out_of_turn_on_a_taken_cell_or_by_a_stranger_is_refused_and_rolled_back(demo: Demo) -> None:
    ada, bob = begin(demo)
    stranger = demo.open("tictactoe/")
    expect(stranger.locator("#join")).to_be_hidden()
    click(bob, 0)
    expect_refusal(bob, "it is not your turn")
    expect_marks(bob, "." * 9)
    click(ada, 4)
    for page in (ada, bob, stranger):
        expect_marks(page, "....X....")
    click(bob, 4)
    expect_refusal(bob, "that cell is taken")
    click(stranger, 0)
    expect_refusal(stranger, "you are not playing")
    click(bob, 0)
    for page in (ada, bob, stranger):
        expect_marks(page, "O...X....")


def test_a_killed_server_keeps_the_game_and_who_plays_it(demo: Demo) -> None:
    ada, bob = begin(demo)
    click(ada, 4)
    expect_marks(bob, "....X....")
    demo.kill()
    for page in (ada, bob):
        expect(page.locator("#status")).to_have_attribute("data-status", "offline")
        expect(page.locator("[data-cell]:disabled")).to_have_count(9)
    demo.start()
    for page in (ada, bob):
        expect(page.locator("#status")).to_have_attribute("data-status", "online")
        expect_marks(page, "....X....")
    ada.reload()
    expect(ada.locator("#turn")).to_have_text("Bob\u2019s turn")
    click(bob, 0)
    expect_marks(ada, "O...X....")
    expect(ada.locator("#turn")).to_have_text("Your turn")


@pytest.mark.release
def test_a_seat_whose_player_has_left_can_be_taken(demo: Demo) -> None:
    ada, bob = begin(demo)
    click(ada, 4)
    expect_marks(bob, "....X....")
    eve = demo.open("tictactoe/")
    ada.context.close()
    expect(eve.locator(".player-name").first).to_have_text("Ada, away")
    eve.click(".take:visible")
    expect(eve.locator(".player-name").first).to_contain_text("(you)")
    click(bob, 0)
    expect(eve.locator("#turn")).to_have_text("Your turn")
    click(eve, 8)
    expect_marks(bob, "O...X...X")


@pytest.mark.release
@pytest.mark.parametrize("width", [320, *in_soak([1280], [390])])
def test_nothing_moves_while_a_game_goes_on_however_long_its_names(demo: Demo, width: int) -> None:
    ada, bob = demo.open("tictactoe/", width=width), demo.open("tictactoe/")
    before = ada.evaluate(READ_PLACES)
    join(ada, "A" * 40)
    expect(ada.locator("#turn")).to_have_text("Waiting for someone to join")
    assert ada.evaluate(READ_PLACES) == before
    join(bob, "B" * 40)
    for page, cell in ((ada, 4), (bob, 0), (ada, 2), (bob, 1), (ada, 6)):
        expect(page.locator("#turn")).to_have_text("Your turn")
        click(page, cell)
        assert ada.evaluate(READ_PLACES) == before
    expect(ada.locator("#rematch")).to_be_visible()
    assert ada.evaluate(READ_PLACES) == before
    expect(bob.locator("#turn")).to_have_text("A" * 15 + "\u2026 won")


@pytest.mark.release
@pytest.mark.parametrize("width", [320, *in_soak([1280], [390])])
def test_a_long_name_leaves_room_for_what_is_said_of_it(demo: Demo, width: int) -> None:
    ada, bob = demo.open("tictactoe/"), demo.open("tictactoe/", width=width)
    for page, name in ((ada, "Wolfeschlegelsteinhausenbergerdorff Jr."), (bob, "Bob")):
        join(page, name)
        expect(page.locator(".player-name", has_text=f"{name} (you)")).to_be_visible()
    expect(bob.locator("#turn")).to_have_text("Wolfeschlegelst\u2026\u2019s turn")
    assert bob.evaluate(IS_WHOLE)
    for page, cell in ((ada, 4), (bob, 0), (ada, 2), (bob, 1), (ada, 6)):
        expect(page.locator("#turn")).to_have_text("Your turn")
        click(page, cell)
    expect(bob.locator("#turn")).to_have_text("Wolfeschlegelst\u2026 won")
    expect(bob.locator("#rematch")).to_be_visible()
    assert bob.evaluate(IS_WHOLE)


def test_the_lobby_shows_the_other_tables_at_which_there_are_people(demo: Demo) -> None:
    ada = demo.open("tictactoe/")
    expect(ada.locator("#lobby-note")).to_contain_text("No one is at another table")
    (bob, eve), empty = begin(demo, room=f"{demo.room}-bob"), demo.open("tictactoe/", room=f"{demo.room}-empty")
    expect(ada.locator(".table-players")).to_have_text(["Empty table", "Ada and Bob"])
    expect(ada.locator(".table-people")).to_have_text(["1 here", "2 here"])
    expect(ada.locator(".table-status")).to_have_text(["Free seat", "Playing"])
    join(empty, "Grace")
    expect(ada.locator(".table-players").first).to_have_text("Grace")
    for page in (bob, eve):
        page.context.close()
    expect(ada.locator(".table-players")).to_have_text(["Grace"])
    ada.click(".table-link")
    join(ada, "Ada")
    expect(empty.locator("#turn")).to_have_text("Your turn")


@pytest.mark.release
def test_the_lobby_is_right_after_the_server_was_killed(demo: Demo) -> None:
    ada, other = demo.open("tictactoe/"), demo.open("tictactoe/", room=f"{demo.room}-other")
    expect(ada.locator(".table-people")).to_have_text(["1 here"])
    demo.kill()
    expect(ada.locator("#lobby-note")).to_contain_text("not up to date")
    other.context.close()
    demo.start()
    expect(ada.locator("#lobby-note")).to_contain_text("No one is at another table")
    expect(ada.locator(".table-link")).to_have_count(0)


# Counter


def test_increments_that_two_make_at_the_same_moment_add_up(demo: Demo) -> None:
    one, other = demo.open_two("counter/")
    # Both press fifty times, two milliseconds apart, from the same moment on.
    moment = one.evaluate("Date.now()") + 250
    for page in (one, other):
        page.evaluate(
            """(moment) => {
                const press = () => document.querySelector("#increment").click();
                for (const i of Array(50).keys()) setTimeout(press, moment - Date.now() + 2 * i);
            }""",
            moment,
        )
    for page in (one, other):
        expect(page.locator("#count")).to_have_text("100")
    assert demo.state("counter") == {"count": 100}


@pytest.mark.release
def test_a_negative_count_is_refused_and_rolled_back(demo: Demo) -> None:
    one, other = demo.open_two("counter/")
    for page in (one, other):
        expect(page.locator("#count")).to_have_text("0")
        record(page, READ_COUNT)
    one.click("#decrement")
    expect(one.locator(".notice.refused")).to_contain_text("a count cannot be negative")
    expect(one.locator("#count")).to_have_text("0")
    one.click("#increment")
    expect(other.locator("#count")).to_have_text("1")
    expect(one.locator("#count")).to_have_text("1")
    assert recorded(one) == ["0", "-1", "0", "1"]
    assert recorded(other) == ["0", "1"]


@pytest.mark.release
def test_a_count_that_one_sets_survives_a_killed_server(demo: Demo) -> None:
    one, other = demo.open_two("counter/")
    one.fill("#value", "123456789")
    one.click("#set button")
    expect(other.locator("#count")).to_have_text("123,456,789")
    demo.kill()
    for page in (one, other):
        expect(page.locator("#status")).to_have_attribute("data-status", "offline")
    demo.start()
    for page in (one, other):
        expect(page.locator("#status")).to_have_attribute("data-status", "online")
        expect(page.locator("#count")).to_have_text("123,456,789")
    other.click("#increment")
    expect(one.locator("#count")).to_have_text("123,456,790")


def test_a_count_that_one_sets_offline_is_kept_over_a_reload_and_arrives(demo: Demo) -> None:
    one, other = demo.open_two("counter/")
    demo.keep_pages(one)
    demo.cut_off(one)
    expect(one.locator("#status")).to_have_attribute("data-status", "offline")
    expect(one.locator("#increment")).to_be_disabled()
    one.fill("#value", "41")
    one.click("#set button")
    one.reload()
    expect(one.locator("#status")).to_have_text("Offline: 1 edit waiting")
    expect(one.locator("#count")).to_have_text("41")
    record(one, READ_COUNT)
    demo.connect(one)
    expect(other.locator("#count")).to_have_text("41")
    expect(one.locator("#status")).to_have_text("Live")
    one.click("#increment")
    expect(other.locator("#count")).to_have_text("42")
    expect(one.locator("#count")).to_have_text("42")
    assert recorded(one) == ["41", "42"]


# What people do and see


def join(page: Page, name: str) -> None:
    page.fill("#name", name)
    page.click("#join button")


def begin(demo: Demo, *, room: str | None = None) -> tuple[Page, Page]:
    """Open two pages, and seat Ada, who begins, and Bob."""
    ada, bob = (demo.open("tictactoe/", room=room) for _ in range(2))
    join(ada, "Ada")
    expect(bob.locator(".player-name").first).to_have_text("Ada")
    join(bob, "Bob")
    expect(ada.locator("#turn")).to_have_text("Your turn")
    expect(bob.locator("#turn")).to_have_text("Ada\u2019s turn")
    return ada, bob


def click(page: Page, cell: int) -> None:
    page.click(f'[data-cell="{cell}"]')


def expect_marks(page: Page, marks: str) -> None:
    """Wait until the nine cells are these, a dot for an empty one."""
    page.wait_for_function(f"(marks) => {READ_MARKS} === marks", arg=marks)


def expect_refusal(page: Page, why: str) -> None:
    expect(page.locator(".notice.refused").last).to_have_text(f"The server refused: {why}.")
