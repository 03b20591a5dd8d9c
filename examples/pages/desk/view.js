// @ts-check
/** The messages of the desk. Each has one element, which changes with it: nothing moves while an answer is written. */

import { makeAttachments } from "../chat/attachments.js";
import { place } from "../chat/view.js";
import { isSending } from "../conversation.js";
import { avatar, clone, find, hue, write } from "../room.js";

/**
 * @typedef {import("/plait/client.js").ThreadMessage} Message
 * @typedef {{id: string, title: string, note: string, status: string, attachments: Message["attachments"]}} Call
 * @typedef {object} Row a message, and all that is shown with it
 * @property {string} key the identity of the message from the moment of sending
 * @property {Message} item
 * @property {string} agent the name of the agent; empty for the customer
 * @property {boolean} isGrouped whether the message before is of the same agent
 * @property {boolean} isEnd whether the message is a question, or the end of an answer
 * @property {string} thoughts what the model thought before it answered
 * @property {Call[]} calls
 * @property {string} version the first message of the answer, or the question, which has versions
 * @property {readonly string[]} versions the messages at its place, if this is where one switches between them
 * @property {boolean} canEdit
 * @property {boolean} canAskAgain
 * @property {string} note
 *
 * @typedef {object} Actions
 * @property {(id: string, text: string) => void} edit
 * @property {(id: string) => void} again
 * @property {(id: string) => void} show
 * @property {(call: string, approved: boolean) => void} approve
 *
 * @typedef {{element: HTMLElement, row: Row, look: string, calls: string}} Shown
 */

const CUSTOMER = { id: "customer", name: "Customer" };
const list = find("#messages");
/** @type {Map<string, Shown>} */
const shown = new Map();
/** Which arrow was pressed last: when its version is shown, the same arrow there gets the focus. */
let pressed = { version: "", arrow: "" };

/**
 * Show messages.
 * @param {Row[]} rows
 * @param {Actions} actions
 * @param {{url(path: string): string}} files
 */
export function renderRows(rows, actions, files) {
  place(list, rows.map((row) => renderRow(row, actions, files)));
  const keys = new Set(rows.map(({ key }) => key));
  for (const [key, { element }] of shown) {
    if (keys.has(key)) continue;
    element.remove();
    shown.delete(key);
  }
  const row = rows.find(({ version, versions }) => version === pressed.version && versions.length > 1);
  if (row) focusArrow(row);
}

/** @param {Row} row */
function focusArrow({ key }) {
  const { element } = /** @type {Shown} */ (shown.get(key));
  const arrows = [find(`.${pressed.arrow}`, element), ...element.querySelectorAll(".versions button")];
  /** @type {HTMLElement} */ (arrows.find((arrow) => arrow.matches(":enabled")))?.focus();
  pressed = { version: "", arrow: "" };
}

/** @param {Row} row @param {Actions} actions @param {{url(path: string): string}} files */
function renderRow(row, actions, files) {
  const known = shown.get(row.key) ?? make(row, actions, files);
  const look = JSON.stringify(row);
  if (known.look === look) return known.element;
  Object.assign(known, { row, look });
  const { item, agent, thoughts, versions } = row;
  const { element } = known;
  const isStreaming = item.status === "streaming";
  element.dataset.status = item.status;
  element.dataset.agent = agent;
  element.classList.toggle("grouped", row.isGrouped);
  element.classList.toggle("end", row.isEnd);
  element.classList.toggle("writing", isStreaming);
  // A screen reader reads the message out when it is complete.
  element.ariaBusy = String(isStreaming);
  write(find(".who", element), agent || CUSTOMER.name);
  find(".thoughts", element).hidden = !thoughts;
  write(find(".thoughts summary", element), isStreaming && !item.content ? "Thinking" : "Thoughts");
  write(find(".thoughts p", element), thoughts);
  write(find(".bubble", element), item.content ?? "");
  find(".bubble", element).hidden = !item.content && !(isStreaming && row.calls.length === 0);
  renderCalls(known, actions, files);
  const at = versions.indexOf(row.version);
  find(".versions", element).hidden = versions.length < 2;
  find(".versions", element).ariaLabel = agent ? "Versions of the answer" : "Versions of the question";
  write(find(".versions .at", element), `${at + 1}/${versions.length}`);
  find(".previous", element).toggleAttribute("disabled", at === 0);
  find(".next", element).toggleAttribute("disabled", at === versions.length - 1);
  find(".edit", element).hidden = !row.canEdit;
  find(".again", element).hidden = !row.canAskAgain;
  write(find(".note", element), row.note);
  return element;
}

