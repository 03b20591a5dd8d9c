// @ts-check
/** Shows the pointers of the others on a board, and sends this person's pointer. */

import { clone, find, write } from "../room.js";
import { nearestColumn } from "./drag.js";

/** @typedef {import("./model.js").Cursor} Cursor */
/** @typedef {import("./model.js").Someone} Someone */

const INTERVAL = 50;
const IDLE = 5_000;

export class Cursors {
  #board;
  #layer;
  #people;
  /** @type {Someone[]} */
  #others = [];
  /** @type {Map<string, HTMLElement>} */
  #elements = new Map();
  /** The last event of this person's pointer, until it is sent. @type {PointerEvent | null} */
  #moved = null;
  #told = 0;
  #idle = 0;

  /**
   * @param {HTMLElement} board
   * @param {HTMLElement} layer lies over the board
   * @param {import("../people.js").People<import("./model.js").Doings>} people
   */
  constructor(board, layer, people) {
    this.#board = board;
    this.#layer = layer;
    this.#people = people;
    addEventListener("pointermove", (event) => this.#move(event));
    document.documentElement.addEventListener("pointerleave", () => this.#leave());
    document.addEventListener("visibilitychange", () => document.hidden && this.#leave());
    for (const type of ["scroll", "resize"]) addEventListener(type, () => this.#place(true), { capture: true });
  }

  /** Show where the others point. @param {Someone[]} others */
  render(others) {
    this.#others = others.filter(({ cursor }) => cursor);
    const here = new Set(this.#others.map(({ connection }) => connection));
    for (const [connection, element] of this.#elements) {
      if (here.has(connection)) continue;
      element.remove();
      this.#elements.delete(connection);
    }
    this.#place(false);
  }

  /** @param {boolean} isScroll whether it is the board that has moved */
  #place(isScroll) {
    const layer = this.#layer.getBoundingClientRect();
    for (const { connection, label, color, cursor } of this.#others) {
      const column = this.#board.querySelector(`[data-column="${CSS.escape(String(cursor?.column))}"]`);
      const element = this.#elements.get(connection) ?? this.#make(connection);
      element.hidden = !column;
      if (!column || !cursor) continue;
      const { left, top, width } = column.getBoundingClientRect();
      const [x, y] = [left - layer.left + cursor.x * width, top - layer.top + cursor.y];
      element.style.translate = `${Math.round(x)}px ${Math.round(y)}px`;
      element.style.setProperty("--hue", String(color));
      element.classList.toggle("still", isScroll);
      write(find(".cursor-name", element), label);
    }
  }

  /** @param {string} connection */
  #make(connection) {
    const element = clone("#cursor");
    element.dataset.cursor = connection;
    this.#elements.set(connection, element);
    this.#layer.append(element);
    return element;
  }

  // This person's pointer

  /** @param {PointerEvent} event */
  #move(event) {
    // A finger does not point: it hides what it touches.
    if (event.pointerType === "touch") return;
    const isFirst = !this.#moved;
    this.#moved = event;
    const wait = this.#told + INTERVAL - performance.now();
    if (isFirst) setTimeout(() => requestAnimationFrame(() => this.#say()), Math.max(0, wait));
  }

  #say() {
    if (!this.#moved) return;
    const { clientX, clientY } = this.#moved;
    const { top, bottom } = this.#layer.getBoundingClientRect();
    const column = clientY > top && clientY < bottom ? nearestColumn(this.#board, clientX) : undefined;
    this.#moved = null;
    this.#told = performance.now();
    clearTimeout(this.#idle);
    if (!column) return this.#tell(null);
    const { left, top: y, width } = column.getBoundingClientRect();
    this.#tell({
      column: column.dataset.column ?? "",
      x: Math.round(((clientX - left) / width) * 1000) / 1000,
      y: Math.round(clientY - y),
    });
    this.#idle = setTimeout(() => this.#leave(), IDLE);
  }

  #leave() {
    clearTimeout(this.#idle);
    this.#moved = null;
    this.#tell(null);
  }

  /** @param {Cursor | null} cursor */
  #tell(cursor) {
    this.#people.show({ cursor });
  }
}
