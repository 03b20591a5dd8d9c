// @ts-check
/** The page of a card game: it gets the part of the state that its person may see, and asks the server for each move. */

import { People } from "../people.js";
import { find, findInput, join, key, loadPerson, notify, openRoom, shake, write } from "../room.js";
import { news, rankOf, SEATS, situation } from "./game.js";
import { askSuit, renderHand, renderOwn, renderSeats, renderTable, walk } from "./view.js";

/** @typedef {import("./game.js").Game} Game */
/** @typedef {{id: string, observing: boolean}} Doing */

const person = loadPerson();
// A tab says whether its person observes.
const observing = sessionStorage.getItem("plait-observing") === "yes";
/** The id by which the game names this person, and who is here; known when the server has answered. */
let you = "";
/** @type {People<Doing> | undefined} */
let people;

/** @type {import("/plait/client.js").ThreadClient<Game>} */
const client = join("card-game", render, (error) => refused(error.message), {
  token: observing ? `${key}.observers` : key,
});

// Actions: the server decides whether they are legal

/** @param {string} method @param {unknown[]} args @param {HTMLElement} element the element to shake if the server refuses */
async function call(method, args = [], element = find(".turn")) {
  try {
    await client.call(method, ...args);
  } catch (error) {
    refused(/** @type {Error} */ (error).message, element);
  }
}

/** @param {string} card */
async function play(card) {
  const isLast = client.state?.hands[you]?.length === 1;
  const isEight = rankOf(card) === "8" && client.state?.turn === you && !isLast;
  const suit = isEight ? await askSuit() : null;
  if (isEight && !suit) return;
  const element = /** @type {HTMLElement | null} */ (document.querySelector(`#hand [data-card="${card}"]`));
  await call("play", [card, suit], element ?? undefined);
}

/** @param {string} why @param {HTMLElement} element */
function refused(why, element = find(".turn")) {
  notify(`The server refused: ${why}.`, { refused: true });
  shake(element);
}

/** Load the page again, as another reader. */
function switchReader() {
  sessionStorage.setItem("plait-observing", findInput("#observe").checked ? "yes" : "no");
  location.reload();
}

// View

function render() {
  const { state: game } = client;
  if (!game || !people) return;
  const online = client.status === "online";
  const seated = game.players.some(({ id }) => id === you);
  const others = people.others();
  renderSeats(game, you, findAway(game, others), (player) => call("dismiss", [player]));
  renderTable(game, online && seated && game.status === "playing");
  renderOwn(game.players.find(({ id }) => id === you));
  renderHand(game, you, online, play);
  write(find("#turn"), situation(game, you));
  write(find("#last"), news(game, you));
  find(".turn").classList.toggle("yours", game.turn === you && game.status === "playing");
  const isFree = game.status !== "playing" && game.players.length < SEATS;
  find("#sit").hidden = seated || !isFree || !online;
  find("#deal").hidden = !seated || game.status === "playing" || game.players.length < 2 || !online;
  write(find("#deal"), game.status === "finished" ? "Deal again" : "Deal");
  find("#leave").hidden = !seated || !online;
  find("#observer").hidden = seated;
  write(find("#watchers"), watchersText(game, others, seated));
  if (/** @type {HTMLDetailsElement} */ (find("#received")).open) writeReceived();
  people.render();
}

/** Return the players who have no page open. @param {Game} game @param {{id: string}[]} others */
function findAway({ players }, others) {
  const isKnown = client.status === "online" && (client.connection ?? "") in client.presence;
  const here = new Set([you, ...others.map(({ id }) => id)]);
  return new Set(players.map(({ id }) => id).filter((id) => isKnown && !here.has(id)));
}

/** @param {Game} game @param {(Doing & {id: string, name: string})[]} others @param {boolean} seated */
function watchersText(game, others, seated) {
  const players = new Set(game.players.map(({ id }) => id));
  const watchers = others.filter(({ id }) => !players.has(id));
  const names = new Map(watchers.map(({ id, name, observing }) => [id, observing ? `${name} (sees every hand)` : name]));
  const mine = seated ? [] : [observing ? "you (you see every hand)" : "you"];
  const all = [...mine, ...names.values()];
  return all.length ? `Watching: ${all.join(", ")}` : "No one else is watching";
}

/** Show the whole state that this page has received. */
function writeReceived() {
  const lines = Object.entries(client.state ?? {}).map(([name, value]) => `${name}: ${JSON.stringify(value)}`);
  write(find("#received pre"), lines.join("\n"));
}

openRoom("Cards");
find("#deck").addEventListener("click", () => call("draw", [], find("#deck")));
find("#hand").addEventListener("keydown", walk);
find("#sit").addEventListener("click", () => call("sit", [person.name]));
find("#deal").addEventListener("click", () => call("deal"));
find("#leave").addEventListener("click", () => call("leave"));
find("#received").addEventListener("toggle", writeReceived);
findInput("#observe").checked = observing;
findInput("#observe").addEventListener("change", switchReader);
findInput("#name").addEventListener("change", () => {
  if (client.state?.players.some(({ id }) => id === you)) call("sit", [person.name]);
});

/** Learn by which id the game names this person; asked again if the connection is lost before the answer. */
async function introduce() {
  while (client.status !== "closed") {
    try {
      you = /** @type {string} */ (await client.call("who_am_i"));
      break;
    } catch (error) {
      console.info(error);
    }
  }
  if (!you) return;
  // The others see this person by the id that the game has.
  people = new People(client, person, { id: you, observing });
  render();
}

introduce();