/** @param {Row} row @param {Actions} actions @param {{url(path: string): string}} files */
function make(row, actions, files) {
  const known = { element: clone("#item"), row, look: "", calls: "" };
  const { element } = known;
  const isMine = row.item.role === "user";
  shown.set(row.key, known);
  element.classList.add(isMine ? "mine" : "bot");
  element.style.setProperty("--hue", String(hue(CUSTOMER.id)));
  find(".face", element).append(isMine ? avatar(CUSTOMER) : clone("#agent-face"));
  find(".own", element).append(...makeAttachments(row.item.attachments, files));
  for (const [arrow, step] of /** @type {[string, number][]} */ ([["previous", -1], ["next", 1]])) {
    find(`.${arrow}`, element).addEventListener("click", () => {
      const { version, versions } = known.row;
      pressed = { version: versions[versions.indexOf(version) + step], arrow };
      actions.show(pressed.version);
    });
  }
  find(".again", element).addEventListener("click", () => actions.again(known.row.item.id));
  makeEditor(known, actions);
  return known;
}

/** Make "Edit" open a question where it stands. @param {Shown} known @param {Actions} actions */
function makeEditor(known, actions) {
  const { element } = known;
  const text = /** @type {HTMLTextAreaElement} */ (find(".editor textarea", element));
  const close = () => {
    element.classList.remove("editing");
    find(".edit", element).focus();
  };
  const send = (/** @type {Event} */ event) => {
    event.preventDefault();
    const { id, content } = known.row.item;
    // When the question is edited, this one is no longer shown.
    if (text.value.trim() && text.value.trim() !== content) actions.edit(id, text.value.trim());
    else close();
  };
  find(".edit", element).addEventListener("click", () => {
    element.classList.add("editing");
    text.value = known.row.item.content ?? "";
    text.focus();
    text.scrollIntoView({ block: "nearest" });
  });
  find(".cancel", element).addEventListener("click", close);
  find(".editor", element).addEventListener("submit", send);
  text.addEventListener("keydown", (event) => {
    if (isSending(event)) send(event);
    if (event.key !== "Escape") return;
    // Elsewhere, Escape stops the agents.
    event.stopPropagation();
    close();
  });
}

// Calls of tools

/** @param {Shown} known @param {Actions} actions @param {{url(path: string): string}} files */
function renderCalls(known, actions, files) {
  const { calls } = known.row;
  const look = JSON.stringify(calls);
  if (known.calls === look) return;
  known.calls = look;
  find(".calls", known.element).hidden = calls.length === 0;
  find(".calls", known.element).replaceChildren(...calls.map((call) => makeCall(call, actions, files)));
}

/** @param {Call} call @param {Actions} actions @param {{url(path: string): string}} files */
function makeCall({ id, title, note, status, attachments }, actions, files) {
  const element = clone("#call");
  element.dataset.status = status;
  write(find(".call-title", element), title);
  write(find(".call-note", element), note);
  find(".attached", element).append(...makeAttachments(attachments, files));
  find(".call-actions", element).hidden = status !== "asked";
  find(".approve", element).addEventListener("click", () => actions.approve(id, true));
  find(".refuse", element).addEventListener("click", () => actions.approve(id, false));
  return element;
}
