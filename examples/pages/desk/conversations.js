// @ts-check
/** The customer's own conversations: a list that is kept up to date, with what was not read yet. */

import { watchThreads } from "/plait/listing.js";

import { place } from "../chat/view.js";
import { clone, find, key, room, write } from "../room.js";

/**
 * @typedef {{title: string, status: string, last: {role: string, text: string} | null}} Card
 * @typedef {import("/plait/client.js").ListedThread<Card>} Row
 */

const STATUS = /** @type {Record<string, string>} */ ({
  running: "Answering",
  waiting: "Waiting for approval",
  stopped: "Stopped",
  failed: "Failed",
});
const KEPT = "plait-desk-conversations";
/** The elements of the conversations, by name. @type {Map<string, HTMLElement>} */
const shown = new Map();

/**
 * Show the conversations, and follow them.
 * @param {(unread: number) => void} onChange is called with the number of unread messages of this conversation
 */
export function watchConversations(onChange) {
  // The list is there at once when the customer goes from one conversation to another.
  render(JSON.parse(sessionStorage.getItem(KEPT) ?? "[]"));
  watchThreads({ kind: "desk", mine: true, token: key, limit: 200 }, ({ threads, status }) => {
    if (status !== "online") return;
    const rows = /** @type {readonly Row[]} */ (threads);
    sessionStorage.setItem(KEPT, JSON.stringify(rows));
    render(rows);
    onChange(rows.find(({ name }) => name === room)?.unread ?? 0);
  });
}

/** @param {readonly Row[]} rows */
function render(rows) {
  // A conversation that was opened, and in which nothing was said, has no title.
  const visible = rows.filter(({ name, card }) => card?.title || name === room);
  place(find("#conversations"), visible.map(renderRow));
  for (const [name, element] of shown) if (!visible.some((row) => row.name === name)) element.remove();
  const unread = visible.reduce((sum, row) => sum + (row.name === room ? 0 : (row.unread ?? 0)), 0);
  showUnread(find("#open-sidebar"), unread);
  const title = visible.find(({ name }) => name === room)?.card?.title;
  document.title = `${unread ? `(${unread}) ` : ""}${title ? `${title} · ` : ""}Desk · plait`;
}

/** @param {Row} row */
function renderRow({ name, card, unread = 0 }) {
  const element = shown.get(name) ?? makeRow(name);
  const last = card?.last ? (card.last.role === "user" ? "You: " : "") + (card.last.text || "A file") : "";
  element.dataset.status = card?.status;
  write(find(".title", element), card?.title || "New conversation");
  write(find(".last", element), STATUS[card?.status ?? ""] ?? last);
  // What comes into the open conversation is read.
  showUnread(element, name === room && document.visibilityState === "visible" ? 0 : unread);
  return element;
}

/** @param {string} name */
function makeRow(name) {
  const element = clone("#conversation");
  const link = /** @type {HTMLAnchorElement} */ (find("a", element));
  link.href = `?room=${encodeURIComponent(name)}`;
  if (name === room) link.ariaCurrent = "page";
  shown.set(name, element);
  return element;
}

/** @param {HTMLElement} element @param {number} unread */
function showUnread(element, unread) {
  element.classList.toggle("unread", unread > 0);
  find(".count", element).hidden = unread === 0;
  write(find(".count b", element), String(unread));
}
