// @ts-check
/** The board's page: shows the state of a thread and the other people, and makes this person's changes. */

import { People } from "../people.js";
import { find, findInput, join, loadPerson, notify, openRoom, randomId, shake } from "../room.js";
import { Cursors } from "./cursors.js";
import { CardDialog, askColumn } from "./dialogs.js";
import { PointerDrag } from "./drag.js";
import { HistoryPanel } from "./history.js";
import { KeyboardDrag } from "./keyboard.js";
import { isArrangedAs, orderAfter, place, placed } from "./model.js";
import { Undo } from "./undo.js";
import { BoardView } from "./view.js";

/** @typedef {import("./model.js").Board} Board */

/** The card in this person's hand, and its possible place. @type {{card: string, to?: import("./drag.js").Place} | undefined} */
let held;
/** The card that this person has opened. @type {string | undefined} */
let opened;
/** The older board that is shown. @type {Board | undefined} */
let past;
/** What was rendered last. @type {unknown[]} */
let rendered = [];

/** @type {import("/plait/client.js").ThreadClient<Board>} */
const client = join("board", () => render(), refused);
const people = new People(client, loadPerson(), /** @type {import("./model.js").Doings} */ ({ card: null, doing: "", cursor: null }));
const cursors = new Cursors(find("#board"), find("#cursors"), people);
const cardDialog = new CardDialog(client, () => undo.changed());
const history = new HistoryPanel(client, look);
const view = new BoardView(find("#board"), { openCard, openColumn, addCard });
const undo = new Undo(client, () => !past && !held);

/** Return the board to show to this person. */
function board() {
  const shown = past ?? client.state ?? { columns: {}, cards: {} };
  return held?.to ? placed(shown, held.card, held.to.column, held.to.before) : shown;
}

/** @param {Map<string, DOMRect>} [from] where cards come from, if not from their old places */
function render(from) {
  const { state } = client;
  if (!state) return;
  if (held && !state.cards[held.card]) return lose();
  const others = past ? [] : people.others();
  const selections = others.flatMap(({ card, label, doing, color }) => (card ? [{ card, label, doing, color }] : []));
  const looks = JSON.stringify(selections);
  const next = [past ?? state, held?.card, held?.to, looks];
  if (from || next.some((value, index) => value !== rendered[index])) view.render(board(), held?.card, selections, from);
  rendered = next;
  cursors.render(others);
  cardDialog.update(state);
  people.render();
  history.follow();
  find("#add-column").hidden = false;
  undo.render();
}

/** Handle a change of this person that was refused. @param {Error} error @param {readonly {path: string}[]} ops */
function refused(error, ops) {
  const isGone = /** @type {{code?: string}} */ (error).code === "conflict";
  notify(`The server refused: ${isGone ? "someone else has deleted that" : error.message}.`, { refused: true });
  const card = view.card(ops[0]?.path.split("/")[2] ?? "");
  if (card) shake(card);
}

// People

/** Show the others the card that this person holds, edits, or has selected. */
function showSelection() {
  const focused = document.hasFocus() ? document.activeElement?.closest("[data-card]") : null;
  const card = held?.card ?? opened ?? /** @type {HTMLElement | null} */ (focused)?.dataset.card ?? null;
  people.show({ card, doing: held ? "moving" : opened ? "editing" : card ? "focus" : "" });
}

// Editing

/** Change the board, so that the change can be undone. @param {(draft: Board) => void} recipe */
function edit(recipe) {
  const before = client.state;
  client.edit(recipe);
  if (client.state !== before) undo.changed();
}

/** @param {string} column @param {string} title */
function addCard(column, title) {
  const id = randomId();
  edit((draft) => {
    draft.cards[id] = { title, column, order: 0, note: "", color: "plain" };
    place(draft, id, column, []);
  });
}

/** @param {string} id */
async function openCard(id) {
  if (past) return;
  opened = id;
  showSelection();
  const { action, changes } = await cardDialog.open(id, board());
  opened = undefined;
  showSelection();
  if (action === "deleted") notify("Someone deleted that card.");
  if (action === "delete") remove(id);
  if (action === "save") save(id, changes);
}

/** @param {string} id @param {Partial<import("./dialogs.js").CardForm>} changes */
function save(id, { column, ...fields }) {
  edit((draft) => {
    if (!draft.cards[id]) return;
    Object.assign(draft.cards[id], fields);
    if (column) place(draft, id, column, []);
  });
}

/** @param {string} id */
function remove(id) {
  const card = client.state?.cards[id];
  if (!card) return;
  edit((draft) => void delete draft.cards[id]);
  const run = () => edit((draft) => void (draft.cards[id] ??= card));
  notify(`Deleted “${card.title}”.`, { action: { label: "Undo", run } });
}

/** @param {string} id */
async function openColumn(id) {
  const column = board().columns[id];
  if (!column || past) return;
  const { action, title, limit } = await askColumn(column);
  edit((draft) => {
    if (action === "delete") delete draft.columns[id];
    else if (action === "save" && draft.columns[id]) Object.assign(draft.columns[id], { title, limit });
  });
}

/** @param {SubmitEvent} event */
function submitColumn(event) {
  event.preventDefault();
  const input = findInput("#add-column input");
  const title = input.value.trim();
  input.value = "";
  if (!title) return;
  edit(({ columns }) => {
    columns[randomId()] = { title, order: orderAfter(columns), limit: null };
  });
}

// Time

/** Show an older board, or the current one. @param {Board | undefined} older */
function look(older) {
  past = older;
  document.body.classList.toggle("past", older !== undefined);
  render();
}

// Moving

/** @type {import("./drag.js").Hand} */
const hand = {
  isFree: () => !past && !held,
  lift(card) {
    held = { card };
    showSelection();
    render();
  },
  over(to) {
    if (!held || isArrangedAs(board(), placed(board(), held.card, to.column, to.before))) return;
    held = { ...held, to };
    render();
  },
  drop(from) {
    const last = held;
    const isMoved = last?.to && client.state && !isArrangedAs(client.state, board());
    held = undefined;
    if (last?.to && isMoved) move(last.card, last.to);
    showSelection();
    render(last && from && new Map([[last.card, from]]));
  },
  cancel() {
    held = undefined;
    showSelection();
    render();
  },
};

/** @param {string} card @param {import("./drag.js").Place} to */
function move(card, { column, before }) {
  edit((draft) => place(draft, card, column, before));
}

/** Release the card in hand, as someone else has deleted it. */
function lose() {
  drag.release();
  keyboard.release();
  hand.cancel();
}

openRoom("Board");
find("#add-column").addEventListener("submit", submitColumn);
for (const type of ["focusin", "focusout", "focus", "blur"]) addEventListener(type, () => setTimeout(showSelection));
client.onEvent("restored", ({ version, by }) => {
  if (by !== client.connection) notify(`${people.nameOf(by)} brought back version ${version}.`);
});
const drag = new PointerDrag(find("#board"), hand);
const keyboard = new KeyboardDrag(find("#board"), hand, board, (text) => {
  find("#announcement").textContent = text;
});
