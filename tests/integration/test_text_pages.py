"""People type in one text, each in a browser of their own."""

import itertools
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from tests.integration.browser import Brake, Pages
from tests.integration.builds import CLIENT, Builds
from tests.running import Process
from tests.schedules import in_soak

APP = """
from plait import Plait, Thread, rpc

class Plain(Thread[dict]):
    initial_state = {"note": "", "other": 1}

    def validate_state_change(self, next_state, source):
        if "forbidden" in str(next_state.get("note")):
            raise ValueError("a word is forbidden")

    @rpc
    def write(self, note: str | None) -> None:
        self.set_state({"other": 1} if note is None else {"note": note, "other": 1})

    def should_be_readonly(self, connection, request):
        return "readonly" in request.query_params

class Note(Plain):
    texts = ("/note",)

app = Plait(Note, Plain, static="pages")
"""
PAGE = """<!doctype html>
<title>Note</title>
<link rel="icon" href="data:,">
<textarea rows="8" cols="60"></textarea>
<input>
<div contenteditable="plaintext-only" style="min-height: 8em"></div>
<script type="module">
  import { ThreadClient, bindText } from "/plait/client.js";
  window.room = new ThreadClient({ url: `/threads/${location.hash.slice(1)}` });
  window.refusals = [];
  room.onRefused(({ error }) => refusals.push(`${error.code}: ${error.message}`));
  for (const element of document.querySelectorAll("textarea, input, div")) bindText(element, room, "/note");
</script>
"""
# A page that knows nothing of texts but where others have changed them.
WHOLE_PAGE = """<!doctype html>
<title>Whole values</title>
<link rel="icon" href="data:,">
<textarea rows="8" cols="60"></textarea>
<script type="module">
  import { ThreadClient } from "/plait/client.js";
  const area = document.querySelector("textarea");
  window.room = new ThreadClient({ url: `/threads/${location.hash.slice(1)}` });
  window.refusals = [];
  room.onRefused(({ error }) => refusals.push(`${error.code}: ${error.message}`));
  room.onText("/note", ({ text, edits }) => {
    if (text === area.value) return;
    let caret = area.selectionEnd;
    for (const { at, remove, insert } of edits.toReversed()) {
      if (at < caret) caret += insert.length - Math.min(remove, caret - at);
    }
    area.value = text;
    area.setSelectionRange(caret, caret);
  });
  area.addEventListener("input", () => room.update("/note", area.value));
</script>
"""
# The page of an editor, and what it is made of.
EDITOR_PAGE = """<!doctype html>
<title>Editor</title>
<link rel="icon" href="data:,">
<body></body>
<script type="module" src="/editor.js"></script>
"""
EDITOR = """
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { EditorView, keymap } from "@codemirror/view";
import { plaitText } from "./src/codemirror.ts";
import { ThreadClient, text } from "./src/index.ts";

const [path, user] = location.hash.slice(1).split(",");
const room = new ThreadClient({ url: `/threads/${path}`, text });
room.setPresence({ name: user, color: "teal" });
const extensions = [history(), keymap.of([...defaultKeymap, ...historyKeymap])];
const view = new EditorView({
  extensions: [...extensions, plaitText(room, "/note", { presence: "caret" })],
  parent: document.body,
});
Object.assign(window, { room, view, refusals: [] });
room.onRefused(({ error }) => refusals.push(`${error.code}: ${error.message}`));
"""
BUNDLE = """
import { build } from "esbuild";
const [contents, outfile] = process.argv.slice(1);
const stdin = { contents, resolveDir: process.cwd(), loader: "ts" };
await build({ stdin, bundle: true, format: "esm", outfile, logLevel: "error" });
"""
# Types letters one after the other, as fast as the page takes them.
TYPE = """async (letters) => {
    for (const letter of letters) {
        document.execCommand("insertText", false, letter);
        await new Promise((resolve) => setTimeout(resolve));
    }
}"""
# Where the caret is in a `contenteditable`.
CARET = """(element) => {
    const { anchorNode, anchorOffset, isCollapsed } = getSelection();
    return element.contains(anchorNode) && isCollapsed ? anchorOffset : null;
}"""
ONE = "".join(chr(0x4E00 + number) for number in range(200))
OTHER = "".join(chr(0x5E00 + number) for number in range(200))

