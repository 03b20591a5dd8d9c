// @ts-check
/** What a board is, as the server's `BoardState` describes it, and every edit of it: what to call, what to show. */

import { Offline } from "../thread.js";

/** @typedef {{title: string, note: string, color: string}} Card */
/** @typedef {{id: string, title: string, cards: string[], limit: number | null}} Column */
/** @typedef {{columns: Column[], cards: Record<string, Card>}} Board */
/** @typedef {{method: string, args: unknown[], apply: (board: Board) => Board}} Edit */

/** @param {string} id @param {string} column @param {Card} card @param {string[]} before @returns {Edit} */
export function addCard(id, column, card, before = []) {
  const apply = (/** @type {Board} */ board) =>
    place({ ...board, cards: { ...board.cards, [id]: card } }, id, column, before);
  return { method: "add_card", args: [id, column, card, before], apply };
}

/** @param {string} id @param {string} column @param {string[]} before @returns {Edit} */
export function moveCard(id, column, before) {
  return { method: "move_card", args: [id, column, before], apply: (board) => place(board, id, column, before) };
}

/** @param {string} id @param {Partial<Card>} changes @returns {Edit} */
export function editCard(id, changes) {
  const apply = (/** @type {Board} */ board) =>
    board.cards[id] ? { ...board, cards: { ...board.cards, [id]: { ...board.cards[id], ...changes } } } : board;
  return { method: "edit_card", args: [id, changes], apply };
}

/** @param {string} id @returns {Edit} */
export function deleteCard(id) {
  const apply = (/** @type {Board} */ board) => {
    const { [id]: _, ...cards } = board.cards;
    return { cards, columns: withoutCard(board.columns, id) };
  };
  return { method: "delete_card", args: [id], apply };
}

/** @param {string} id @param {string} title @returns {Edit} */
export function addColumn(id, title) {
  const apply = (/** @type {Board} */ board) =>
    columnOf(board, id) ? board : { ...board, columns: [...board.columns, { id, title, cards: [], limit: null }] };
  return { method: "add_column", args: [id, title], apply };
}

/** @param {string} id @param {string} title @param {number | null} limit @returns {Edit} */
export function editColumn(id, title, limit) {
  const apply = (/** @type {Board} */ board) =>
    withColumns(board, (column) => (column.id === id ? { ...column, title, limit } : column));
  return { method: "edit_column", args: [id, title, limit], apply };
}

/** @param {string} id @returns {Edit} */
export function deleteColumn(id) {
  const apply = (/** @type {Board} */ board) =>
    ({ ...board, columns: board.columns.filter((column) => column.id !== id || column.cards.length) });
  return { method: "delete_column", args: [id], apply };
}

/** @param {Board} board @param {string} id */
export function columnOf(board, id) {
  return board.columns.find((column) => column.id === id || column.cards.includes(id));
}

/**
 * Put a card in front of the first of `before` that is in the column, or at its end.
 * @param {Board} board
 * @param {string} id
 * @param {string} column
 * @param {string[]} before
 * @returns {Board}
 */
function place(board, id, column, before) {
  if (!board.cards[id] || !board.columns.some((c) => c.id === column)) return board;
  const columns = withoutCard(board.columns, id);
  return withColumns({ ...board, columns }, (c) => {
    if (c.id !== column) return c;
    const next = before.find((other) => c.cards.includes(other));
    const index = next === undefined ? c.cards.length : c.cards.indexOf(next);
    return { ...c, cards: [...c.cards.slice(0, index), id, ...c.cards.slice(index)] };
  });
}

/** @param {Board} board @param {(column: Column) => Column} change @returns {Board} */
function withColumns(board, change) {
  return { ...board, columns: board.columns.map(change) };
}

/** @param {Column[]} columns @param {string} id */
function withoutCard(columns, id) {
  return columns.map((column) => ({ ...column, cards: column.cards.filter((card) => card !== id) }));
}

/** Edits that are shown already and not yet confirmed; after an outage they are sent again, in order. */
export class Edits {
  /** @type {Edit[]} */
  #waiting = [];
  #thread;
  #onChange;
  #onRefused;

  /**
   * @param {import("../thread.js").Thread<Board>} thread
   * @param {() => void} onChange
   * @param {(edit: Edit, reason: string) => void} onRefused
   */
  constructor(thread, onChange, onRefused) {
    this.#thread = thread;
    this.#onChange = onChange;
    this.#onRefused = onRefused;
  }

  get count() {
    return this.#waiting.length;
  }

  /** Return the board with the waiting edits made. @param {Board} board */
  applyTo(board) {
    return this.#waiting.reduce((result, edit) => edit.apply(result), board);
  }

  /** @param {Edit} edit */
  make(edit) {
    this.#waiting.push(edit);
    this.#onChange();
    this.#send(edit);
  }

  resend() {
    for (const edit of this.#waiting) this.#send(edit);
  }

  /** @param {Edit} edit */
  async #send(edit) {
    try {
      await this.#thread.call(edit.method, ...edit.args);
      this.#forget(edit);
    } catch (error) {
      if (error instanceof Offline) return;
      this.#forget(edit);
      this.#onRefused(edit, /** @type {Error} */ (error).message);
    }
  }

  /** @param {Edit} edit */
  #forget(edit) {
    this.#waiting = this.#waiting.filter((other) => other !== edit);
    this.#onChange();
  }
}
