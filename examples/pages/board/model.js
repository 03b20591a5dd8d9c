// @ts-check
/** A board, as the server's `BoardState` describes it, and the places of its cards. */

/** @typedef {{title: string, column: string, order: number, note: string, color: string}} Card */
/** @typedef {{title: string, order: number, limit: number | null}} Column */
/** @typedef {{columns: Record<string, Column>, cards: Record<string, Card>}} Board */
/** @typedef {{column: string, x: number, y: number}} Cursor over or beside a column, whose width is 1 */
/** @typedef {"" | "focus" | "moving" | "editing"} Doing what someone does with their card */
/** @typedef {{card: string | null, doing: Doing, cursor: Cursor | null}} Doings what people on a board are doing */
/** @typedef {import("../people.js").Someone<Doings>} Someone */

/** Return the ids of the columns, from left to right. @param {Board} board */
export function columnsOf({ columns }) {
  return sorted(columns, Object.keys(columns));
}

/** Return the ids of the cards in a column, from top to bottom. @param {Board} board @param {string} column */
export function cardsIn({ cards }, column) {
  return sorted(cards, Object.keys(cards).filter((id) => cards[id].column === column));
}

/** Tell whether two boards have the same cards in the same places. @param {Board} one @param {Board} other */
export function isArrangedAs(one, other) {
  const columns = columnsOf(one);
  const [here, there] = [one, other].map((board) => columns.map((column) => cardsIn(board, column).join()));
  return columns.join() === columnsOf(other).join() && here.join(";") === there.join(";");
}

/** Return the `order` of a column or card that comes after all others. @param {Record<string, {order: number}>} others */
export function orderAfter(others) {
  return Math.max(0, ...Object.values(others).map(({ order }) => order)) + 1;
}

/**
 * Put a card before the first of `before` that is in the column, or at its end. Cards are replaced, not changed.
 * @param {Board} board
 * @param {string} id
 * @param {string} column
 * @param {string[]} before
 */
export function place(board, id, column, before) {
  const { cards } = board;
  const others = cardsIn(board, column).filter((other) => other !== id);
  const next = before.find((other) => others.includes(other));
  const index = next === undefined ? others.length : others.indexOf(next);
  const [above, below] = [cards[others[index - 1]]?.order, cards[others[index]]?.order];
  const order = orderBetween(above, below);
  if (order !== undefined) {
    cards[id] = { ...cards[id], column, order };
    return;
  }
  // There is no number left between the neighbours: number all cards of the column.
  others.splice(index, 0, id);
  for (const [position, other] of others.entries()) cards[other] = { ...cards[other], column, order: position + 1 };
}

/** Return the board with a card in another place. @param {Board} board @param {Parameters<typeof place>[1]} id
 * @param {string} column @param {string[]} before @returns {Board} */
export function placed(board, id, column, before) {
  const copy = { ...board, cards: { ...board.cards } };
  if (copy.cards[id] && copy.columns[column]) place(copy, id, column, before);
  return copy;
}

/** @param {number | undefined} above @param {number | undefined} below */
function orderBetween(above, below) {
  if (above === undefined) return below === undefined ? 1 : below - 1;
  if (below === undefined) return above + 1;
  const middle = (above + below) / 2;
  return above < middle && middle < below ? middle : undefined;
}

/** @param {Record<string, {order: number}>} all @param {string[]} ids */
function sorted(all, ids) {
  return ids.sort((one, other) => all[one].order - all[other].order || (one < other ? -1 : 1));
}
