// @ts-check
/** The chat's page: messages of people and of a bot, of which the older ones are read when they are scrolled to. */

import { People } from "../people.js";
import { avatar, clone, find, hue, join, loadPerson, notify, openRoom, write } from "../room.js";

/**
 * @typedef {import("../room.js").Person} Person
 * @typedef {import("/plait/client.js").ThreadMessage} Message
 * @typedef {{people: Record<string, Person>}} Room
 * @typedef {{element: HTMLElement, look: string}} Shown
 */

const NEAR = 120;
// So many pixels before the first message, older ones are read.
const EARLY = 800;
const TYPING_ENDS = 3000;
// Messages of one person are one group if they are so close, in microseconds.
const CLOSE = 5 * 60e6;
const WAITING = "Waiting for the bot";
const person = loadPerson();
const box = /** @type {HTMLTextAreaElement} */ (find("#message"));
const list = find("#messages");
/** What is shown of each message. @type {Map<string, Shown>} */
const shown = new Map();
/** The connection and the name that the server has stored for this page. */
let introduced = "";
let typingEnds = 0;

/** @type {import("/plait/client.js").ThreadClient<Room>} */
const client = join("chat", () => render(), (error) => notify(`The server refused: ${error.message}.`, { refused: true }));
const people = new People(client, person, /** @type {{typing: boolean}} */ ({ typing: false }));
const messages = /** @type {import("/plait/client.js").ThreadMessages} */ (client.messages);
messages.subscribe(() => render());

// Sending

/** @param {string} content */
async function say(content) {
  showTyping(false);
  try {
    const sent = messages.send(content);
    scrollTo({ top: document.body.scrollHeight });
    await sent;
  } catch (error) {
    notify(`Not sent: ${/** @type {Error} */ (error).message}.`, { refused: true });
    box.value ||= content;
  }
}

/** Tell the server who writes on this connection: its messages carry the connection's id. */
function introduce() {
  const now = `${client.connection} ${person.name}`;
  if (client.status !== "online" || introduced === now) return;
  introduced = now;
  client.call("introduce", person.id, person.name).catch(() => (introduced = ""));
}

// Typing

/** @param {boolean} typing */
function showTyping(typing) {
  clearTimeout(typingEnds);
  people.show({ typing });
  if (typing) typingEnds = setTimeout(() => showTyping(false), TYPING_ENDS);
}

function renderTyping() {
  const typing = people.others().filter(({ typing, id }) => typing === true && id !== person.id);
  const names = [...new Set(typing.map(({ name }) => name))];
  write(find("#typing"), names.length > 2 ? "Several people are typing" : names.length ? `${names.join(" and ")} ${names.length > 1 ? "are" : "is"} typing` : "");
}

// Messages

/** Return who has written a message; undefined for the bot. @param {Message} message @returns {Person | undefined} */
function authorOf({ role, metadata, status }) {
  if (role === "assistant") return undefined;
  const connection = String(metadata?.connection ?? "");
  if (status === "sending" || connection === client.connection) return person;
  return client.state?.people[connection] ?? { id: connection, name: "Someone" };
}

function render() {
  if (!client.state) return;
  introduce();
  people.render();
  renderTyping();
  const { items } = messages;
  const isAtEnd = isNearEnd();
  const restore = isAtEnd ? () => scrollTo({ top: document.body.scrollHeight }) : keepPlace();
  renderMessages(items);
  find("#welcome").hidden = !messages.isReady || items.length > 0;
  find("#earlier").hidden = !messages.hasMore;
  box.placeholder = client.status === "online" ? "Write a message" : "Write; it is sent later";
  restore();
  showLatest();
}

/** @param {readonly Message[]} items */
function renderMessages(items) {
  const answered = new Set(items.flatMap(({ taken }) => taken ?? []));
  const writing = items.findLast(({ status }) => status === "streaming")?.id;
  const keys = new Set();
  /** @type {Message | undefined} */
  let before;
  for (const item of items) {
    keys.add(keyOf(item));
    const note = noteOf(item, answered.has(item.id));
    renderMessage(item, note, isSameGroup(before, item), item.id === writing);
    before = item;
  }
  for (const [key, { element }] of shown) {
    if (keys.has(key)) continue;
    element.remove();
    shown.delete(key);
  }
  place([...keys].map((key) => /** @type {Shown} */ (shown.get(key)).element));
}

/** Return what a message is known by, from when it is sent here. @param {Message} message */
function keyOf({ id, metadata }) {
  return String(metadata?.key ?? id);
}

/** @param {Message | undefined} before @param {Message} item */
function isSameGroup(before, item) {
  if (!before || item.metadata?.reminder || before.metadata?.reminder) return false;
  const isClose = item.status === "sending" || (item.created_at ?? 0) - (before.created_at ?? 0) < CLOSE;
  return isClose && authorOf(before)?.id === authorOf(item)?.id;
}

