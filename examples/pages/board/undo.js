// @ts-check
/** Undo: its button and its key, which are enabled as long as there may be a change to undo. */

import { find, notify, room } from "../room.js";

/** Stores the number of this tab's changes that can be undone, even after a reload. */
const KEY = `plait-undoable:${room}`;
const NOTHING = "There is nothing of yours to undo.";

export class Undo {
  #client;
  #isFree;
  #button = find("#undo");
  #count = Number(sessionStorage.getItem(KEY));

  /**
   * @param {import("/plait/client.js").ThreadClient} client
   * @param {() => boolean} isFree tells whether this person is doing nothing else with the board
   */
  constructor(client, isFree) {
    this.#client = client;
    this.#isFree = isFree;
    this.#button.addEventListener("click", () => this.#undo());
    addEventListener("keydown", (event) => this.#key(event));
    client.onRefused(() => this.#keep(this.#count - 1));
  }

  /** Count a change of this person. */
  changed() {
    this.#keep(this.#count + 1);
  }

  render() {
    this.#button.toggleAttribute("disabled", !this.#isPossible || !this.#count);
  }

  get #isPossible() {
    return this.#client.status === "online" && this.#isFree();
  }

  async #undo() {
    this.#keep(this.#count - 1);
    try {
      if (await this.#client.call("undo")) return;
      // Others have overwritten all changes of this tab.
      this.#keep(0);
      notify(NOTHING);
    } catch (error) {
      this.#keep(this.#count + 1);
      const { code, message } = /** @type {Error & {code: string}} */ (error);
      const isTouched = code === "conflict";
      notify(isTouched ? "That has been changed since, so it stays." : `It cannot be undone: ${message}.`);
    }
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const { key, ctrlKey, metaKey, shiftKey, altKey, target } = event;
    const isUndo = key.toLowerCase() === "z" && (ctrlKey || metaKey) && !shiftKey && !altKey;
    if (!isUndo || /** @type {Element} */ (target).closest("input, textarea, select, dialog") || !this.#isPossible) return;
    event.preventDefault();
    if (this.#count) this.#undo();
    else notify(NOTHING);
  }

  /** @param {number} count */
  #keep(count) {
    this.#count = Math.max(0, count);
    sessionStorage.setItem(KEY, String(this.#count));
    this.render();
  }
}