_numbers = itertools.count(1)


class Notes(Pages):
    """A note of a server, and people who type in it."""

    def __init__(self, server: Process, browser: Browser) -> None:
        super().__init__(server, browser)
        self._name = f"note-{next(_numbers)}"
        # What declares the text; "plain" does not.
        self.kind = "note"

    @property
    def _path(self) -> str:
        return f"{self.kind}/{self._name}"

    @property
    def _url(self) -> str:
        return f"http://{self._server.address}/threads/{self._path}"

    def open(self, *, readonly: bool = False, brake: Brake | None = None) -> Page:
        """Open the note in a browser context of its own, and wait until it is live."""
        return self._open(f"#{self._path}{'?readonly' if readonly else ''}", brake)

    def open_whole(self) -> Page:
        """Open the note in a page that sends whole values."""
        return self._open(f"whole.html#{self._path}")

    def open_editor(self, user: str) -> Page:
        """Open the note in an editor."""
        return self._open(f"editor.html#{self._path},{user}")

    def _open(self, place: str, brake: Brake | None = None) -> Page:
        page = self.new_page(800, 600, touch=False, brake=brake)
        page.goto(f"http://{self._server.address}/{place}")
        page.wait_for_function("window.room?.status === 'online'")
        return page

    @staticmethod
    def freeze(page: Page) -> None:
        """Stop the page's clock, so that what is typed from now on is one burst however slow the machine is."""
        page.evaluate("() => { const now = performance.now(); performance.now = () => now; }")

    def connect(self, page: Page) -> None:
        """Give the network back to a page."""
        page.context.set_offline(False)

    def write(self, note: str | None) -> None:
        """Set the whole text on the server, or remove it."""
        httpx.post(f"{self._url}/rpc/write", json={"args": [note]}).raise_for_status()

    def text(self) -> str:
        """Return the text as the server has it."""
        state: Any = httpx.get(self._url).raise_for_status().json()
        return str(state["note"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, builds: Builds) -> Iterator[Process]:
    builds.install(CLIENT)
    folder = tmp_path_factory.mktemp("notes")
    (folder / "notes.py").write_text(APP)
    pages = folder / "pages"
    pages.mkdir()
    (pages / "index.html").write_text(PAGE)
    (pages / "whole.html").write_text(WHOLE_PAGE)
    (pages / "editor.html").write_text(EDITOR_PAGE)
    command = ["node", "--input-type=module", "-e", BUNDLE, "--", EDITOR, str(pages / "editor.js")]
    subprocess.run(command, cwd=CLIENT, check=True)
    with Process("notes:app", cwd=folder, environment={"PLAIT_STORE": "memory://"}) as process:
        yield process


@pytest.fixture
def notes(browser: Browser, server: Process) -> Iterator[Notes]:
    """Have a note of the test's own; no page may complain of anything."""
    opened = Notes(server, browser)
    try:
        yield opened
    finally:
        opened.close()
    assert opened.troubles == []


# Typing


@pytest.mark.parametrize("kind", ["note", *in_soak(["plain"])])
def test_two_who_type_at_full_speed_one_of_them_offline_lose_no_letter_and_keep_their_carets(
    notes: Notes, kind: str
) -> None:
    notes.kind = kind
    notes.write("start  end")
    type_at_full_speed(notes, notes.open(), notes.open())


@pytest.mark.release
def test_two_areas_that_send_whole_values_at_full_speed_merge_in_a_declared_text(notes: Notes) -> None:
    notes.write("start  end")
    one, other = notes.open_whole(), notes.open_whole()
    type_at_full_speed(notes, one, other)
    text = notes.text()
    for page, letters in ((one, ONE), (other, OTHER)):
        text = "".join(letter for letter in text if letter not in letters)
        page.evaluate("async () => { while (room.canUndo('/note')) await room.undo('/note') }")
        settle(one, other)
        assert [area(one).input_value(), area(other).input_value(), notes.text()] == [text] * 3
    assert text == "start  end"


@pytest.mark.release
def test_the_same_letters_are_typed_where_the_caret_is(notes: Notes) -> None:
    notes.write("aaaaaa")
    one, other = notes.open(), notes.open()
    select(other, 4)
    select(one, 2)
    area(one).press_sequentially("aa")
    expect(area(other)).to_have_value("aaaaaaaa")
    assert (caret(one), caret(other)) == (4, 6)


def test_a_selection_stays_on_its_words_and_what_is_typed_replaces_them(notes: Notes) -> None:
    notes.write("one two three")
    one, other = notes.open(), notes.open()
    select(other, 4, 7)
    select(one, 0)
    area(one).press_sequentially("zero ")
    select(one, 9, 18)
    area(one).press("Delete")
    expect(area(other)).to_have_value("zero one ")
    assert caret(other) == 9
    notes.write("zero one two")
    expect(area(other)).to_have_value("zero one two")
    select(other, 9, 12)
    select(one, 0, 5)
    area(one).press("Backspace")
    expect(area(other)).to_have_value("one two")
    assert selection(other) == [4, 7]
    area(other).press_sequentially("2")
    expect(area(one)).to_have_value("one 2")


@pytest.mark.parametrize("selector", ["textarea", "div"])
def test_a_selection_that_was_made_backward_stays_so_and_goes_on_where_it_began(notes: Notes, selector: str) -> None:
    notes.write("one two three")
    one, other = notes.open(), notes.open()
    expect(area(one)).to_have_value("one two three")
    one.locator(selector).focus()
    one.keyboard.press("Control+End")
    for _ in "three":
        one.keyboard.press("Shift+ArrowLeft")
    select(other, 0)
    area(other).press_sequentially("zero ")
    expect(area(one)).to_have_value("zero one two three")
    for _ in "two ":
        one.keyboard.press("Shift+ArrowLeft")
    one.keyboard.press("Delete")
    expect(area(other)).to_have_value("zero one ")


@pytest.mark.release
def test_a_long_text_stays_scrolled_to_where_it_is(notes: Notes) -> None:
    notes.write("".join(f"line {number}\n" for number in range(300)))
    one, other = notes.open(), notes.open()
    expect(area(other)).to_have_value(re.compile("line 299"))
    area(other).evaluate("(area) => area.scrollTop = 900")
    select(one, 0)
    area(one).press_sequentially("abc")
    expect(area(other)).to_have_value(re.compile("^abcline"))
    assert area(other).evaluate("(area) => area.scrollTop") == 900


def test_a_text_with_line_ends_of_windows_keeps_them_and_gets_what_is_typed_where_the_caret_is(notes: Notes) -> None:
    notes.write("one\r\ntwo\r\nthree")
    page, other = notes.open(), notes.open()
    expect(area(page)).to_have_value("one\ntwo\nthree")
    area(page).focus()
    select(page, 7)
    area(page).press_sequentially("!")
    expect(area(other)).to_have_value("one\ntwo!\nthree")
    assert notes.text() == "one\r\ntwo!\r\nthree"
    select(page, 9)
    area(page).press("Backspace")
    expect(area(other)).to_have_value("one\ntwo!three")
    assert notes.text() == "one\r\ntwo!three"


def test_an_input_method_composes_undisturbed_while_another_types(notes: Notes) -> None:
    notes.write("()")
    one, other = notes.open(), notes.open()
    area(one).focus()
    select(one, 1)
    keyboard = one.context.new_cdp_session(one)

    def compose(text: str) -> None:
        keyboard.send("Input.imeSetComposition", {"text": text, "selectionStart": len(text), "selectionEnd": len(text)})

    compose("k")
    expect(area(other)).to_have_value("(k)")
    select(other, 0)
    area(other).press_sequentially("before ")
    compose("か")
    expect(area(other)).to_have_value("before (か)")
    one.wait_for_function("room.state.note === 'before (か)'")
    compose("かn")
    expect(area(one)).to_have_value("(かn)")
    keyboard.send("Input.insertText", {"text": "感"})
    for page in (one, other):
        expect(area(page)).to_have_value("before (感)")
    assert caret(one) == len("before (感")
    area(one).press("Control+z")
    expect(area(other)).to_have_value("before ()")


@pytest.mark.release
def test_a_composition_that_takes_long_is_undone_at_once(notes: Notes) -> None:
    notes.write("()")
    page = notes.open()
    area(page).focus()
    select(page, 1)
    keyboard = page.context.new_cdp_session(page)
    # The clock of the undo history.
    page.evaluate(
        "() => { const now = performance.now.bind(performance); performance.now = () => now() + window.passed; }"
    )
    for passed, text in enumerate(["k", "か", "かn"]):
        page.evaluate("(passed) => { window.passed = passed * 5000; }", passed)
        keyboard.send("Input.imeSetComposition", {"text": text, "selectionStart": len(text), "selectionEnd": len(text)})
        expect(area(page)).to_have_value(f"({text})")
    keyboard.send("Input.insertText", {"text": "感"})
    expect(area(page)).to_have_value("(感)")
    page.evaluate("() => { window.passed = 20_000; }")
    area(page).press_sequentially("x")
    for expected in ("(感)", "()"):
        area(page).press("Control+z")
        expect(area(page)).to_have_value(expected)


# Undo


def test_undo_takes_back_only_ones_own_typing_by_bursts_and_redo_brings_it_back(notes: Notes) -> None:
    notes.write("()")
    one, other = notes.open(), notes.open()
    notes.freeze(one)
    for page, letters in ((one, "mine"), (other, "theirs")):
        select(page, 1)
        area(page).press_sequentially(letters)
    settle(one, other)
    select(other, 0)
    area(other).press_sequentially("X")
    expect(area(one)).to_have_value(re.compile("^X"))
    area(one).press("Control+z")
    for page in (one, other):
        expect(area(page)).to_have_value("X(theirs)")
    area(one).press("Control+z")
    area(one).press("Control+Shift+z")
    for page in (one, other):
        expect(area(page)).to_have_value(re.compile("^X.*mine"))
    area(one).press("Control+z")
    area(one).press("Control+y")
    expect(area(other)).to_have_value(re.compile("^X.*mine"))
    assert area(one).input_value()[: caret(one)].endswith("mine")


@pytest.mark.release
def test_undo_works_offline(notes: Notes) -> None:
    notes.write("")
    one, other = notes.open(), notes.open()
    notes.freeze(one)
    notes.cut_off(one)
    area(one).press_sequentially("abc")
    area(one).press("Enter")
    area(one).press_sequentially("def")
    select(other, 0)
    area(other).press_sequentially("X")
    area(one).press("Control+z")
    expect(area(one)).to_have_value("abc")
    notes.connect(one)
    settle(one, other)
    assert sorted(notes.text()) == sorted("abcX")
    area(one).press("Control+z")
    expect(area(other)).to_have_value("X")


# Other elements


@pytest.mark.release
def test_all_kinds_of_elements_show_one_text(notes: Notes) -> None:
    page, other = notes.open(), notes.open()
    line(page).press_sequentially("line")
    expect(area(other)).to_have_value("line")
    select(page, 4)
    area(page).press("Enter")
    area(page).press_sequentially("two")
    expect(free(other)).to_have_text("line\ntwo", use_inner_text=True)
    expect(line(other)).to_have_value("linetwo")
    line(other).press("End")
    line(other).press_sequentially("!")
    expect(area(page)).to_have_value("line\ntwo!")


def test_an_editable_element_takes_lines_and_keeps_its_caret(notes: Notes) -> None:
    one, other = notes.open(), notes.open()
    free(one).click()
    one.keyboard.type("a")
    one.keyboard.press("Enter")
    one.keyboard.press("Enter")
    one.keyboard.type("b")
    expect(area(other)).to_have_value("a\n\nb")
    one.keyboard.press("Enter")
    expect(area(other)).to_have_value("a\n\nb\n")
    select(other, 0)
    area(other).press_sequentially("XYZ")
    expect(area(one)).to_have_value("XYZa\n\nb\n")
    assert free(one).evaluate(CARET) == len("XYZa\n\nb\n")
    one.keyboard.type("c")
    expect(area(other)).to_have_value("XYZa\n\nb\nc")
    one.keyboard.press("Backspace")
    one.keyboard.press("Backspace")
    one.keyboard.press("Backspace")
    expect(area(other)).to_have_value("XYZa\n\n")
    one.keyboard.type("d")
    expect(area(other)).to_have_value("XYZa\n\nd")
    one.keyboard.press("Control+a")
    one.keyboard.press("Delete")
    expect(area(other)).to_have_value("")
    one.keyboard.type("some\nlines")
    expect(area(other)).to_have_value("some\nlines")
    one.keyboard.press("Control+a")
    one.keyboard.press("Control+c")
    one.keyboard.press("ArrowRight")
    one.keyboard.press("Control+v")
    expect(area(other)).to_have_value("some\nlinessome\nlines")
    one.keyboard.press("Control+z")
    expect(area(other)).to_have_value("some\nlines")


@pytest.mark.parametrize("way", ["paste", "keyboard", "script"])
def test_lines_that_come_at_once_are_lines_of_an_editable_element(notes: Notes, way: str) -> None:
    lines = "A\nB\nC"
    notes.write(lines)
    page, other = notes.open(), notes.open()
    notes.freeze(page)
    expect(area(page)).to_have_value(lines)
    area(page).press("Control+a")
    area(page).press("Control+c")
    notes.write("one two")
    expect(free(page)).to_have_text("one two")
    free(page).evaluate("(element) => { element.focus(); getSelection().collapse(element.firstChild, 4) }")
    if way == "paste":
        page.keyboard.press("Control+v")
    elif way == "keyboard":
        # As an input method or a voice does.
        page.keyboard.insert_text(lines.replace("\n", "\r\n"))
    else:
        page.evaluate("(lines) => document.execCommand('insertText', false, lines)", lines)
    expect(area(other)).to_have_value("one A\nB\nCtwo")
    page.keyboard.type("!")
    expect(area(other)).to_have_value("one A\nB\nC!two")
    page.keyboard.press("Control+End")
    page.keyboard.press("Enter")
    expect(area(other)).to_have_value("one A\nB\nC!two\n")
    assert free(page).evaluate(CARET) == len("one A\nB\nC!two\n")
    page.keyboard.press("Backspace")
    page.keyboard.press("Home")
    page.keyboard.press("Backspace")
    expect(area(other)).to_have_value("one A\nBC!two")
    page.keyboard.type("?")
    expect(area(other)).to_have_value("one A\nB?C!two")
    for _ in range(4):
        page.keyboard.press("Control+z")
    expect(area(other)).to_have_value("one two")
    expect(free(page)).to_have_text("one two")


def test_editors_and_a_textarea_share_a_text_at_full_speed_and_undo_what_was_typed_in_them(notes: Notes) -> None:
    notes.write("start  end")
    one, other, plain = notes.open_editor("Ada"), notes.open_editor("Grace"), notes.open()
    for page in (one, other):
        expect(page.locator(".cm-content")).to_have_text("start  end")
    for page in (one, other):
        page.evaluate("view.focus(), view.dispatch({ selection: { anchor: 6 } })")
    expect(area(plain)).to_have_value("start  end")
    select(plain, 6)
    third = "".join(chr(0x6E00 + number) for number in range(40))
    typists = ((one, ONE[:40]), (other, OTHER[:40]), (plain, third))
    for page, letters in typists:
        start(page, letters)
    for page, _ in typists:
        wait(page)
    settle(one, other, plain)
    text = notes.text()
    assert [page.evaluate("refusals") for page, _ in typists] == [[], [], []]
    assert [one.evaluate("view.state.doc.toString()"), other.evaluate("view.state.doc.toString()")] == [text, text]
    assert area(plain).input_value() == text
    for _, letters in typists:
        assert "".join(letter for letter in text if letter in letters) == letters
    assert len(text) == len("start  end") + 120
    for page, letters in typists[:2]:
        assert text[page.evaluate("view.state.selection.main.head") - 1] == letters[-1]
    expect(one.locator(".cm-plait-name")).to_have_text("Grace")
    for _ in ONE[:40]:
        one.keyboard.press("Control+z")
        settle(one)
        if not any(letter in notes.text() for letter in ONE):
            break
    rest = "".join(letter for letter in text if letter not in ONE)
    expect(area(plain)).to_have_value(rest)
    one.keyboard.press("Control+Shift+z")
    expect(area(plain)).not_to_have_value(rest)


# What cannot be typed


def test_what_is_refused_is_not_shown(notes: Notes) -> None:
    notes.write("ok")
    page = notes.open()
    select(page, 2)
    area(page).press_sequentially(" forbidde")
    page.wait_for_function("room.pending === 0")
    area(page).press_sequentially("n")
    expect(area(page)).to_have_value("ok forbidde")
    assert caret(page) == len("ok forbidde")
    area(page).press_sequentially("!")
    page.wait_for_function("room.pending === 0")
    assert notes.text() == "ok forbidde!"


def test_who_may_only_read_cannot_type(notes: Notes) -> None:
    notes.write("ok")
    page = notes.open(readonly=True)
    expect(area(page)).to_have_value("ok")
    expect_readonly(page)


def test_an_element_without_a_text_is_empty_and_readonly_until_there_is_one(notes: Notes) -> None:
    notes.write("ok")
    page = notes.open()
    expect(area(page)).to_be_editable()
    notes.write(None)
    expect_readonly(page)
    expect(area(page)).to_have_value("")
    notes.write("again")
    expect(area(page)).to_be_editable()
    expect(line(page)).to_be_editable()
    expect(free(page)).to_have_attribute("contenteditable", "plaintext-only")
    expect(area(page)).to_have_value("again")
    expect(free(page)).to_have_text("again")


# Pages


def area(page: Page) -> Locator:
    return page.locator("textarea")


def line(page: Page) -> Locator:
    return page.locator("input")


def free(page: Page) -> Locator:
    return page.locator("div")


def type_at_full_speed(notes: Notes, one: Page, other: Page) -> None:
    """Type on two pages at one place of "start  end", one offline for a half; check letters and carets."""
    for page in (one, other):
        expect(area(page)).to_have_value("start  end")
        area(page).focus()
        select(page, 6)
    start(one, ONE[:100])
    start(other, OTHER[:100])
    wait(one)
    wait(other)
    notes.cut_off(other)
    start(one, ONE[100:])
    start(other, OTHER[100:])
    wait(one)
    wait(other)
    notes.connect(other)
    settle(one, other)
    text = notes.text()
    assert [page.evaluate("refusals") for page in (one, other)] == [[], []]
    for page, letters in ((one, ONE), (other, OTHER)):
        assert area(page).input_value() == text
        assert "".join(letter for letter in text if letter in letters) == letters
        assert text[caret(page) - 1] == letters[-1]
    assert len(text) == len("start  end") + len(ONE) + len(OTHER)
    assert re.fullmatch(r"start .+ end", text)


def select(page: Page, start: int, end: int | None = None) -> None:
    """Put the caret, or the selection, of the textarea somewhere."""
    area(page).evaluate(
        "(area, at) => { area.focus(); area.setSelectionRange(...at) }", [start, start if end is None else end]
    )


def selection(page: Page) -> list[int]:
    """Return from where to where the textarea is selected."""
    found: list[int] = area(page).evaluate("(area) => [area.selectionStart, area.selectionEnd]")
    return found


def caret(page: Page) -> int:
    """Return where the caret is in the textarea, in which nothing may be selected."""
    start, end = selection(page)
    assert start == end
    return start


def expect_readonly(page: Page) -> None:
    expect(area(page)).not_to_be_editable()
    expect(line(page)).not_to_be_editable()
    expect(free(page)).to_have_attribute("contenteditable", "false")


def start(page: Page, letters: str) -> None:
    """Begin to type in the focused element, and return at once."""
    page.evaluate("([type, letters]) => { window.typing = eval(type)(letters) }", [TYPE, letters])


def wait(page: Page) -> None:
    """Wait until all that was begun is typed."""
    page.evaluate("window.typing")


def settle(*pages: Page) -> None:
    """Wait until the pages are live and show the same, with no change on its way."""
    for page in pages:
        page.wait_for_function("room.status === 'online' && room.pending === 0")
    version = max(page.evaluate("room.version") for page in pages)
    for page in pages:
        page.wait_for_function("(version) => room.version >= version", arg=version)
