// @ts-check
/** The lobby: the other tables with people, first the tables at which a player waits for another one. */

import { watchThreads } from "/plait/listing.js";

import { clone, find, room, write } from "../room.js";
import { short } from "./game.js";

/** @typedef {{players: string[], status: "waiting" | "playing" | "finished"}} Card */
/** @typedef {import("/plait/listing.js").ListedThread<Card>} Table */
/** @typedef {import("/plait/listing.js").ThreadList<Card>} Tables */

const MOST_TABLES = 6;
const STATUS_TEXT = { waiting: "Free seat", playing: "Playing", finished: "Finished" };

/** Show the tables, and follow their changes. */
export function followTables() {
  watchThreads({ kind: "tic-tac-toe", limit: 200 }, render);
}

/** @param {Tables} tables */
function render({ threads, status }) {
  const others = threads.filter(({ name, people }) => people > 0 && name !== room);
  const shown = others.sort((a, b) => rank(b) - rank(a)).slice(0, MOST_TABLES);
  const items = [...find("#tables").children];
  while (items.length < shown.length) items.push(clone("#table"));
  find("#tables").replaceChildren(...items.slice(0, shown.length));
  shown.forEach((table, index) => renderTable(items[index], table));
  find(".lobby").dataset.status = status;
  write(find("#lobby-note"), noteOf(others.length - shown.length, shown.length, status));
}

/** Return a number for how much a table needs another player. @param {Table} table */
function rank({ card }) {
  return card?.status === "waiting" ? 1 + card.players.length : 0;
}

/** @param {Element} item @param {Table} table */
function renderTable(item, { name, people, card }) {
  const link = /** @type {HTMLAnchorElement} */ (find(".table-link", item));
  const players = card?.players.map(short).join(" and ") || "Empty table";
  const status = card?.status ?? "waiting";
  link.href = `?room=${encodeURIComponent(name)}`;
  link.title = `Table ${name}`;
  write(find(".table-players", item), players);
  write(find(".table-people", item), people === 1 ? "1 here" : `${people} here`);
  write(find(".table-status", item), STATUS_TEXT[status]);
  find(".table-status", item).dataset.status = status;
}

/** @param {number} more @param {number} shown @param {Tables["status"]} status */
function noteOf(more, shown, status) {
  if (status === "connecting") return "Looking for other tables";
  if (status !== "online") return "The list is not up to date while this page is offline.";
  if (more > 0) return more === 1 ? "and 1 more table" : `and ${more} more tables`;
  return shown ? "" : "No one is at another table. Open a new room, or send a friend the link of this one.";
}
