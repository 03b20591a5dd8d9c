// @ts-check
/** Who is here: what this page shows of its person to the others, and what they show. */

import { avatar, find, hue } from "../room.js";

/** @typedef {{column: string, x: number, y: number}} Cursor over or beside a column, whose width is 1 */
/** @typedef {"" | "focus" | "moving" | "editing"} Doing what someone does with their card */
/** @typedef {{id: string, name: string, color: number, card: string | null, doing: Doing, cursor: Cursor | null}} Shown */
/** @typedef {Shown & {connection: string, label: string}} Someone what to call them is their label */

const MOST_FACES = matchMedia("(max-width: 40rem)").matches ? 2 : 5;

export class People {
  #client;
  /** @type {Shown} */
  #mine;
  /** The names of all who have been seen, by connection. @type {Map<string, string>} */
  #names = new Map();
  #rendered = "";

  /** @param {import("/plait/client.js").ThreadClient} client @param {import("../room.js").Person} person */
  constructor(client, person) {
    this.#client = client;
    this.#mine = { ...person, color: hue(person.id), card: null, doing: "", cursor: null };
    client.setPresence(this.#mine);
    find("#people").addEventListener("beforetoggle", placeList);
  }

  /** Show the others something else than before. @param {Partial<Shown>} changes */
  show(changes) {
    const next = { ...this.#mine, ...changes };
    if (JSON.stringify(next) === JSON.stringify(this.#mine)) return;
    this.#mine = next;
    if (this.#client.status !== "closed") this.#client.setPresence(next);
  }

  /** Show who is here; somebody with two pages is one person. */
  render() {
    const everyone = [...new Map(this.#all().map((someone) => [someone.id, someone])).values()];
    const shown = JSON.stringify(everyone.map(({ id, name }) => [id, name]));
    if (this.#rendered === shown) return;
    this.#rendered = shown;
    const more = everyone.length - MOST_FACES;
    find("#faces").ariaLabel = everyone.length === 1 ? "1 person is here" : `${everyone.length} people are here`;
    find("#faces").replaceChildren(...everyone.slice(0, MOST_FACES).map(avatar), more > 0 ? `+${more}` : "");
    find("#people").replaceChildren(...everyone.map((someone) => personItem(someone, someone.id === this.#mine.id)));
  }

  /** Return who else has the board open; where this page hears nothing of them, they may have left. */
  others() {
    if (this.#client.status !== "online") return [];
    return this.#all().filter(({ connection }) => connection !== this.#client.connection);
  }

  /** Return the name of a connection. @param {string} connection */
  nameOf(connection) {
    if (connection === this.#client.connection) return "you";
    this.#all();
    return this.#names.get(connection) ?? "someone who has left";
  }

  #all() {
    const all = [];
    const presence = /** @type {Record<string, any>} */ (this.#client.presence);
    for (const [connection, shown] of Object.entries(presence)) {
      // Anything may be shown: a page of somebody else's making, too, may be here.
      if (typeof shown?.id !== "string" || typeof shown.name !== "string") continue;
      const name = shown.name.slice(0, 40);
      const label = shown.id === this.#mine.id ? "You" : name;
      const someone = { ...shown, name, label, color: Number(shown.color) || 0, connection };
      all.push(/** @type {Someone} */ (someone));
      this.#names.set(connection, someone.name);
    }
    return all;
  }
}

/** @param {Shown} someone @param {boolean} isMe */
function personItem(someone, isMe) {
  const element = document.createElement("li");
  element.dataset.person = someone.id;
  const name = document.createElement("span");
  name.textContent = isMe ? `${someone.name} (you)` : someone.name;
  element.append(avatar(someone), name);
  return element;
}

/** Open the list of people under their faces. */
function placeList() {
  const { left, bottom } = find("#faces").getBoundingClientRect();
  find("#people").style.setProperty("--left", `${left}px`);
  find("#people").style.setProperty("--top", `${bottom}px`);
}
