// @ts-check
/** Shows the carets of the others in a text, on a layer over its textarea, and sends this person's caret. */

/** @typedef {{start: number, end: number, isBackward: boolean}} Caret in UTF-16 units */
/** @typedef {{document: string | null, caret: Caret | null}} Doings what the people of a pad show */
/** @typedef {import("../people.js").Someone<Doings>} Someone */
/** @typedef {import("/plait/client.js").TextEdit} TextEdit */

export class Carets {
  #client;
  #area;
  #layer;
  #people;
  /** The carets of the others, by connection: the last one that each has sent, and its place in the current text. */
  #carets = /** @type {Map<string, {shown: string, caret: Caret, someone: Someone}>} */ (new Map());
  #rendered = "";

  /**
   * @param {import("/plait/client.js").ThreadClient} client
   * @param {HTMLTextAreaElement} area
   * @param {HTMLElement} layer
   * @param {import("../people.js").People<Doings>} people
   */
  constructor(client, area, layer, people) {
    this.#client = client;
    this.#area = area;
    this.#layer = layer;
    this.#people = people;
    for (const type of ["focus", "blur"]) area.addEventListener(type, () => this.tell());
    document.addEventListener("selectionchange", () => this.tell());
    area.addEventListener("scroll", () => this.#place());
    new ResizeObserver(() => this.#place()).observe(area);
  }

  /** Send this person's caret, once the others have received everything that this person has typed. */
  tell() {
    if (this.#client.pending) return;
    const { selectionStart: start, selectionEnd: end, selectionDirection } = this.#area;
    const isHere = document.activeElement === this.#area;
    this.#people.show({ caret: isHere ? { start, end, isBackward: selectionDirection === "backward" } : null });
  }

  /** Move the carets with a change of the text. @param {readonly TextEdit[]} edits */
  move(edits) {
    for (const each of this.#carets.values()) {
      const { start, end, isBackward } = each.caret;
      each.caret = { start: follow(start, edits), end: follow(end, edits), isBackward };
    }
  }

  /** Show the carets of the others who have the document open. @param {Someone[]} others */
  render(others) {
    const found = others.flatMap((someone) => (isCaret(someone.caret) ? [{ someone, caret: someone.caret }] : []));
    const before = this.#carets;
    this.#carets = new Map();
    for (const { someone, caret } of found) {
      const shown = JSON.stringify(caret);
      const last = before.get(someone.connection);
      this.#carets.set(someone.connection, { shown, someone, caret: last?.shown === shown ? last.caret : caret });
    }
    this.#draw();
  }

  #draw() {
    const text = this.#area.value;
    const carets = [...this.#carets.values()].map(({ caret: { start, end, isBackward }, someone }) => {
      const [from, to] = [start, end].map((position) => Math.min(position, text.length));
      return { from, to, head: isBackward ? from : to, color: someone.color, label: someone.label };
    });
    const look = JSON.stringify([carets, carets.length ? text : ""]);
    if (look === this.#rendered) return;
    this.#rendered = look;
    const cuts = new Set([0, text.length, ...carets.flatMap(({ from, to }) => [from, to])]);
    const places = [...cuts].sort((one, other) => one - other);
    const parts = [];
    for (const [index, place] of places.entries()) {
      parts.push(...carets.filter(({ head }) => head === place).map(makeCaret));
      const next = places[index + 1];
      if (next === undefined) break;
      const holder = carets.find(({ from, to }) => from <= place && next <= to);
      parts.push(holder ? makeSelection(text.slice(place, next), holder.color) : text.slice(place, next));
    }
    // An empty last line would have no height.
    this.#layer.replaceChildren(...(carets.length ? [...parts, "\u200b"] : []));
    this.#place();
  }

  #place() {
    const { clientWidth } = this.#area;
    this.#layer.style.width = `${clientWidth}px`;
    // Keep the names in view: near the end of a line, they go to the left of the caret.
    for (const caret of /** @type {NodeListOf<HTMLElement>} */ (this.#layer.querySelectorAll(".caret"))) {
      caret.classList.toggle("last", caret.offsetLeft > clientWidth / 2);
    }
    this.#layer.scrollTop = this.#area.scrollTop;
  }
}

/** @param {{label: string, color: number}} someone */
function makeCaret({ label, color }) {
  const caret = document.createElement("span");
  caret.className = "caret";
  caret.style.setProperty("--hue", String(color));
  caret.dataset.name = label;
  return caret;
}

/** @param {string} text @param {number} color */
function makeSelection(text, color) {
  const element = document.createElement("mark");
  element.style.setProperty("--hue", String(color));
  element.textContent = text;
  return element;
}

/** Return the place of a caret after edits; text that is typed at the caret moves it. @param {number} position @param {readonly TextEdit[]} edits */
function follow(position, edits) {
  let moved = position;
  for (const { at, remove, insert } of edits) {
    if (at + remove <= position) moved += insert.length - remove;
    else if (at < position) moved -= position - at;
  }
  return moved;
}

/** Tell whether a value from another client's presence is a caret. @param {any} shown @returns {shown is Caret} */
function isCaret(shown) {
  const isPlace = (/** @type {unknown} */ at) => Number.isSafeInteger(at) && Number(at) >= 0;
  return isPlace(shown?.start) && isPlace(shown.end) && shown.start <= shown.end;
}