/** @param {Message} item @param {string} note @param {boolean} isGrouped @param {boolean} isWriting */
function renderMessage(item, note, isGrouped, isWriting) {
  const key = keyOf(item);
  const author = authorOf(item);
  const known = shown.get(key) ?? { element: makeMessage(item), look: "" };
  const look = JSON.stringify([item.content, item.status, note, author, isGrouped, isWriting]);
  shown.set(key, known);
  if (known.look === look) return;
  known.look = look;
  const { element } = known;
  const isMine = author?.id === person.id;
  element.dataset.status = item.status ?? "completed";
  element.classList.toggle("mine", isMine);
  element.classList.toggle("grouped", isGrouped);
  element.classList.toggle("writing", isWriting);
  element.classList.toggle("waiting", note === WAITING);
  // A screen reader reads it out when it is complete.
  element.ariaBusy = String(item.status === "streaming");
  element.style.setProperty("--hue", String(author ? hue(author.id) : 0));
  write(find(".who span", element), author ? (isMine ? `${author.name} (you)` : author.name) : item.metadata?.reminder ? "Reminder" : "Bot");
  write(find(".bubble", element), item.content ?? "");
  write(find(".note", element), note);
  const face = find(".face", element);
  if (author && face.textContent !== avatar(author).textContent) face.replaceChildren(avatar(author));
}

/** @param {Message} item */
function makeMessage(item) {
  const element = clone("#item");
  const isBot = item.role === "assistant";
  element.classList.toggle("bot", isBot);
  element.classList.toggle("reminder", Boolean(item.metadata?.reminder));
  if (isBot) find(".face", element).append(clone("#bot-face"));
  return element;
}

/** Return what stands below a message. @param {Message} item @param {boolean} isAnswered whether the bot is at it */
function noteOf({ status, role, created_at }, isAnswered) {
  if (status === "sending") return client.status === "online" ? "Sending" : "Sent when you are online again";
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

/** Put elements into the list, and leave those that are in order where they are. @param {HTMLElement[]} elements */
function place(elements) {
  let next = list.firstElementChild;
  for (const element of elements) {
    if (element === next) next = next.nextElementSibling;
    else list.insertBefore(element, next);
  }
}

// Scrolling

function isNearEnd() {
  return innerHeight + scrollY > document.body.scrollHeight - NEAR;
}

/** Return what brings the text of the first message in sight to where it is. */
function keepPlace() {
  const top = (/** @type {Element} */ bubble) => bubble.getBoundingClientRect().top;
  const first = [...list.querySelectorAll(".bubble")].find((bubble) => bubble.getBoundingClientRect().bottom > 0);
  const before = first && top(first);
  return () => first && before !== undefined && scrollBy({ top: top(first) - before, behavior: "instant" });
}

function showLatest() {
  find("#latest").hidden = isNearEnd();
}

function scrolled() {
  showLatest();
  if (scrollY < EARLY && !find("#earlier").hidden) loadEarlier();
}

async function loadEarlier() {
  const button = find("#earlier button");
  if (button.ariaBusy === "true" || client.status !== "online") return;
  button.ariaBusy = find("#log").ariaBusy = "true";
  try {
    await messages.older();
  } catch (error) {
    notify(`No earlier messages: ${/** @type {Error} */ (error).message}.`, { refused: true });
  } finally {
    button.ariaBusy = find("#log").ariaBusy = "false";
  }
}

// The box

/** @param {Event} event */
function send(event) {
  event.preventDefault();
  const content = box.value.trim();
  if (!content || !client.state) return;
  box.value = "";
  say(content);
}

/** @param {KeyboardEvent} event */
function pressed(event) {
  // Touch screens have a button for it, and Enter in an input method only ends a word.
  const isSent = event.key === "Enter" && !event.shiftKey && !event.isComposing && !matchMedia("(pointer: coarse)").matches;
  if (isSent) send(event);
}

openRoom("Chat");
find("#composer").addEventListener("submit", send);
box.addEventListener("keydown", pressed);
box.addEventListener("input", () => showTyping(box.value !== ""));
find("#latest").addEventListener("click", () => scrollTo({ top: document.body.scrollHeight, behavior: "smooth" }));
find("#earlier button").addEventListener("click", loadEarlier);
addEventListener("scroll", scrolled, { passive: true });
addEventListener("resize", showLatest);
addEventListener("beforeunload", (event) => messages.items.some(({ status }) => status === "sending") && event.preventDefault());
for (const idea of document.querySelectorAll("#ideas button")) {
  idea.addEventListener("click", () => say(idea.textContent ?? ""));
}
box.focus({ preventScroll: true });
