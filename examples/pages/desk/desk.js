// @ts-check
/** The desk's page: messages and calls of two agents, approvals, and the buttons to stop and to continue. */

import { files } from "/plait/files.js";
import { messages as part } from "/plait/messages.js";
import { tasks } from "/plait/tasks.js";

import { makeAttachments } from "../chat/attachments.js";
import { box, goToEnd, isNearEnd, openBox, showLatest } from "../conversation.js";
import { avatar, clone, find, hue, join, notify, openRoom, write } from "../room.js";

/**
 * @typedef {import("/plait/client.js").ThreadMessage} Message
 * @typedef {{id: string, function: {name: string, arguments: string}}} Call
 */

const AGENTS = /** @type {Record<string, string>} */ ({ desk: "Desk", billing: "Billing" });
const CALLS = /** @type {Record<string, string>} */ ({
  find_order: "Find order",
  pay_back: "Pay back order",
  to_billing: "Hand over to billing",
  to_desk: "Hand over to the desk",
});
const OVER = new Set(["done", "failed", "cancelled"]);
const CUSTOMER = { id: "customer", name: "Customer" };
/** The elements of the messages, and their current looks. @type {Map<string, {element: HTMLElement, look: string}>} */
const shown = new Map();

/** @type {import("/plait/client.js").ThreadClient<Record<string, unknown>>} */
const client = join("desk", () => render(), refused, { messages: part, files, tasks });
const messages = /** @type {import("/plait/client.js").ThreadMessages} */ (client.messages);
messages.subscribe(() => render());
client.tasks.subscribe(() => render());

/** @param {Error} error */
function refused({ message }) {
  notify(`Not done: ${message}.`, { refused: true });
}

// Showing

function render() {
  if (!client.state) return;
  const { items } = messages;
  const isAtEnd = isNearEnd();
  const runs = client.tasks.items;
  const running = runs.some(({ status }) => !OVER.has(status));
  const results = new Map(items.flatMap((item) => (item.role === "tool" ? [[String(item.tool_call_id), item]] : [])));
  const visible = items.filter(({ role }) => role === "user" || role === "assistant");
  const agents = findAgents(visible, results);
  const asked = new Set(messages.approvals.map(({ call }) => call));
  const isGrouped = (/** @type {number} */ at) => agents[at] !== "" && agents[at] === agents[at - 1];
  find("#messages").replaceChildren(...visible.map((item, at) => renderMessage(item, results, asked, agents[at], isGrouped(at))));
  find("#welcome").hidden = !messages.isReady || items.length > 0;
  find("#stop").hidden = !running;
  find("#stopped").hidden = running || runs.at(-1)?.status !== "cancelled";
  find("#stop").toggleAttribute("disabled", client.status !== "online");
  box.placeholder = client.status === "online" ? "Write to the desk" : "Write; it is sent later";
  if (isAtEnd) goToEnd();
  showLatest();
}

/**
 * Return the metadata that plait has added to a message.
 * @param {Message} item
 */
function ownOf({ metadata }) {
  return /** @type {{execution?: {agent: string}, tool_status?: string}} */ (metadata?.plait ?? {});
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
    const calls = /** @type {Call[]} */ (item.tool_calls ?? []);
    const isDone = (/** @type {Call} */ { id }) => ownOf(results.get(id) ?? item).tool_status === "success";
    const handover = calls.find((call) => call.function.name.startsWith("to_") && isDone(call));
    next = handover?.function.name.slice(3) ?? agent;
    return agent;
  });
}

/**
 * @param {Message} item
 * @param {Map<string, Message>} results the results of calls by their ids
 * @param {Set<string>} asked the ids of the calls that wait for an approval
 * @param {string} agent
 * @param {boolean} grouped
 */
function renderMessage(item, results, asked, agent, grouped) {
  const calls = /** @type {Call[]} */ (item.tool_calls ?? []);
  const own = calls.map(({ id }) => results.get(id));
  const key = item.metadata?.key === undefined ? item.id : `key ${item.metadata.key}`;
  const shownCalls = calls.map(({ id, function: { arguments: given } }, at) => [given, asked.has(id), own[at]?.content]);
  const look = JSON.stringify([item.content, item.status, shownCalls, agent, grouped]);
  const known = shown.get(key);
  if (known?.look === look) return known.element;
  const element = clone("#item");
  shown.set(key, { element, look });
  element.dataset.status = item.status ?? "completed";
  element.classList.toggle("grouped", grouped);
  element.classList.toggle("writing", item.status === "streaming");
  element.ariaBusy = String(item.status === "streaming");
  if (item.role === "user") {
    element.classList.add("mine");
    element.style.setProperty("--hue", String(hue(CUSTOMER.id)));
    find(".face", element).append(avatar(CUSTOMER));
    write(find(".who span", element), CUSTOMER.name);
  } else {
    element.classList.add("bot");
    element.dataset.agent = agent;
    find(".face", element).append(clone("#agent-face"));
    write(find(".who span", element), AGENTS[agent] ?? agent);
  }
  write(find(".bubble", element), item.content ?? "");
  find(".bubble", element).hidden = !item.content;
  write(find(".note", element), noteOf(item));
  find(".note", element).hidden = !noteOf(item);
  find(".calls", element).hidden = calls.length === 0;
  find(".calls", element).append(...calls.map((call, index) => makeCall(call, own[index], asked.has(call.id))));
  return element;
}

/** @param {Message} item */
function noteOf({ status, role }) {
  if (status === "sending") return client.status === "online" ? "Sending" : "Sent when you are online again";
  if (status === "pending") return "Waiting for the desk";
  return status === "failed" ? (role === "assistant" ? "Cut off in the middle" : "Given up") : "";
}

/** @param {Call} call @param {Message | undefined} result @param {boolean} isAsked */
function makeCall(call, result, isAsked) {
  const element = clone("#call");
  const number = call.function.arguments.match(/\d+/)?.[0];
  write(find(".call-title", element), (CALLS[call.function.name] ?? call.function.name) + (number ? ` ${number}` : ""));
  write(find(".call-note", element), result?.content ?? (isAsked ? "Do you approve it?" : "At it"));
  element.dataset.status = result ? String(ownOf(result).tool_status) : isAsked ? "asked" : "running";
  find(".attached", element).append(...makeAttachments(result?.attachments ?? [], client.files));
  find(".call-actions", element).hidden = !isAsked;
  for (const [selector, approved] of /** @type {[string, boolean][]} */ ([[".approve", true], [".refuse", false]])) {
    find(selector, element).addEventListener("click", () => {
      box.focus();
      messages.approve(call.id, approved).catch(refused);
    });
  }
  return element;
}

// Doing

/** @param {string} content */
async function say(content) {
  const sent = messages.send(content);
  goToEnd();
  await sent.catch(refused);
}

async function stop() {
  box.focus();
  await client.call("run:stop").catch(refused);
}

openRoom("Desk");
openBox(client, say);
find("#stop").addEventListener("click", stop);
find("#continue").addEventListener("click", () => {
  box.focus();
  client.call("run:continue").catch(refused);
});
addEventListener("keydown", ({ key }) => void (key === "Escape" && !find("#stop").hidden && stop()));
