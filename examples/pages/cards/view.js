// @ts-check
/** Draws cards, seats and the table. Each card in a hand has one element, so that it keeps the focus. */

import { animate, avatar, clone, find, write } from "../room.js";
import {
  cardName, cardsOf, fits, following, othersOf, rankOf, SEATS, sorted, suitName, suitOf, winsOf,
} from "./game.js";

/** @typedef {import("./game.js").Game} Game */
/** @typedef {import("./game.js").Player} Player */

const MOST_ON_PILE = 4;

/** Fill an element with the face of a card. @template {HTMLElement} Element @param {Element} element @param {string} card */
function drawFace(element, card) {
  const [corner, pip] = [document.createElement("span"), document.createElement("span")];
  corner.ariaHidden = pip.ariaHidden = "true";
  corner.className = "corner";
  corner.append(rankOf(card), document.createElement("br"), glyph(suitOf(card)));
  pip.className = "pip";
  pip.textContent = glyph(suitOf(card));
  element.classList.add("card");
  element.classList.toggle("red", "♦♥".includes(suitOf(card)));
  element.dataset.card = card;
  element.replaceChildren(corner, pip);
  return element;
}

/** Return a suit as text, as phones may show a picture instead. @param {string | null} suit */
export function glyph(suit) {
  return suit ? `${suit}\ufe0e` : "";
}

// The table

/** @param {Game} game @param {boolean} mayDraw whether the person plays; the server decides whether it is their turn */
export function renderTable(game, mayDraw) {
  const deck = /** @type {HTMLButtonElement} */ (find("#deck"));
  deck.disabled = !mayDraw;
  deck.classList.toggle("empty", game.deck_size === 0);
  const canPass = game.deck_size === 0 && game.pile.length === 1;
  const drawing = canPass ? "Pass; no card is left to draw" : `Draw a card; ${game.deck_size} left in the deck`;
  deck.ariaLabel = mayDraw ? drawing : `The deck: ${game.deck_size} cards`;
  write(find("span", deck), canPass ? "Pass" : "Draw");
  write(find("#deck-size"), game.pile.length ? `${game.deck_size} left` : "");
  renderPile(game);
  const isNamed = game.status === "playing" && game.suit !== suitOf(game.pile.at(-1) ?? "");
  write(find("#named"), isNamed ? glyph(game.suit) : "");
  find("#named").classList.toggle("red", "♦♥".includes(game.suit ?? "-"));
  write(find("#follow"), following(game));
}

/** @param {Game} game */
function renderPile({ pile }) {
  const element = find("#pile");
  const top = pile.at(-1);
  element.ariaLabel = top ? `On the pile: ${cardName(top)}` : "The pile is empty";
  const shown = pile.slice(-MOST_ON_PILE);
  const old = [...element.children].map((child) => /** @type {HTMLElement} */ (child).dataset.card);
  if (shown.join() === old.join()) return;
  element.replaceChildren(...shown.map((card, index) => {
    const face = drawFace(document.createElement("span"), card);
    // Cards lie as they were thrown: the angle of each is the same on every page.
    face.style.rotate = `${((card.charCodeAt(0) * 7 + card.charCodeAt(card.length - 1) * 13 + pile.length - shown.length + index) % 15) - 7}deg`;
    return face;
  }));
  const last = element.lastElementChild;
  if (last && old.length) animate(last, { translate: ["0 -2.5rem", "0"], opacity: [0.2, 1] }, 220);
}

// Seats

/**
 * @param {Game} game
 * @param {string} you
 * @param {Set<string>} away the players who have no page open
 * @param {(player: string) => void} dismiss
 */
export function renderSeats(game, you, away, dismiss) {
  const isSeated = game.players.some(({ id }) => id === you);
  const players = othersOf(game, you);
  const isFree = game.status !== "playing" && game.players.length < SEATS;
  const list = find("#players");
  const shown = JSON.stringify([players, isFree, game.turn, game.winner, game.hands, you, [...away]]);
  if (list.dataset.shown === shown) return;
  list.dataset.shown = shown;
  const seats = players.map((player) => {
    const seat = seatOf(game, player, away.has(player.id));
    const remove = find(".dismiss-player", seat);
    remove.hidden = !away.has(player.id) || !isSeated;
    remove.ariaLabel = `Remove ${player.name}, who is away`;
    remove.addEventListener("click", () => dismiss(player.id));
    return seat;
  });
  list.replaceChildren(...seats, ...(isFree ? [freeSeat()] : []));
}

