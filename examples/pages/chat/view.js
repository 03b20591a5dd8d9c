// @ts-check
/** The list of messages. Each message has one element from the moment of sending, which changes with it. */

import { avatar, clone, find, hue, write } from "../room.js";
import { makeAttachments } from "./attachments.js";

/**
 * @typedef {import("../room.js").Person} Person
 * @typedef {import("/plait/client.js").ThreadMessage} Message
 * @typedef {import("/plait/client.js").ThreadMessages} Messages
 * @typedef {(message: Message) => Person | undefined} FindAuthor
 * @typedef {{note: string, author: Person | undefined, isMine: boolean, isGrouped: boolean, isWriting: boolean}} Look
 */

const WAITING = "Waiting for the bot";
// Messages of one person form a group if this many microseconds or fewer are between them.
const CLOSE = 5 * 60e6;
const list = find("#messages");
/** The elements of the messages, and their current looks. @type {Map<string, {element: HTMLElement, look: string}>} */
const shown = new Map();

/**
 * Show messages.
 * @param {readonly Message[]} items
 * @param {string} me the id of the person who uses the page
 * @param {FindAuthor} authorOf
 * @param {{status: string, connection: string | undefined, files: {url(path: string): string}}} client
 */
export function renderMessages(items, me, authorOf, { status, connection, files }) {
  const answered = new Set(items.flatMap(({ taken }) => taken ?? []));
  const writing = items.findLast(({ status }) => status === "streaming")?.id;
  const elements = items.map((item, index) => {
    const author = authorOf(item);
    const isMine = author?.id === me;
    const note = noteOf(item, answered.has(item.id), status === "online");
    const isGrouped = isSameGroup(items[index - 1], item, authorOf);
    const look = { note, author, isMine, isGrouped, isWriting: item.id === writing };
    return renderMessage(keyOf(item, connection), item, look, files);
  });
  const keys = new Set(items.map((item) => keyOf(item, connection)));
  for (const [key, { element }] of shown) {
    if (keys.has(key)) continue;
    element.remove();
    shown.delete(key);
  }
  place(list, elements);
}

/** Return a function that scrolls the first message in sight back to its present place. */
export function keepPlace() {
  const top = (/** @type {Element} */ bubble) => bubble.getBoundingClientRect().top;
  const first = [...list.querySelectorAll(".bubble")].find((bubble) => bubble.getBoundingClientRect().bottom > 0);
  const before = first && top(first);
  return () => first && before !== undefined && scrollBy({ top: top(first) - before, behavior: "instant" });
}

/**
 * Return the identity of a message from the moment of sending. The sender chooses the key, but not the connection.
 * @param {Message} message
 * @param {string | undefined} connection the one of this page
 */
function keyOf({ id, role, metadata }, connection) {
  const isSent = role === "user" && metadata?.key !== undefined;
  return isSent ? `key ${metadata.connection ?? connection} ${metadata.key}` : `id ${id}`;
}

/** @param {Message | undefined} before @param {Message} item @param {FindAuthor} authorOf */
function isSameGroup(before, item, authorOf) {
  if (!before || item.metadata?.reminder || before.metadata?.reminder) return false;
  const isClose = item.status === "sending" || (item.created_at ?? 0) - (before.created_at ?? 0) < CLOSE;
  return isClose && authorOf(before)?.id === authorOf(item)?.id;
}

/** Return the text below a message. @param {Message} item @param {boolean} isAnswered @param {boolean} isOnline */
function noteOf({ status, role, created_at }, isAnswered, isOnline) {
  if (status === "sending") return isOnline ? "Sending" : "Sent when you are online again";
  if (status === "failed") return role === "assistant" ? "Cut off in the middle" : "Given up: the bot has failed";
  if (status === "streaming") return "Writing";
  if (status === "pending" && !isAnswered) return WAITING;
  return created_at ? formatTime(new Date(created_at / 1000)) : "";
}

/** @param {Date} time */
function formatTime(time) {
  const clock = time.toLocaleTimeString([], { hour: "numeric", minute: "2-digit" });
  const isToday = time.toDateString() === new Date().toDateString();
  return isToday ? clock : `${time.toLocaleDateString([], { month: "short", day: "numeric" })}, ${clock}`;
}

/**
 * Return the element that shows a message.
 * @param {string} key
 * @param {Message} item
 * @param {Look} look
 * @param {{url(path: string): string}} files
 */
function renderMessage(key, item, { note, author, isMine, isGrouped, isWriting }, files) {
  const known = shown.get(key) ?? { element: makeMessage(item, files), look: "" };
  const look = JSON.stringify([item.content, item.status, note, author, isGrouped, isWriting]);
  shown.set(key, known);
  const { element } = known;
  if (known.look === look) return element;
  known.look = look;
  element.dataset.status = item.status ?? "completed";
  element.classList.toggle("mine", isMine);
  element.classList.toggle("grouped", isGrouped);
  element.classList.toggle("writing", isWriting);
  element.classList.toggle("waiting", note === WAITING);
  // A screen reader reads the message out when it is complete.
  element.ariaBusy = String(item.status === "streaming");
  write(find(".bubble", element), item.content ?? "");
  find(".bubble", element).hidden = !item.content && item.attachments.length > 0;
  write(find(".note", element), note);
  if (author) renderAuthor(element, author, isMine);
  return element;
}

/** @param {HTMLElement} element @param {Person} author @param {boolean} isMine */
function renderAuthor(element, author, isMine) {
  const { id, name } = author;
  element.style.setProperty("--hue", String(hue(id)));
  write(find(".who span", element), isMine ? `${name} (you)` : name);
  find(".face", element).replaceChildren(avatar(author));
}

/** @param {Message} item @param {{url(path: string): string}} files */
function makeMessage({ role, metadata, attachments }, files) {
  const element = clone("#item");
  find(".attached", element).append(...makeAttachments(attachments, files));
  if (role !== "assistant") return element;
  element.classList.add("bot");
  element.classList.toggle("reminder", Boolean(metadata?.reminder));
  write(find(".who span", element), metadata?.reminder ? "Reminder" : "Bot");
  find(".face", element).append(clone("#bot-face"));
  return element;
}

/** Put elements into a list, without moving the ones that are in order. @param {HTMLElement} list @param {HTMLElement[]} elements */
export function place(list, elements) {
  let next = list.firstElementChild;
  for (const element of elements) {
    if (element === next) next = next.nextElementSibling;
    else list.insertBefore(element, next);
  }
}
