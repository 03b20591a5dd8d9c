// @ts-check
/** The assistant's page: questions that wait for their turn, and answers that are shown while they are written. */

import { box, goToEnd, isNearEnd, openBox, showLatest } from "../conversation.js";
import { renderMarkdown } from "../pad/markdown.js";
import { People } from "../people.js";
import { avatar, clone, find, hue, join, loadPerson, notify, openRoom, randomId, write } from "../room.js";

/**
 * @typedef {"waiting" | "answering" | "done" | "stopped" | "cut off"} Status
 * @typedef {{id: string, by: string, name: string, question: string, answer: string, status: Status, stopped_by: string}} Turn
 * @typedef {{turns: Turn[]}} Conversation
 */

const ENDINGS = { stopped: "Stopped", "cut off": "Cut off: the server was stopped in the middle" };
const person = loadPerson();
/** The elements of the turns, and their current looks. @type {Map<string, {element: HTMLElement, look: string}>} */
const shown = new Map();
/** The questions to which this page has asked for an answer since it came online. @type {Set<string>} */
const asked = new Set();
let hasJustJoined = true;

/** @type {import("/plait/client.js").ThreadClient<Conversation>} */
const client = join("assistant", () => render(), (error) => notify(`The server refused: ${error.message}.`, { refused: true }));
const people = new People(client, person, {});

// Asking

/** Add a question to the conversation. @param {string} question */
function ask(question) {
  const turn = { id: randomId(), by: person.id, name: person.name, question, answer: "", status: "waiting", stopped_by: "" };
  client.update("/turns/-", turn).catch(() => {});
  goToEnd();
}

/**
 * Ask for the answers to this person's questions; after a join, to all that wait, as the server may have been
 * restarted. The server ignores a question that is already answered.
 */
function runAgent() {
  if (client.status !== "online") {
    hasJustJoined = true;
    asked.clear();
    return;
  }
  for (const { id, by, status } of client.confirmed?.turns ?? []) {
    if (status !== "waiting" || asked.has(id) || !(by === person.id || hasJustJoined)) continue;
    asked.add(id);
    client.run("answer", id).catch((error) => {
      // After these errors, the page asks again when it is online.
      if (!["disconnected", "closed", "unavailable"].includes(error.code)) notify(`No answer: ${error.message}.`, { refused: true });
    });
  }
  hasJustJoined = false;
}

/** @param {string} id */
function takeBack(id) {
  const isIt = (/** @type {Turn} */ turn) => turn.id === id && turn.status === "waiting";
  client.edit((draft) => void (draft.turns = draft.turns.filter((turn) => !isIt(turn)))).catch(() => {});
}

async function stop() {
  try {
    await client.interrupt(person.name);
  } catch (error) {
    notify(`The answer continues: ${/** @type {Error} */ (error).message}.`, { refused: true });
  }
}

// Showing

function render() {
  const { state } = client;
  if (!state) return;
  people.render();
  runAgent();
  const isAtEnd = isNearEnd();
  const turns = /** @type {Turn[]} */ (state.turns);
  const waiting = turns.filter(({ status }) => status === "waiting").map(({ id }) => id);
  const answering = turns.find(({ status }) => status === "answering");
  for (const turn of turns) renderTurn(turn, waiting.indexOf(turn.id) + (answering ? 1 : 0));
  for (const [id, { element }] of shown) {
    if (turns.some((turn) => turn.id === id)) continue;
    element.remove();
    shown.delete(id);
  }
  find("#turns").append(...misplaced(turns));
  find("#welcome").hidden = turns.length > 0;
  find("#stop").hidden = !answering;
  find("#stop").toggleAttribute("disabled", client.status !== "online");
  box.placeholder = client.status !== "online" ? "Ask; it is sent later" : answering ? "Ask the next thing" : "Ask something";
  write(find("#doing"), answering ? `The assistant is answering ${answering.name}.` : turns.length ? "The assistant is silent." : "");
  if (isAtEnd) goToEnd();
  showLatest();
}

/** Return the elements from the first one that is at the wrong place. @param {Turn[]} turns */
function misplaced(turns) {
  const { children } = find("#turns");
  const elements = turns.map(({ id }) => /** @type {{element: HTMLElement}} */ (shown.get(id)).element);
  const first = elements.findIndex((element, index) => children[index] !== element);
  return first < 0 ? [] : elements.slice(first);
}

/** @param {Turn} turn @param {number} before how many answers come first */
function renderTurn(turn, before) {
  const known = shown.get(turn.id) ?? { element: makeTurn(turn), look: "" };
  const look = JSON.stringify([turn.answer, turn.status, turn.stopped_by, turn.status === "waiting" && before]);
  shown.set(turn.id, known);
  if (known.look === look) return;
  known.look = look;
  const { element } = known;
  element.dataset.status = turn.status;
  element.ariaBusy = String(turn.status === "answering");
  find(".answer-text", element).replaceChildren(renderMarkdown(turn.answer));
  write(find(".place span", element), before > 1 ? `Waiting: ${before} before it` : "Waiting: next");
  const by = turn.stopped_by ? ` by ${turn.stopped_by}` : "";
  if (turn.status === "stopped" || turn.status === "cut off") write(find(".end span", element), ENDINGS[turn.status] + by);
}

/** @param {Turn} turn */
function makeTurn({ id, by, name, question }) {
  const element = clone("#turn");
  const isMine = by === person.id;
  const label = document.createElement("span");
  label.textContent = isMine ? `${name} (you)` : name;
  element.dataset.turn = id;
  element.style.setProperty("--hue", String(hue(by)));
  find(".who", element).append(avatar({ id: by, name }), label);
  find(".bubble", element).textContent = question;
  find(".take-back", element).hidden = !isMine;
  find(".take-back", element).addEventListener("click", () => takeBack(id));
  find(".again", element).addEventListener("click", () => ask(question));
  return element;
}

openRoom("Assistant");
openBox(client, ask);
find("#stop").addEventListener("click", stop);
addEventListener("keydown", ({ key }) => void (key === "Escape" && !find("#stop").hidden && stop()));