/** @param {Game} game @param {Player} player @param {boolean} isAway */
function seatOf(game, player, isAway) {
  const seat = clone("#seat");
  seat.dataset.player = player.id;
  seat.classList.toggle("next", game.turn === player.id);
  seat.classList.toggle("winner", game.status === "finished" && game.winner === player.id);
  find(".seat-face", seat).append(avatar(player));
  write(find(".seat-name", seat), player.name);
  find(".seat-name", seat).title = player.name;
  write(find(".seat-facts", seat), [cardsOf(game, player), winsOf(player), isAway ? "away" : ""].filter(Boolean).join(" · "));
  const hand = game.hands[player.id];
  const fan = find(".fan", seat);
  if (hand) fan.append(...sorted(hand).map((card) => fanned(drawFace(document.createElement("span"), card), "open")));
  else fan.append(...Array.from({ length: player.cards }, () => fanned(document.createElement("span"), "back")));
  write(find(".fan-names", seat), hand?.length ? `Shown: ${sorted(hand).map(cardName).join(", ")}` : "");
  return seat;
}

/** Show this person at the own place. @param {Player | undefined} player */
export function renderOwn(player) {
  const face = find("#own-face");
  const shown = player ? `${player.id} ${player.name}` : "";
  if (face.dataset.shown !== shown) face.replaceChildren(...(player ? [avatar(player)] : []));
  face.dataset.shown = shown;
  write(find("#own-facts"), player ? winsOf(player) : "");
}

function freeSeat() {
  const seat = document.createElement("li");
  seat.className = "seat free";
  seat.textContent = "Free seat";
  return seat;
}

/** @param {HTMLElement} card @param {string} kind */
function fanned(card, kind) {
  const slot = document.createElement("span");
  card.classList.add("card", "small", kind);
  slot.className = `slot ${kind}`;
  slot.append(card);
  return slot;
}

// The own hand

/** @param {Game} game @param {string} you @param {boolean} online @param {(card: string) => void} play */
export function renderHand(game, you, online, play) {
  const hand = find("#hand");
  const cards = sorted(game.hands[you] ?? []);
  const before = /** @type {HTMLButtonElement[]} */ ([...hand.children]);
  const focused = before.findIndex((button) => button === document.activeElement);
  const known = new Map(before.map((button) => [button.dataset.card, button]));
  const buttons = cards.map((card) => known.get(card) ?? cardButton(card, play, before.length > 0));
  const isTurn = game.turn === you;
  if (buttons.some((button, index) => button !== before[index]) || buttons.length !== before.length) {
    hand.replaceChildren(...buttons);
    // The focus stays on its card; if that was played, it goes to the next one.
    if (focused >= 0) (buttons.find((button) => button === before[focused]) ?? buttons[Math.min(focused, buttons.length - 1)])?.focus();
  }
  hand.classList.toggle("yours", isTurn);
  hand.hidden = buttons.length === 0;
  for (const button of buttons) {
    const { card = "" } = button.dataset;
    const isFit = isTurn && fits(game, card);
    button.classList.toggle("fits", isFit);
    write(find(".visually-hidden", button), cardName(card) + (isFit ? ", fits" : ""));
    button.disabled = !online;
  }
}

/** @param {string} card @param {(card: string) => void} play @param {boolean} isNew */
function cardButton(card, play, isNew) {
  const button = drawFace(document.createElement("button"), card);
  const name = document.createElement("span");
  name.className = "visually-hidden";
  button.append(name);
  button.addEventListener("click", () => play(card));
  if (isNew) animate(button, { translate: ["0 -3rem", "0"], opacity: [0, 1] }, 300);
  return button;
}

/** Move the focus along the hand. @param {KeyboardEvent} event */
export function walk(event) {
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 };
  const step = steps[/** @type {keyof typeof steps} */ (event.key)];
  const buttons = /** @type {HTMLElement[]} */ ([...find("#hand").children]);
  const at = buttons.findIndex((button) => button === document.activeElement);
  if (step === undefined || at < 0) return;
  event.preventDefault();
  buttons[(at + step + buttons.length) % buttons.length].focus();
}

/** Ask for a suit; resolves to null if the person names none. @returns {Promise<string | null>} */
export function askSuit() {
  const dialog = /** @type {HTMLDialogElement} */ (find("#suits"));
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(suitName(dialog.returnValue) ? dialog.returnValue : null), { once: true });
  });
}
