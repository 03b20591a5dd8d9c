// @ts-check
/** The board on the page: one element a column and a card, kept and moved rather than made again. */

import { animate, avatar, clone, find, findInput } from "../room.js";

/** @typedef {import("./edits.js").Board} Board */
/** @typedef {import("./edits.js").Column} Column */
/** @typedef {import("../room.js").Person & {card: string | null}} Editor */

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
   * Show a board; cards that are somewhere else than before glide there.
   * @param {Board} board
   * @param {string | undefined} held the card in this person's hand
   * @param {Editor[]} others who else is here, and which cards they have in hand
   * @param {Map<string, DOMRect>} from where cards come from, when it is not where they are
   */
  render(board, held, others, from = new Map()) {
    const places = new Map([...this.#places(), ...from]);
    const focused = document.activeElement;
    this.#renderCards(board, held, others);
    this.#renderColumns(board);
    if (focused instanceof HTMLElement && focused.isConnected) focused.focus({ preventScroll: true });
    this.#glide(places, held);
  }

  // Columns

  /** @param {Board} board */
  #renderColumns({ columns }) {
    keep(this.#columns, columns.map(({ id }) => id), (id) => this.#makeColumn(id));
    for (const column of columns) {
      const element = /** @type {HTMLElement} */ (this.#columns.get(column.id));
      fillColumn(element, column);
      arrange(find(".cards", element), pick(this.#cards, column.cards));
    }
    arrange(this.#root, pick(this.#columns, columns.map(({ id }) => id)));
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

  /** @param {Board} board @param {string | undefined} held @param {Editor[]} others */
  #renderCards({ cards }, held, others) {
    keep(this.#cards, Object.keys(cards), (id) => this.#makeCard(id));
    for (const [id, element] of this.#cards) {
      const { title, note, color } = cards[id];
      write(find(".card-title", element), title);
      write(find(".card-note", element), note);
      element.dataset.color = color;
      element.classList.toggle("held", id === held);
      showEditors(element, others.filter(({ card }) => card === id));
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

/** @param {HTMLElement} element @param {Column} column */
function fillColumn(element, { title, cards, limit }) {
  write(find(".column-title", element), title);
  write(find(".column-count", element), limit === null ? String(cards.length) : `${cards.length}/${limit}`);
  element.classList.toggle("full", limit !== null && cards.length >= limit);
  find(".column-edit", element).ariaLabel = `Edit column ${title}`;
  find(".cards", element).ariaLabel = title;
  find(".add-card input", element).ariaLabel = `Title of a card to add to ${title}`;
}

/** Show on a card who has it in hand. @param {HTMLElement} element @param {Editor[]} editors */
function showEditors(element, editors) {
  element.classList.toggle("busy", editors.length > 0);
  find(".card-people", element).replaceChildren(...editors.map(avatar));
}

/** @param {HTMLElement} element @param {string} text */
function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
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
