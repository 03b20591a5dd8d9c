// @ts-check
/** The desk's page: a customer's conversations, and one of them with its agents, approvals and branches. */

import { files } from "/plait/files.js";
import { messages as part } from "/plait/messages.js";
import { queries } from "/plait/queries.js";
import { tasks } from "/plait/tasks.js";

import { Attachments } from "../chat/attachments.js";
import { keepPlace } from "../chat/view.js";
import { box, goToEnd, isNearEnd, openBox, showLatest } from "../conversation.js";
import { find, join, notify, openRoom, write } from "../room.js";
import { watchConversations } from "./conversations.js";
import { renderOrders } from "./orders.js";
import { renderRows } from "./view.js";

/**
 * @typedef {import("/plait/client.js").ThreadMessage} Message
 * @typedef {{id: string, function: {name: string, arguments: string}}} ToolCall
 */

const AGENTS = /** @type {Record<string, string>} */ ({ desk: "Desk", billing: "Billing" });
const CALLS = /** @type {Record<string, string>} */ ({
  find_order: "Find order",
  pay_back: "Pay back order",
  to_billing: "Hand over to billing",
  to_desk: "Hand over to the desk",
});
const OVER = new Set(["done", "failed", "cancelled"]);
/** The ids of the messages at the same place, by the id of each. @type {Map<string, readonly string[]>} */
const versions = new Map();
let unread = 0;
let isMarking = false;

/** @type {import("/plait/client.js").ThreadClient<{title: string}>} */
const client = join("desk", () => render(), refused, { messages: part, files, queries, tasks });
const messages = /** @type {import("/plait/client.js").ThreadMessages} */ (client.messages);
const attachments = new Attachments(client.files);
messages.subscribe(() => render());
client.tasks.subscribe(() => render());
client.query("orders", [], (orders) => renderOrders(orders ?? []));

/** @param {Error} error */
function refused({ message }) {
  notify(`Not done: ${message}.`, { refused: true });
}

// Showing

function render() {
  if (!client.state) return;
  const { items } = messages;
  const stay = isNearEnd() ? goToEnd : keepPlace();
  const runs = client.tasks.items;
  const isRunning = runs.some(({ status }) => !OVER.has(status));
  const isOnline = client.status === "online";
  if (!isOnline) versions.clear(); // Others may ask again in the meantime.
  const rows = makeRows(items, isRunning);
  renderRows(rows, { edit, again, show, approve }, client.files);
  write(find("#room"), client.state.title || "New conversation");
  find("#welcome").hidden = !messages.isReady || items.length > 0;
  find("#earlier").hidden = !messages.hasMore;
  find("#stop").hidden = !isRunning;
  find("#stop").toggleAttribute("disabled", !isOnline);
  find("#stopped").hidden = isRunning || runs.at(-1)?.status !== "cancelled" || isAnswered(rows.at(-1)?.item);
  box.placeholder = isOnline ? "Write to the desk" : "Write; it is sent later";
  stay();
  showLatest();
  markRead();
}

/**
 * Return what is shown of the messages.
 * @param {readonly Message[]} items
 * @param {boolean} isRunning
 */
function makeRows(items, isRunning) {
  const results = new Map(items.flatMap((item) => (item.role === "tool" ? [[String(item.tool_call_id), item]] : [])));
  const thoughts = new Map(items.flatMap((item) => (item.name === "reasoning" ? [[item.parent_id, item.content]] : [])));
  const asked = new Set(messages.approvals.map(({ call }) => call));
  const visible = items.filter(({ role, depth }) => (role === "user" || role === "assistant") && depth === 0);
  const agents = findAgents(visible, results);
  let first = "";
  return visible.map((item, at) => {
    const isUser = item.role === "user";
    // The versions of an answer are those of its first message; they are shown at its last one.
    if (isUser || agents[at - 1] === "") first = item.id;
    if (first === item.id) loadVersions(item);
    const isEnd = isUser || (agents[at + 1] ?? "") === "";
    const isLast = at === visible.length - 1;
    return {
      key: item.metadata.key === undefined ? item.id : `key ${item.metadata.key}`,
      item,
      agent: isUser ? "" : (AGENTS[agents[at]] ?? agents[at]),
      isGrouped: !isUser && agents[at] === agents[at - 1],
      isEnd,
      thoughts: thoughts.get(item.id) ?? "",
      calls: callsOf(item).map((call) => describe(call, results.get(call.id), asked.has(call.id))),
      version: first,
      versions: isEnd ? (versions.get(first) ?? []) : [],
      canEdit: isUser && item.status === "completed",
      canAskAgain: isEnd && !isUser && !(isLast && isRunning),
      note: noteOf(item),
    };
  });
}

