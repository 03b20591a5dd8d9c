// @ts-check
/** Moves cards with the keyboard: Space picks up and puts down, arrows move, Escape puts back. */

import { cardsIn, columnsOf } from "./model.js";

/** @typedef {import("./model.js").Board} Board */
/** @typedef {import("./drag.js").Place} Place */

const STEPS = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };

export class KeyboardDrag {
  #hand;
  #board;
  #say;
  #card = "";

  /**
   * @param {HTMLElement} root
   * @param {import("./drag.js").Hand} hand
   * @param {() => Board} board returns the board that is shown
   * @param {(text: string) => void} say announces a text to screen readers
   */
  constructor(root, hand, board, say) {
    this.#hand = hand;
    this.#board = board;
    this.#say = say;
    root.addEventListener("keydown", (event) => this.#down(event));
    root.addEventListener("keyup", (event) => event.key === " " && cardOf(event) && event.preventDefault());
    root.addEventListener("pointerdown", () => this.#card && this.#end("put back", () => hand.cancel()));
  }

  /** Release the card, if one is held. */
  release() {
    this.#card = "";
  }

  /** @param {KeyboardEvent} event */
  #down(event) {
    const card = cardOf(event);
    if (!card || !(this.#card ? this.#move(event.key) : this.#lift(card, event.key))) return;
    event.preventDefault();
  }

  /** @param {string} card @param {string} key @returns {boolean} whether the key did something */
  #lift(card, key) {
    if (key !== " " || !this.#hand.isFree()) return false;
    this.#card = card;
    this.#hand.lift(card);
    this.#say(`${this.#title()}, picked up. The arrow keys move it, Space puts it down, Escape puts it back.`);
    return true;
  }

  /** @param {string} key @returns {boolean} whether the key did something */
  #move(key) {
    if (key === " " || key === "Enter") this.#end("put down", () => this.#hand.drop());
    else if (key === "Escape" || key === "Tab") this.#end("put back", () => this.#hand.cancel());
    else if (key in STEPS) this.#step(STEPS[/** @type {keyof typeof STEPS} */ (key)]);
    else return false;
    return key !== "Tab";
  }

  /** @param {number[]} step */
  #step([across, down]) {
    const place = placeBeside(this.#board(), this.#card, across, down);
    if (place) this.#hand.over(place);
    document.activeElement?.scrollIntoView({ block: "nearest", inline: "nearest" });
    this.#say(this.#where());
  }

  /** @param {string} how @param {() => void} end */
  #end(how, end) {
    this.#say(`${this.#title()}, ${how}. ${this.#where()}`);
    this.release();
    end();
  }

  #title() {
    return this.#board().cards[this.#card].title;
  }

  #where() {
    const { columns, cards } = this.#board();
    const { column } = cards[this.#card];
    const others = cardsIn(this.#board(), column);
    return `${columns[column].title}, ${others.indexOf(this.#card) + 1} of ${others.length}`;
  }
}

/** @param {KeyboardEvent} event */
function cardOf({ target }) {
  const card = /** @type {Element} */ (target).closest(".card-open")?.closest("[data-card]");
  return card instanceof HTMLElement ? card.dataset.card : undefined;
}

/**
 * @param {Board} board
 * @param {string} card
 * @param {number} across columns to the right
 * @param {number} down cards to the bottom
 * @returns {Place | undefined}
 */
function placeBeside(board, card, across, down) {
  const { column } = board.cards[card];
  const columns = columnsOf(board);
  const target = columns[columns.indexOf(column) + across];
  if (target === undefined) return undefined;
  const others = cardsIn(board, target).filter((other) => other !== card);
  return { column: target, before: others.slice(Math.max(0, cardsIn(board, column).indexOf(card) + down)) };
}
