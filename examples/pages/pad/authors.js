// @ts-check
/** Shows the authors of the parts of a text. */

import { find } from "../room.js";

/** @typedef {{name: string, color: number}} Person */
/** @typedef {[source: string | null, start: number, end: number]} Stretch counted in code points */
/** @typedef {{name: string, look: string, color: number}} Author */

const PAUSE = 300;

export class Authors {
  #client;
  #nameOf;
  #document = "";
  /** @type {Stretch[]} */
  #stretches = [];
  /** The document and version of the last request. */
  #asked = "";
  #isAsking = false;

  /**
   * @param {import("/plait/client.js").ThreadClient} client
   * @param {(source: string) => Person | undefined} nameOf
   */
  constructor(client, nameOf) {
    this.#client = client;
    this.#nameOf = nameOf;
  }

  /** Show the authors of a document; ask the server again when the text has changed. @param {string} id @param {string} text */
  async show(id, text) {
    if (this.#document !== id) this.#stretches = [];
    this.#document = id;
    this.#render(text);
    const now = `${id} ${this.#client.version}`;
    if (this.#isAsking || this.#asked === now || this.#client.status !== "online") return;
    this.#isAsking = true;
    this.#asked = now;
    const stretches = await this.#client.call("find_authors", id).catch(() => []);
    if (this.#document === id) this.#stretches = stretches;
    this.#render(this.#text);
    // Typing changes the text many times a second, so ask less often.
    setTimeout(() => {
      this.#isAsking = false;
      if (this.#isShown) this.show(this.#document, this.#text);
    }, PAUSE);
  }

  get #isShown() {
    return find("#authors").checkVisibility();
  }

  get #text() {
    return this.#client.state?.documents[this.#document]?.body ?? "";
  }

  /** @param {string} text */
  #render(text) {
    const characters = [...text];
    /** @type {Map<string, {author: Author, count: number}>} */
    const authors = new Map();
    const parts = this.#stretches.map(([source, start, end]) => {
      const author = this.#author(source);
      const part = characters.slice(start, end);
      const key = `${author.name} ${author.color}`;
      authors.set(key, { author, count: (authors.get(key)?.count ?? 0) + part.length });
      return makeStretch(part.join(""), author);
    });
    const last = this.#stretches.at(-1)?.[2] ?? 0;
    find("#stretches").replaceChildren(...parts, characters.slice(last).join(""));
    const most = [...authors.values()].filter(({ count }) => count).sort((one, other) => other.count - one.count);
    const all = Math.max(1, last);
    find("#legend").replaceChildren(...most.map(({ author, count }) => makeItem(author, count / all)));
  }

  /** @param {string | null} source @returns {Author} */
  #author(source) {
    if (source === "server") return { name: "The server", look: "server", color: 0 };
    const person = source === null ? undefined : this.#nameOf(source);
    if (person) return { ...person, look: "person" };
    return { name: source === null ? "There from the start" : "Someone without a name", look: "unknown", color: 0 };
  }
}

/** @param {string} text @param {Author} author */
function makeStretch(text, { name, look, color }) {
  const element = document.createElement("span");
  element.className = `stretch ${look}`;
  element.style.setProperty("--hue", String(color));
  element.title = name;
  element.textContent = text;
  return element;
}

/** @param {Author} author @param {number} share */
function makeItem(author, share) {
  const element = document.createElement("li");
  const count = document.createElement("span");
  count.className = "share";
  count.textContent = `${Math.max(1, Math.round(share * 100))} %`;
  element.append(makeStretch(author.name, author), count);
  return element;
}