/** Find the versions of a question or an answer, when it is complete. @param {Message} item */
async function loadVersions({ id, status }) {
  if (versions.has(id) || client.status !== "online" || !["completed", "failed"].includes(status)) return;
  versions.set(id, []);
  try {
    const ids = (await messages.siblings(id)).map((sibling) => sibling.id);
    for (const each of ids) versions.set(each, ids);
    render();
  } catch {
    versions.delete(id); // The next change of the messages asks again.
  }
}

/** @param {Message} item */
function callsOf(item) {
  return /** @type {ToolCall[]} */ (item.tool_calls ?? []);
}

/** @param {Message | undefined} item */
function isAnswered(item) {
  return item?.role === "assistant" && item.status === "completed" && callsOf(item).length === 0;
}

/**
 * Return the metadata that plait has added to a message.
 * @param {Message} item
 */
function ownOf({ metadata }) {
  return /** @type {{execution?: {agent: string}, tool_status?: string}} */ (metadata.plait ?? {});
}

/**
 * Return the agent of each message; for an unfinished message, the agent that has the conversation at that point.
 * @param {Message[]} items
 * @param {Map<string, Message>} results the results of calls by their ids
 */
function findAgents(items, results) {
  let next = "desk";
  return items.map((item) => {
    if (item.role === "user") return "";
    const agent = ownOf(item).execution?.agent ?? next;
    const isDone = (/** @type {ToolCall} */ { id }) => ownOf(results.get(id) ?? item).tool_status === "success";
    const handover = callsOf(item).find((call) => call.function.name.startsWith("to_") && isDone(call));
    next = handover?.function.name.slice(3) ?? agent;
    return agent;
  });
}

/** @param {ToolCall} call @param {Message | undefined} result @param {boolean} isAsked */
function describe({ id, function: { name, arguments: given } }, result, isAsked) {
  const number = given.match(/\d+/)?.[0];
  return {
    id,
    title: (CALLS[name] ?? name) + (number ? ` ${number}` : ""),
    note: result?.content ?? (isAsked ? "Do you approve it?" : "At it"),
    status: result ? String(ownOf(result).tool_status) : isAsked ? "asked" : "running",
    attachments: result?.attachments ?? [],
  };
}

/** @param {Message} item */
function noteOf({ status, role }) {
  if (status === "sending") return client.status === "online" ? "Sending" : "Sent when you are online again";
  if (status === "pending") return "Waiting for the desk";
  return status === "failed" ? (role === "assistant" ? "Cut off in the middle" : "Given up") : "";
}

// Doing

/** @param {string} content */
async function say(content) {
  try {
    const attached = await attachments.take();
    const sent = messages.send(content, { attachments: attached });
    goToEnd();
    await sent;
  } catch (error) {
    refused(/** @type {Error} */ (error));
    box.value ||= content;
  }
}

/** @param {string} id @param {string} text */
function edit(id, text) {
  messages.edit(id, text).then(leave, refused);
}

/** @param {string} id */
function again(id) {
  leave();
  messages.regenerate(id).catch(refused);
}

/** @param {string} id */
function show(id) {
  messages.switch(id).catch(refused);
}

/** @param {string} call @param {boolean} approved */
function approve(call, approved) {
  leave();
  messages.approve(call, approved).catch(refused);
}

function stop() {
  leave();
  client.call("run:stop").catch(refused);
}

/** Move the focus from a control that goes away to the box; on a touch screen, that would open the keyboard. */
function leave() {
  if (!matchMedia("(pointer: coarse)").matches) box.focus();
}

async function earlier() {
  // A screen reader must not read out the older messages.
  find("#log").ariaBusy = "true";
  await messages.older().catch(refused);
  find("#log").ariaBusy = "false";
}

/** Note that all is read, if the customer sees the end of the conversation. */
async function markRead() {
  const isSeen = document.visibilityState === "visible" && isNearEnd() && client.status === "online";
  if (unread === 0 || !isSeen || isMarking) return;
  isMarking = true;
  await messages.markRead().catch(() => {});
  isMarking = false;
}

openRoom("Desk");
openBox(client, say, () => attachments.has);
watchConversations((count) => {
  unread = count;
  markRead();
});
addEventListener("scroll", markRead, { passive: true });
addEventListener("visibilitychange", markRead);
find("#earlier button").addEventListener("click", earlier);
find("#stop").addEventListener("click", stop);
find("#continue").addEventListener("click", () => {
  leave();
  client.call("run:continue").catch(refused);
});
addEventListener("keydown", ({ key }) => {
  if (key === "Escape" && !find("#stop").hidden && !document.querySelector(":popover-open")) stop();
});
