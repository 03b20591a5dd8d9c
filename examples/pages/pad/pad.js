// @ts-check
/** The pad's page: several documents, in which people type at once. */

import { bindText } from "/plait/client.js";

import { People } from "../people.js";
import { avatar, find, findInput, hue, join, loadPerson, notify, openRoom, randomId, write } from "../room.js";
import { Authors } from "./authors.js";
import { Carets } from "./carets.js";
import { renderMarkdown } from "./markdown.js";

/** @typedef {import("./authors.js").Person} Person */
/** @typedef {{documents: Record<string, {title: string, body: string}>, people: Record<string, Person>}} Pad */

const WIDE = matchMedia("(min-width: 60rem)");
const person = loadPerson();
const area = /** @type {HTMLTextAreaElement} */ (find("#text"));
/** The document that is open. @type {string | undefined} */
let opened;
/** Closes the document that is open. */
let leave = () => {};
/** The last rendered content. */
const rendered = { list: "", preview: "" };
/** The connection and the name that the server has stored for this page. */
let introduced = "";

/** @type {import("/plait/client.js").ThreadClient<Pad>} */
const client = join("pad", () => render(), (error) => notify(`The server refused: ${error.message}.`, { refused: true }));
const people = new People(client, person, /** @type {import("./carets.js").Doings} */ ({ document: null, caret: null }));
const carets = new Carets(client, area, find("#carets"), people);
const authors = new Authors(client, nameOf);

function render() {
  const { state } = client;
  if (!state) return;
  introduce();
  if (!opened || !state.documents[opened]) open(chosen(state));
  people.render();
  renderList(state);
  find("#sheet").hidden = !opened;
  if (!opened) return;
  const { title, body } = state.documents[opened];
  write(find("#title"), title);
  find("#undo").toggleAttribute("disabled", !client.canUndo(pointer(opened)));
  find("#redo").toggleAttribute("disabled", !client.canRedo(pointer(opened)));
  find("#write-story").toggleAttribute("disabled", client.status !== "online" || isServerWriting());
  carets.tell();
  carets.render(people.others().filter(({ document }) => document === opened));
  if (find("#preview").checkVisibility() && rendered.preview !== body) {
    rendered.preview = body;
    find("#preview").replaceChildren(renderMarkdown(body));
  }
  if (find("#authors").checkVisibility()) authors.show(opened, body);
}

// People

/** Send the person's name to the server, which shows it after this page is closed. */
function introduce() {
  const now = `${client.connection} ${person.name}`;
  if (client.status !== "online" || introduced === now) return;
  introduced = now;
  client.call("introduce", person.name, hue(person.id)).catch(() => (introduced = ""));
}

/** @param {string} source @returns {Person | undefined} */
function nameOf(source) {
  const found = client.state?.people[source];
  return found && source === client.connection ? { ...found, name: `${person.name} (you)` } : found;
}

function isServerWriting() {
  return people.others().some(({ connection, document }) => connection === "server" && document === opened);
}

// Documents

/** @param {string} id */
function pointer(id) {
  return `/documents/${id}/body`;
}

/** Return the ids of the documents, by their titles. @param {Pad} pad */
function sorted({ documents }) {
  const key = (/** @type {string} */ id) => documents[id].title.toLowerCase();
  return Object.keys(documents).sort((one, other) => key(one).localeCompare(key(other)) || (one < other ? -1 : 1));
}

/** Return the document that the address names, or the first. @param {Pad} pad */
function chosen(pad) {
  const named = new URL(location.href).searchParams.get("document") ?? "welcome";
  return pad.documents[named] ? named : sorted(pad)[0];
}

/** @param {string | undefined} id */
function open(id) {
  leave();
  opened = id;
  leave = () => {};
  people.show({ document: id ?? null, caret: null });
  if (!id) return;
  const address = new URL(location.href);
  address.searchParams.set("document", id);
  history.replaceState(null, "", address);
  const binding = bindText(area, client, pointer(id));
  area.scrollTop = 0;
  area.setSelectionRange(0, 0);
  const unsubscribe = client.onText(pointer(id), ({ edits }) => carets.move(edits));
  leave = () => (binding.close(), unsubscribe());
}

/** @param {Pad} state */
function renderList(state) {
  const readers = people.others();
  const items = sorted(state).map((id) => {
    const here = readers.filter(({ document }) => document === id).map(({ id, name }) => ({ id, name }));
    return { id, title: state.documents[id].title, isOpen: id === opened, here };
  });
  const look = JSON.stringify(items);
  if (look === rendered.list) return;
  rendered.list = look;
  const hadFocus = document.activeElement?.closest("#documents") && document.activeElement.getAttribute("data-document");
  find("#documents").replaceChildren(...items.map(makeItem));
  if (hadFocus) find("#documents").querySelector(`[data-document="${CSS.escape(hadFocus)}"]`)?.focus();
}

/** @param {{id: string, title: string, isOpen: boolean, here: import("../room.js").Person[]}} item */
function makeItem({ id, title, isOpen, here }) {
  const item = document.createElement("li");
  const button = document.createElement("button");
  const label = document.createElement("span");
  label.className = "document-title";
  label.textContent = title;
  button.dataset.document = id;
  if (isOpen) button.setAttribute("aria-current", "page");
  button.append(label, ...here.slice(0, 3).map(avatar));
  button.addEventListener("click", () => (open(id), render()));
  item.append(button);
  return item;
}

/** @param {SubmitEvent} event */
function addDocument(event) {
  event.preventDefault();
  const input = findInput("#add-document input");
  const title = input.value.trim();
  input.value = "";
  const { state } = client;
  if (!title || !state) return;
  const there = Object.keys(state.documents).find((id) => state.documents[id].title === title);
  const id = there ?? randomId();
  if (!there) client.edit((draft) => void (draft.documents[id] = { title, body: "" })).catch(() => {});
  open(id);
  render();
  area.focus();
}

function deleteDocument() {
  const document = opened && client.state?.documents[opened];
  if (!opened || !document) return;
  const id = opened;
  client.edit((draft) => void delete draft.documents[id]).catch(() => {});
  const run = () => {
    client.edit((draft) => void (draft.documents[id] ??= document)).catch(() => {});
    open(id);
    render();
  };
  notify(`Deleted “${document.title}”.`, { action: { label: "Undo", run } });
}

// Tools

/** @param {string} view */
function look(view) {
  find("#sheet").dataset.view = view;
  for (const button of document.querySelectorAll(".views button")) {
    button.ariaPressed = String(button instanceof HTMLElement && button.dataset.view === view);
  }
  render();
}

async function writeStory() {
  try {
    await client.call("write_story", opened);
  } catch (error) {
    notify(`The server refused: ${/** @type {Error} */ (error).message}.`, { refused: true });
  }
}

openRoom("Pad");
look(WIDE.matches ? "preview" : "write");
// A wide window has room for the text and one other view.
WIDE.addEventListener("change", () => look(WIDE.matches ? "preview" : "write"));
find("#add-document").addEventListener("submit", addDocument);
find("#delete").addEventListener("click", deleteDocument);
find("#write-story").addEventListener("click", writeStory);
find("#undo").addEventListener("click", () => opened && client.undo(pointer(opened)));
find("#redo").addEventListener("click", () => opened && client.redo(pointer(opened)));
for (const button of document.querySelectorAll(".views button")) {
  button.addEventListener("click", () => look(/** @type {HTMLElement} */ (button).dataset.view ?? "write"));
}
