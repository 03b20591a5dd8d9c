// @ts-check
/** The chat's page: messages of people and of a bot; older ones are read when they are scrolled to. */

import { files } from "/plait/files.js";
import { messages as part } from "/plait/messages.js";
import { tasks } from "/plait/tasks.js";

import { box, goToEnd, isNearEnd, openBox, showLatest } from "../conversation.js";
import { People } from "../people.js";
import { find, join, loadPerson, notify, openRoom, write } from "../room.js";
import { Attachments } from "./attachments.js";
import { renderMinutes } from "./minutes.js";
import { keepPlace, renderMessages } from "./view.js";

/**
 * @typedef {import("../room.js").Person} Person
 * @typedef {import("./view.js").Message} Message
 * @typedef {{people: Record<string, Person>}} Room
 */

// Older messages are read this many pixels before the first message is reached.
const EARLY = 800;
const TYPING_ENDS = 3000;
const person = loadPerson();
/** The connection and the name that the server has stored for this page. */
let introduced = "";
let typingEnds = 0;

/** @type {import("/plait/client.js").ThreadClient<Room>} */
const client = join("chat", () => render(), refused, { messages: part, files, tasks });
const people = new People(client, person, /** @type {{typing: boolean}} */ ({ typing: false }));
const messages = /** @type {import("./view.js").Messages} */ (client.messages);
const attachments = new Attachments(client.files);
messages.subscribe(() => render());
client.tasks.subscribe(() => render());

function render() {
  if (!client.state) return;
  introduce();
  people.render();
  renderTyping();
  const { items } = messages;
  const stay = isNearEnd() ? goToEnd : keepPlace();
  renderMessages(items, person.id, authorOf, client);
  renderMinutes(client.tasks.items, client);
  find("#welcome").hidden = !messages.isReady || items.length > 0;
  find("#earlier").hidden = !messages.hasMore;
  box.placeholder = client.status === "online" ? "Write a message" : "Write; it is sent later";
  stay();
  showLatest();
}

/** @param {Error} error */
function refused({ message }) {
  notify(`The server refused: ${message}.`, { refused: true });
}

// People

/** Tell the server who writes on this connection: its messages carry the connection's id. */
function introduce() {
  const now = `${client.connection} ${person.name}`;
  if (client.status !== "online" || introduced === now) return;
  introduced = now;
  client.call("introduce", person.id, person.name).catch(() => (introduced = ""));
}

/** Return the person who has written a message; undefined for the bot. @param {Message} message @returns {Person | undefined} */
function authorOf({ role, metadata, status }) {
  if (role === "assistant") return undefined;
  const connection = String(metadata?.connection ?? "");
  if (status === "sending" || connection === client.connection) return person;
  return client.state?.people[connection] ?? { id: connection, name: "Someone" };
}

/** @param {boolean} typing */
function showTyping(typing) {
  clearTimeout(typingEnds);
  people.show({ typing });
  if (typing) typingEnds = setTimeout(() => showTyping(false), TYPING_ENDS);
}

function renderTyping() {
  const typing = people.others().filter(({ typing, id }) => typing === true && id !== person.id);
  const names = [...new Set(typing.map(({ name }) => name))];
  const who = names.length > 2 ? "Several people" : names.join(" and ");
  write(find("#typing"), who && `${who} ${names.length > 1 ? "are" : "is"} typing`);
}

// Messages

/** @param {string} content */
async function say(content) {
  showTyping(false);
  try {
    const attached = await attachments.take();
    introduce(); // The name may be new, and not rendered yet.
    const sent = messages.send(content, { attachments: attached });
    goToEnd();
    await sent;
  } catch (error) {
    notify(`Not sent: ${/** @type {Error} */ (error).message}.`, { refused: true });
    box.value ||= content;
  }
}

async function loadEarlier() {
  const button = find("#earlier button");
  if (button.ariaBusy === "true" || client.status !== "online") return;
  // A screen reader must not read out the older messages.
  button.ariaBusy = find("#log").ariaBusy = "true";
  try {
    await messages.older();
  } catch (error) {
    notify(`No earlier messages: ${/** @type {Error} */ (error).message}.`, { refused: true });
  } finally {
    button.ariaBusy = find("#log").ariaBusy = "false";
  }
}

/** Warn before the page is closed, as messages sent offline are lost with it. @param {BeforeUnloadEvent} event */
function warn(event) {
  if (messages.items.some(({ status }) => status === "sending")) event.preventDefault();
}

openRoom("Chat");
openBox(client, say, () => attachments.has);
box.addEventListener("input", () => showTyping(box.value !== ""));
find("#earlier button").addEventListener("click", loadEarlier);
addEventListener("scroll", () => void (scrollY < EARLY && messages.hasMore && loadEarlier()), { passive: true });
addEventListener("beforeunload", warn);
