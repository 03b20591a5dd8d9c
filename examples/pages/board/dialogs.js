// @ts-check
/** The forms that open on top of a board. */

import { bindText } from "/plait/client.js";

import { find } from "../room.js";
import { columnsOf } from "./model.js";

/** @typedef {import("./model.js").Board} Board */
/** @typedef {import("./model.js").Card} Card */
/** @typedef {{title: string, color: string, column: string}} CardForm without the note, which is shared while it is typed */

/** Text that is typed without a pause of this many milliseconds is undone at once. */
const BURST = 1000;

/** Show a dialog and return how it was closed. @param {HTMLDialogElement} dialog @returns {Promise<string>} */
function ask(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  // A finger that opens a card to read it does not want a keyboard on the screen.
  if (matchMedia("(pointer: coarse)").matches) find('[value="cancel"]', dialog).focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
  });
}

/** A field of a form. @param {HTMLDialogElement} dialog @param {string} name */
function field(dialog, name) {
  const { elements } = /** @type {HTMLFormElement} */ (find("form", dialog));
  return /** @type {HTMLInputElement} */ (elements.namedItem(name));
}

/** A card's form, which shows changes that others make while it is open, and saves only those of this person. */
export class CardDialog {
  #client;
  #onTyped;
  #typedAt = -Infinity;
  #dialog = /** @type {HTMLDialogElement} */ (find("#card-dialog"));
  #card = "";
  /** The values of the fields before this person changed them. @type {CardForm} */
  #base = { title: "", color: "plain", column: "" };

  /**
   * @param {import("/plait/client.js").ThreadClient<Board>} client
   * @param {() => void} onTyped is called when this person begins to type in a note, and after each pause
   */
  constructor(client, onTyped) {
    this.#client = client;
    this.#onTyped = onTyped;
    field(this.#dialog, "note").addEventListener("input", ({ timeStamp }) => {
      if (timeStamp - this.#typedAt > BURST) this.#onTyped();
      this.#typedAt = timeStamp;
    });
  }

  /**
   * Open the form of a card, and return the person's changes.
   * @param {string} card
   * @param {Board} board
   * @returns {Promise<{action: string, changes: Partial<CardForm>}>}
   */
  async open(card, board) {
    this.#card = card;
    this.#fillColumns(board);
    this.#base = this.#read(board);
    for (const name of this.#names()) field(this.#dialog, name).value = this.#base[name];
    this.#showTheirs(undefined);
    this.#typedAt = -Infinity;
    const note = bindText(field(this.#dialog, "note"), this.#client, `/cards/${card}/note`);
    const action = await ask(this.#dialog);
    note.close();
    this.#card = "";
    return { action, changes: this.#changes() };
  }

  /** Show a change of the board in the form. @param {Board} board */
  update(board) {
    if (!this.#card) return;
    if (!board.cards[this.#card]) return this.#dialog.close("deleted");
    this.#fillColumns(board);
    const latest = this.#read(board);
    const mine = this.#changes();
    for (const name of this.#names()) {
      if (!(name in mine)) field(this.#dialog, name).value = this.#base[name] = latest[name];
    }
    this.#showTheirs("title" in mine && latest.title !== this.#base.title ? latest.title : undefined);
  }

  #names() {
    return /** @type {(keyof CardForm)[]} */ (Object.keys(this.#base));
  }

  /** @param {Board} board @returns {CardForm} */
  #read(board) {
    const { title, color, column } = board.cards[this.#card];
    return { title, color, column };
  }

  /** @returns {Partial<CardForm>} */
  #changes() {
    const value = (/** @type {string} */ name) => field(this.#dialog, name).value.trim();
    const changed = this.#names().filter((name) => value(name) !== this.#base[name]);
    return Object.fromEntries(changed.map((name) => [name, value(name)]));
  }

  /** @param {Board} board */
  #fillColumns(board) {
    const select = field(this.#dialog, "column");
    const chosen = select.value;
    select.replaceChildren(...columnsOf(board).map((id) => new Option(board.columns[id].title, id)));
    select.value = chosen;
  }

  /** Show the title that someone else has set, if this person has changed it, too. @param {string | undefined} title */
  #showTheirs(title) {
    const hint = find(".theirs", this.#dialog);
    hint.hidden = title === undefined;
    hint.textContent = `Someone else has written: “${title}”`;
  }
}

/**
 * Open the form of a column, and return what the person has entered.
 * @param {import("./model.js").Column} column
 * @returns {Promise<{action: string, title: string, limit: number | null}>}
 */
export async function askColumn(column) {
  const dialog = /** @type {HTMLDialogElement} */ (find("#column-dialog"));
  const [title, limit] = [field(dialog, "title"), field(dialog, "limit")];
  title.value = column.title;
  limit.value = String(column.limit ?? "");
  const action = await ask(dialog);
  return { action, title: title.value.trim() || column.title, limit: limit.value ? limit.valueAsNumber : null };
}
