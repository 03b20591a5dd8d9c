// @ts-check
/** The minutes that the server writes: their progress, and the decision whether they are posted. */

import { clone, find, notify, write } from "../room.js";

/**
 * @typedef {import("/plait/client.js").TaskRun} TaskRun
 * @typedef {{for: string, read?: number, of?: number, path?: string}} Told what a run has told of itself
 * @typedef {{files: {url(path: string): string}, call(method: string, ...args: unknown[]): Promise<unknown>}} Client
 */

const OVER = new Set(["done", "failed", "cancelled"]);
const list = find("#minutes");
/** The cards of the runs that are not over, by their ids. @type {Map<string, HTMLElement>} */
const cards = new Map();

/** Show a card for each run that is not over. @param {readonly TaskRun[]} runs @param {Client} client */
export function renderMinutes(runs, client) {
  for (const { id, status, value } of runs) {
    if (OVER.has(status)) remove(id, status);
    else if (value) render(id, /** @type {Told} */ (value), client);
  }
}

/** @param {string} id @param {Told} told @param {Client} client */
function render(id, told, client) {
  const card = cards.get(id) ?? add(id, client);
  const isReady = told.path !== undefined;
  card.classList.toggle("ready", isReady);
  write(find(".card-title", card), `Minutes for ${told.for}`);
  write(
    find(".card-note", card),
    isReady ? "Ready: read them before you post them." : `${told.read} of ${told.of} messages read`,
  );
  const bar = /** @type {HTMLProgressElement} */ (find("progress", card));
  bar.value = isReady ? 1 : (told.read ?? 0) / (told.of || 1);
  for (const [selector, isShown] of /** @type {[string, boolean][]} */ ([
    ["progress", !isReady],
    [".stop", !isReady],
    [".read", isReady],
    [".discard", isReady],
    [".post", isReady],
  ])) {
    find(selector, card).hidden = !isShown;
  }
  if (told.path) /** @type {HTMLAnchorElement} */ (find(".read", card)).href = client.files.url(told.path);
}

/** @param {string} id @param {Client} client */
function add(id, client) {
  const card = clone("#minutes-card");
  /** @param {string} method @param {unknown[]} args */
  const ask = (method, ...args) =>
    client.call(method, id, ...args).catch((error) => notify(`Not done: ${error.message}.`, { refused: true }));
  find(".stop", card).addEventListener("click", () => ask("stop"));
  find(".discard", card).addEventListener("click", () => ask("decide", false));
  find(".post", card).addEventListener("click", () => ask("decide", true));
  cards.set(id, card);
  list.append(card);
  return card;
}

/** @param {string} id @param {string} status */
function remove(id, status) {
  const card = cards.get(id);
  if (!card) return;
  cards.delete(id);
  // The focus moves to the box, as it would be lost with the card.
  if (card.contains(document.activeElement)) find("#message").focus();
  card.remove();
  if (status === "failed") notify("The minutes could not be written.", { refused: true });
  if (status === "cancelled") notify("The minutes were stopped.");
}
