// @ts-check
/** The page of a game: a player's move is shown at once, and taken back if the server refuses it. */

import { clone, find, findInput, join, loadPerson, notify, openRoom, savePerson, shake, write } from "../room.js";
import { cheats, markOn, nextPlayer, situation, winningLine } from "./game.js";
import { followTables } from "./lobby.js";

/** @typedef {import("./game.js").Game} Game */

const CELL_STEPS = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -3, ArrowDown: 3 };

const person = loadPerson();

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

/** @type {import("/plait/client.js").ThreadClient<Game>} */
const client = join("tic-tac-toe", render, (error) => refused(error.message));

// Actions: the server decides whether they are legal

/** @param {number} cell */
function move(cell) {
  client.update("/moves/-", cell);
}

/** @param {SubmitEvent} event */
function sitDown(event) {
  event.preventDefault();
  person.name = findInput("#name").value.trim() || person.name;
  savePerson(person);
  client.update("/players/-", { id: client.connection, name: person.name, wins: 0 });
}

/** @param {string} absent */
function take(absent) {
  client.call("take_seat", absent, person.name).catch((error) => refused(error.message));
}

/** @param {string} why */
function refused(why) {
  notify(`The server refused: ${why}.`, { refused: true });
  shake(find("#grid"));
}

// View

function render() {
  const { state: game, connection: you = "" } = client;
  if (!game) return;
  renderGrid(game, you);
  renderPlayers(game, you);
  const seated = game.players.some(({ id }) => id === you);
  const online = client.status === "online";
  write(find("#turn"), situation(game, you));
  find("#join").hidden = seated || game.players.length === 2 || !online;
  find("#rematch").hidden = !seated || game.status !== "finished" || !online;
  for (const button of document.querySelectorAll("[data-cheat]")) {
    const { cheat = "" } = /** @type {HTMLElement} */ (button).dataset;
    const needsMove = cheat === "taken" || cheat === "undo";
    button.toggleAttribute("disabled", game.status !== "playing" || !online || (needsMove && !game.moves.length));
  }
}

/** @param {Game} game @param {string} you */
function renderGrid(game, you) {
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
    cell.disabled = client.status !== "online";
  }
}

/** @param {Game} game @param {string} you */
function renderPlayers(game, you) {
  const seated = game.players.some(({ id }) => id === you);
  for (const [index, seat] of seats.entries()) {
    const player = game.players[index];
    const away = player !== undefined && you in client.presence && !(player.id in client.presence);
    const name = player ? player.name + (player.id === you ? " (you)" : "") : "Empty seat";
    seat.dataset.player = player?.id ?? "";
    seat.classList.toggle("empty", !player);
    seat.classList.toggle("next", player !== undefined && player === nextPlayer(game));
    const text = away ? `${name}, away` : name;
    write(find(".player-name", seat), text);
    find(".player-name", seat).title = text;
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
find("#join").addEventListener("submit", sitDown);
find("#rematch").addEventListener("click", () => {
  client.call("rematch").catch((error) => refused(error.message));
});
find("#cheats").addEventListener("click", ({ target }) => {
  const cheat = cheats[/** @type {HTMLElement} */ (target).dataset.cheat ?? ""];
  if (cheat) client.set((game) => cheat(game, client.connection ?? ""));
});
followTables();
// A player without presence counts as away.
client.setPresence({ name: person.name });
