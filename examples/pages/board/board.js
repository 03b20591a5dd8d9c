// @ts-check
import {
  avatar, find, findInput, loadPerson, notify, openRoom, room, savePerson, shake, showStatus,
} from "../room.js";
import { Thread, randomId } from "../thread.js";
import { CardDialog, askColumn } from "./dialogs.js";
import { PointerDrag } from "./drag.js";
import {
  Edits, addCard, addColumn, columnOf, deleteCard, deleteColumn, editCard, editColumn, moveCard,
} from "./edits.js";
import { KeyboardDrag } from "./keyboard.js";
import { BoardView } from "./view.js";

/** @typedef {import("./edits.js").Board} Board */
/** @typedef {import("./edits.js").Edit} Edit */
/** @typedef {import("./view.js").Editor} Editor */

const MOST_FACES = matchMedia("(max-width: 40rem)").matches ? 2 : 5;

const person = loadPerson();
/** Everyone who is here. @type {Editor[]} */
let people = [];
/**
 * The card in this person's hand, and the move that dropping it would make.
 * @type {{card: string, edit?: Edit} | undefined}
 */
let held;
/** The reason of the last change of status. */
let reason = "";

/** @type {Thread<Board>} */
const thread = new Thread("board", room, { onState: () => render(), onMessage: receive, onStatus: statusChanged });
const edits = new Edits(thread, render, refused);
const cardDialog = new CardDialog();
const view = new BoardView(find("#board"), {
  openCard,
  openColumn,
  addCard: (column, title) => edits.make(addCard(randomId(), column, { title, note: "", color: "plain" })),
});

/** Return the board as this person is to see it: with their own edits made. */
function board() {
  const edited = edits.applyTo(thread.state ?? { columns: [], cards: {} });
  return held?.edit ? held.edit.apply(edited) : edited;
}

/** @param {Map<string, DOMRect>} [from] */
function render(from) {
  if (!thread.state) return;
  const shown = board();
  const others = people.filter(({ id }) => id !== person.id);
  if (held && !shown.cards[held.card]) return lose();
  view.render(shown, held?.card, others, from);
  cardDialog.update(shown);
  find("#add-column").hidden = false;
  renderStatus();
}

// Connection

/** @param {import("../thread.js").Status} status @param {string} why */
function statusChanged(status, why) {
  reason = why;
  renderStatus();
  if (status !== "online") return;
  sayWho();
  edits.resend();
}

function renderStatus() {
  const waiting = edits.count === 1 ? "1 edit waiting" : `${edits.count} edits waiting`;
  showStatus(thread.status, thread.status === "offline" && edits.count ? waiting : reason);
}

/** @param {Edit} edit @param {string} why */
function refused(edit, why) {
  notify(`The server refused: ${why}.`, { refused: true });
  const card = view.card(String(edit.args[0]));
  if (card) shake(card);
}

// People

/** @param {{type: string, people?: Editor[]}} message */
function receive(message) {
  if (message.type !== "people") return;
  people = message.people ?? [];
  const more = people.length - MOST_FACES;
  find("#faces").replaceChildren(...people.slice(0, MOST_FACES).map(avatar), more > 0 ? `+${more}` : "");
  find("#people").replaceChildren(...people.map(personItem));
  render();
}

/** @param {Editor} someone */
function personItem(someone) {
  const element = document.createElement("li");
  element.dataset.person = someone.id;
  const name = document.createElement("span");
  name.textContent = someone.id === person.id ? `${someone.name} (you)` : someone.name;
  element.append(avatar(someone), name);
  return element;
}

/** Open the list of people under their faces. */
function placePeople() {
  const { left, bottom } = find("#faces").getBoundingClientRect();
  find("#people").style.setProperty("--left", `${left}px`);
  find("#people").style.setProperty("--top", `${bottom}px`);
}

/** Tell the others who this is and which card they have in hand. @param {string | null} card */
function sayWho(card = held?.card ?? null) {
  thread.send({ type: "person", ...person, card });
}

function rename() {
  const input = findInput("#name");
  person.name = input.value.trim() || person.name;
  input.value = person.name;
  savePerson(person);
  sayWho();
}

// Editing

/** @param {string} id */
async function openCard(id) {
  sayWho(id);
  const { action, changes } = await cardDialog.open(id, board());
  sayWho();
  const { column, ...fields } = changes;
  if (action === "deleted") notify("Someone deleted that card.");
  if (action === "delete") remove(id);
  if (action === "save" && Object.keys(fields).length) edits.make(editCard(id, fields));
  if (action === "save" && column) edits.make(moveCard(id, column, []));
}

/** @param {string} id */
function remove(id) {
  const column = columnOf(board(), id);
  const card = board().cards[id];
  if (!column || !card) return;
  const before = column.cards.slice(column.cards.indexOf(id) + 1);
  edits.make(deleteCard(id));
  const run = () => edits.make(addCard(id, column.id, card, before));
  notify(`Deleted “${card.title}”.`, { action: { label: "Undo", run } });
}

/** @param {string} id */
async function openColumn(id) {
  const column = columnOf(board(), id);
  if (!column) return;
  const { action, title, limit } = await askColumn(column);
  if (action === "save") edits.make(editColumn(id, title, limit));
  if (action === "delete") edits.make(deleteColumn(id));
}

/** @param {SubmitEvent} event */
function submitColumn(event) {
  event.preventDefault();
  const input = findInput("#add-column input");
  if (input.value.trim()) edits.make(addColumn(randomId(), input.value.trim()));
  input.value = "";
}

// Moving

/** @type {import("./drag.js").Hand} */
const hand = {
  lift(card) {
    held = { card };
    sayWho();
    render();
  },
  over({ column, before }) {
    const edit = held && moveCard(held.card, column, before);
    if (!held || !edit || isSame(edit)) return;
    held.edit = edit;
    render();
  },
  drop(from) {
    const last = held;
    held = undefined;
    sayWho();
    if (last?.edit && !isSame(last.edit)) edits.make(last.edit);
    render(last && from && new Map([[last.card, from]]));
  },
  cancel() {
    held = undefined;
    sayWho();
    render();
  },
};

/** Tell whether an edit would change nothing of what is to be seen. @param {Edit} edit */
function isSame(edit) {
  const shown = board();
  return JSON.stringify(edit.apply(shown).columns) === JSON.stringify(shown.columns);
}

/** The card in hand has been deleted by someone else. */
function lose() {
  drag.release();
  keyboard.release();
  hand.cancel();
}

openRoom("Board");
findInput("#name").value = person.name;
find("#name").addEventListener("change", rename);
find("#add-column").addEventListener("submit", submitColumn);
find("#people").addEventListener("beforetoggle", placePeople);
addEventListener("beforeunload", (event) => thread.status !== "online" && edits.count && event.preventDefault());
const drag = new PointerDrag(find("#board"), hand);
const keyboard = new KeyboardDrag(find("#board"), hand, board, (text) => {
  find("#announcement").textContent = text;
});
