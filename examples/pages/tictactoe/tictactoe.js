// @ts-check
import {
  clone, find, findInput, loadPerson, notify, openRoom, room, savePerson, shake, showStatus,
} from "../room.js";
import { Thread, randomId } from "../thread.js";
import { cheats, markOn, nextPlayer, situation, whyRefused, winningLine } from "./game.js";

/** @typedef {import("./game.js").Game} Game */

const CELL_STEPS = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -3, ArrowDown: 3 };

const person = loadPerson();
/** The public id that the server gave this connection. */
let you = "";
/** The ids of everyone who is connected. @type {string[]} */
let present = [];
/** Why the last push might be refused. */
let doubt = "";

const cells = Array.from({ length: 9 }, (_, cell) => {
  const button = document.createElement("button");
  button.dataset.cell = String(cell);
  button.addEventListener("click", () => move(cell));
  return button;
});
const seats = ["X", "O"].map((mark) => {
  const seat = clone("#player");
  find(".mark", seat).append(drawing(mark));
  find(".take", seat).addEventListener("click", () => take(seat.dataset.player ?? ""));
  return seat;
});

/** @type {Thread<Game>} */
const thread = new Thread("tic-tac-toe", room, {
  onState: render,
  onMessage: receive,
  onError: () => refused(doubt),
  onStatus: (status, reason) => {
    showStatus(status, reason);
    if (thread.state) render(thread.state);
  },
}, secretId());

/** Return the id that makes this tab the same player after a reload. */
function secretId() {
  const id = sessionStorage.getItem("plait-tic-tac-toe") ?? randomId();
  sessionStorage.setItem("plait-tic-tac-toe", id);
  return id;
}

/** @param {{type: string, id?: string, players?: string[]}} message */
function receive(message) {
  if (message.type === "you") you = message.id ?? "";
  if (message.type === "present") present = message.players ?? [];
  if (thread.state) render(thread.state);
}

// Actions

/**
 * Push a state without asking whether it is legal: that is the server's to say.
 * @param {Game} game
 * @param {string} why it might be refused
 */
function push(game, why) {
  doubt = why;
  thread.setState(game);
}

/** @param {number} cell */
function move(cell) {
  const game = thread.state;
  if (game) push({ ...game, moves: [...game.moves, cell] }, whyRefused(game, cell, you));
}

/** @param {SubmitEvent} event */
function join(event) {
  event.preventDefault();
  const game = thread.state;
  person.name = findInput("#name").value.trim() || person.name;
  savePerson(person);
  if (game) {
    const player = { id: you, name: person.name, wins: 0 };
    push({ ...game, players: [...game.players, player] }, "someone else was faster");
  }
}

/** @param {string} absent */
function take(absent) {
  thread.call("take_seat", absent, person.name).catch((error) => refused(error.message));
}

/** @param {string} why */
function refused(why) {
  notify(`The server refused: ${why}.`, { refused: true });
  shake(find("#grid"));
}

// View

/** @param {Game} game */
function render(game) {
  if (!you) return;
  renderGrid(game);
  renderPlayers(game);
  const seated = game.players.some(({ id }) => id === you);
  const online = thread.status === "online";
  find("#turn").textContent = situation(game, you);
  find("#join").hidden = seated || game.players.length === 2 || !online;
  find("#rematch").hidden = !seated || game.status !== "finished" || !online;
  for (const button of document.querySelectorAll("[data-cheat]")) {
    const { cheat = "" } = /** @type {HTMLElement} */ (button).dataset;
    const needsMove = cheat === "taken" || cheat === "undo";
    button.toggleAttribute("disabled", game.status !== "playing" || !online || (needsMove && !game.moves.length));
  }
}

/** @param {Game} game */
function renderGrid(game) {
  const line = winningLine(game);
  const yours = nextPlayer(game)?.id === you;
  find("#grid").classList.toggle("yours", yours);
  for (const [index, cell] of cells.entries()) {
    const mark = markOn(game, index);
    if (cell.dataset.mark !== mark) {
      cell.dataset.mark = mark;
      cell.replaceChildren(...(mark ? [drawing(mark)] : []));
    }
    cell.classList.toggle("won", line.includes(index));
    cell.classList.toggle("last", game.moves.at(-1) === index);
    cell.ariaLabel = `Row ${Math.floor(index / 3) + 1}, column ${(index % 3) + 1}: ${mark || "empty"}`;
    cell.disabled = thread.status !== "online";
  }
}

/** @param {Game} game */
function renderPlayers(game) {
  const seated = game.players.some(({ id }) => id === you);
  for (const [index, seat] of seats.entries()) {
    const player = game.players[index];
    const away = player !== undefined && !present.includes(player.id);
    const name = player ? player.name + (player.id === you ? " (you)" : "") : "Empty seat";
    seat.dataset.player = player?.id ?? "";
    seat.classList.toggle("empty", !player);
    seat.classList.toggle("next", player !== undefined && player === nextPlayer(game));
    find(".player-name", seat).textContent = away ? `${name}, away` : name;
    find(".wins", seat).textContent = player ? String(player.wins) : "";
    find(".wins", seat).title = "Games won";
    find(".take", seat).hidden = seated || !away;
  }
}

/** @param {string} mark */
function drawing(mark) {
  const svg = clone("#mark");
  svg.querySelector(mark === "X" ? ".o" : ".x")?.remove();
  return svg;
}

/** @param {KeyboardEvent} event */
function walk(event) {
  const step = CELL_STEPS[/** @type {keyof typeof CELL_STEPS} */ (event.key)];
  const cell = cells.findIndex((button) => button === document.activeElement);
  if (step === undefined || cell < 0) return;
  event.preventDefault();
  cells[(cell + step + 9) % 9].focus();
}

openRoom("Tic-tac-toe");
find("#players").append(...seats);
find("#grid").append(...cells);
find("#grid").addEventListener("keydown", walk);
findInput("#name").value = person.name;
find("#join").addEventListener("submit", join);
find("#rematch").addEventListener("click", () => {
  thread.call("rematch").catch((error) => refused(error.message));
});
find("#cheats").addEventListener("click", ({ target }) => {
  const cheat = cheats[/** @type {HTMLElement} */ (target).dataset.cheat ?? ""];
  if (cheat && thread.state) push(cheat.push(thread.state, you), cheat.why);
});
