// @ts-check
/** Moves cards with a mouse or a pen at once, and with a finger after a moment, so that a finger can also scroll. */

/** @typedef {{column: string, before: string[]}} Place a column and the cards that follow, from top to bottom */
/**
 * @typedef {{
 *   isFree: () => boolean, lift: (card: string) => void, over: (place: Place) => void,
 *   drop: (from?: DOMRect) => void, cancel: () => void
 * }} Hand
 */

const LONG_PRESS = 220;
const SLOP = 6;
const EDGE = 56;

/** A mouse, a pen or a finger on the cards of a board. */
export class PointerDrag {
  #root;
  #hand;
  /** @type {{card: HTMLElement, pointer: number, touch: boolean, startX: number, startY: number} | null} */
  #press = null;
  /** The copy of the card that follows the pointer. @type {HTMLElement | null} */
  #ghost = null;
  #x = 0;
  #y = 0;
  #timer = 0;

  /** @param {HTMLElement} root @param {Hand} hand */
  constructor(root, hand) {
    this.#root = root;
    this.#hand = hand;
    root.addEventListener("pointerdown", (event) => this.#down(event));
    root.addEventListener("contextmenu", (event) => this.#press?.touch && event.preventDefault());
    root.addEventListener("touchmove", (event) => this.#ghost && event.preventDefault(), { passive: false });
    addEventListener("pointermove", (event) => this.#move(event));
    addEventListener("pointerup", (event) => this.#up(event));
    addEventListener("pointercancel", () => this.#cancel());
    addEventListener("keydown", ({ key }) => key === "Escape" && this.#cancel());
  }

  /** Release the card, if one is held. */
  release() {
    clearTimeout(this.#timer);
    this.#ghost?.remove();
    this.#ghost = null;
    this.#press = null;
    document.body.classList.remove("dragging");
  }

  #cancel() {
    if (this.#ghost) this.#hand.cancel();
    this.release();
  }

  /** @param {PointerEvent} event */
  #down(event) {
    const card = /** @type {Element} */ (event.target).closest("[data-card]");
    if (!(card instanceof HTMLElement) || event.button !== 0 || !event.isPrimary) return;
    if (!this.#hand.isFree()) return;
    const { pointerId: pointer, clientX: startX, clientY: startY } = event;
    const touch = event.pointerType === "touch";
    [this.#x, this.#y] = [startX, startY];
    this.#press = { card, pointer, touch, startX, startY };
    if (touch) this.#timer = setTimeout(() => this.#lift(), LONG_PRESS);
  }

  /** @param {PointerEvent} event */
  #move({ pointerId, buttons, clientX, clientY }) {
    if (pointerId !== this.#press?.pointer) return;
    if (!buttons) return this.#cancel();
    [this.#x, this.#y] = [clientX, clientY];
    const { touch, startX, startY } = this.#press;
    const moved = Math.hypot(clientX - startX, clientY - startY) > SLOP;
    if (this.#ghost) this.#follow();
    else if (moved && touch) this.release();
    else if (moved) this.#lift();
  }

  /** @param {PointerEvent} event */
  #up({ pointerId }) {
    if (pointerId !== this.#press?.pointer) return;
    if (this.#ghost) {
      swallowClick();
      this.#hand.drop(this.#ghost.getBoundingClientRect());
    }
    this.release();
  }

  #lift() {
    if (!this.#press) return;
    const { card, pointer, touch } = this.#press;
    this.#ghost = makeGhost(card);
    document.body.append(this.#ghost);
    document.body.classList.add("dragging");
    this.#root.setPointerCapture(pointer);
    if (touch) navigator.vibrate?.(10);
    this.#hand.lift(card.dataset.card ?? "");
    this.#scroll();
  }

  /** Move the ghost to the pointer, and report where the card would go. */
  #follow() {
    if (!this.#ghost || !this.#press) return;
    const { card, startX, startY } = this.#press;
    this.#ghost.style.translate = `${this.#x - startX}px ${this.#y - startY}px`;
    this.#hand.over(placeAt(this.#root, card, this.#x, this.#ghost.getBoundingClientRect().top));
  }

  /** While a card is held, scroll the list whose edge the pointer is near. */
  #scroll() {
    if (!this.#ghost) return;
    const { left, right } = this.#root.getBoundingClientRect();
    const [x, y] = [push(this.#x, Math.max(left, 0), Math.min(right, innerWidth)), push(this.#y, 0, innerHeight)];
    if (x || y) {
      this.#root.scrollBy(x, 0);
      scrollBy(0, y);
      this.#follow();
    }
    requestAnimationFrame(() => this.#scroll());
  }
}

/** @param {HTMLElement} card */
function makeGhost(card) {
  const { left, top, width, height } = card.getBoundingClientRect();
  const ghost = /** @type {HTMLElement} */ (card.cloneNode(true));
  delete ghost.dataset.card;
  ghost.classList.add("ghost");
  ghost.inert = true;
  Object.assign(ghost.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
  return ghost;
}

/**
 * Find the place for a card whose ghost is at `x` and `top`, in the columns without that card.
 * @param {HTMLElement} root
 * @param {HTMLElement} held
 * @param {number} x
 * @param {number} top
 * @returns {Place}
 */
function placeAt(root, held, x, top) {
  const column = /** @type {HTMLElement} */ (nearestColumn(root, x));
  const list = /** @type {HTMLElement} */ (column.querySelector(".cards"));
  const listTop = list.getBoundingClientRect().top;
  const before = [];
  let above = 0;
  for (const card of /** @type {Iterable<HTMLElement>} */ (list.children)) {
    const middle = listTop + card.offsetTop - above + card.offsetHeight / 2;
    const next = /** @type {HTMLElement | null} */ (card.nextElementSibling);
    if (card === held) above = next ? next.offsetTop - card.offsetTop : 0;
    else if (middle > top) before.push(card.dataset.card ?? "");
  }
  return { column: column.dataset.column ?? "", before };
}

/** Return the column that is nearest to the left or right of `x`, if there is one. @param {HTMLElement} root @param {number} x */
export function nearestColumn(root, x) {
  const distance = (/** @type {Element} */ column) => {
    const { left, right } = column.getBoundingClientRect();
    return Math.max(left - x, x - right);
  };
  const columns = /** @type {HTMLElement[]} */ ([...root.querySelectorAll("[data-column]")]);
  return columns.sort((one, other) => distance(one) - distance(other)).at(0);
}

/** How far to scroll in one frame. @param {number} at @param {number} start @param {number} end */
function push(at, start, end) {
  if (at < start + EDGE) return (at - start - EDGE) / 6;
  return at > end - EDGE ? (at - end + EDGE) / 6 : 0;
}

/** Ignore the click that follows when a card is released. */
function swallowClick() {
  const swallow = (/** @type {Event} */ event) => event.stopPropagation();
  addEventListener("click", swallow, { capture: true, once: true });
  setTimeout(() => removeEventListener("click", swallow, { capture: true }));
}
