// @ts-check
/** Renders the board: each column and card has one element, which is moved, and never made again. */

import { animate, clone, find, findInput, write } from "../room.js";
import { cardsIn, columnsOf } from "./model.js";

/** @typedef {import("./model.js").Board} Board */
/** @typedef {import("./model.js").Column} Column */
/** @typedef {{card: string | null, color: number, label: string, doing: string}} Selection */

export class BoardView {
  #root;
  #actions;
  /** @type {Map<string, HTMLElement>} */
  #columns = new Map();
  /** @type {Map<string, HTMLElement>} */
  #cards = new Map();

  /**
   * @param {HTMLElement} root
   * @param {{
   *   openCard: (id: string) => void, openColumn: (id: string) => void,
   *   addCard: (column: string, title: string) => void,
   * }} actions
   */
  constructor(root, actions) {
    this.#root = root;
    this.#actions = actions;
  }

  /** Return the element of a card, if it is on the board. @param {string} id */
  card(id) {
    return this.#cards.get(id);
  }

  /**
   * Show a board; cards that have moved glide to their places.
   * @param {Board} board
   * @param {string | undefined} held the card in this person's hand
   * @param {Selection[]} selections the cards that others have selected
   * @param {Map<string, DOMRect>} from where cards come from, if not from their old places
   */
  render(board, held, selections, from = new Map()) {
    const places = new Map([...this.#places(), ...from]);
    const focused = document.activeElement;
    this.#renderCards(board, held, selections);
    this.#renderColumns(board);
    if (focused instanceof HTMLElement && focused.isConnected) focused.focus({ preventScroll: true });
    this.#glide(places, held);
  }

  // Columns

  /** @param {Board} board */
  #renderColumns(board) {
    const columns = columnsOf(board);
    keep(this.#columns, columns, (id) => this.#makeColumn(id));
    for (const id of columns) {
      const element = /** @type {HTMLElement} */ (this.#columns.get(id));
      const cards = cardsIn(board, id);
      fillColumn(element, board.columns[id], cards.length);
      arrange(find(".cards", element), pick(this.#cards, cards));
    }
    arrange(this.#root, pick(this.#columns, columns));
  }

  /** @param {string} id */
  #makeColumn(id) {
    const element = clone("#column");
    element.dataset.column = id;
    find(".column-edit", element).addEventListener("click", () => this.#actions.openColumn(id));
    find(".add-card", element).addEventListener("submit", (event) => {
      event.preventDefault();
      const input = findInput(".add-card input", element);
      if (input.value.trim()) this.#actions.addCard(id, input.value.trim());
      input.value = "";
    });
    return element;
  }

  // Cards

  /** @param {Board} board @param {string | undefined} held @param {Selection[]} selections */
  #renderCards({ cards }, held, selections) {
    keep(this.#cards, Object.keys(cards), (id) => this.#makeCard(id));
    for (const [id, element] of this.#cards) {
      const { title, note, color } = cards[id];
      write(find(".card-title", element), title);
      write(find(".card-note", element), note);
      element.dataset.color = color;
      element.classList.toggle("held", id === held);
      select(element, selections.filter(({ card }) => card === id));
    }
  }

  /** @param {string} id */
  #makeCard(id) {
    const element = clone("#card");
    element.dataset.card = id;
    find(".card-open", element).addEventListener("click", () => this.#actions.openCard(id));
    return element;
  }

  // Motion

  #places() {
    /** @type {Map<string, DOMRect>} */
    const places = new Map();
    for (const [id, element] of this.#cards) places.set(id, element.getBoundingClientRect());
    return places;
  }

  /** @param {Map<string, DOMRect>} places @param {string | undefined} held */
  #glide(places, held) {
    for (const [id, element] of this.#cards) {
      const place = places.get(id);
      if (!place || id === held) continue;
      const { left, top } = element.getBoundingClientRect();
      const [x, y] = [place.left - left, place.top - top];
      if (x || y) animate(element, { translate: [`${x}px ${y}px`, "0 0"] }, 200);
    }
  }
}

/** @param {HTMLElement} element @param {Column} column @param {number} count */
function fillColumn(element, { title, limit }, count) {
  write(find(".column-title", element), title);
  write(find(".column-count", element), limit === null ? String(count) : `${count}/${limit}`);
  element.classList.toggle("full", limit !== null && count >= limit);
  find(".column-edit", element).ariaLabel = `Edit column ${title}`;
  find(".add-card input", element).ariaLabel = `Title of a card to add to ${title}`;
}

/** Show the people who have selected a card on that card. @param {HTMLElement} element @param {Selection[]} selections */
function select(element, selections) {
  element.classList.toggle("selected", selections.length > 0);
  if (selections.length) element.style.setProperty("--hue", String(selections[0].color));
  find(".card-people", element).replaceChildren(...selections.map(tag));
}

/** @param {Selection} selection */
function tag({ color, label, doing }) {
  const element = document.createElement("span");
  element.className = "tag";
  element.style.setProperty("--hue", String(color));
  element.textContent = doing === "moving" || doing === "editing" ? `${label} · ${doing}` : label;
  return element;
}

/**
 * Make the map hold one element for each id, and take the others off the page.
 * @param {Map<string, HTMLElement>} elements
 * @param {string[]} ids
 * @param {(id: string) => HTMLElement} make
 */
function keep(elements, ids, make) {
  const wanted = new Set(ids);
  for (const [id, element] of elements) {
    if (!wanted.has(id)) {
      element.remove();
      elements.delete(id);
    }
  }
  for (const id of ids) if (!elements.has(id)) elements.set(id, make(id));
}

/** @param {Map<string, HTMLElement>} elements @param {string[]} ids */
function pick(elements, ids) {
  return ids.flatMap((id) => elements.get(id) ?? []);
}

/** Make these the first children, in this order. @param {HTMLElement} parent @param {HTMLElement[]} elements */
function arrange(parent, elements) {
  let next = parent.firstElementChild;
  for (const element of elements) {
    if (element === next) next = next.nextElementSibling;
    else parent.insertBefore(element, next);
  }
}
