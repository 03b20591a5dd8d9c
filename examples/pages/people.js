// @ts-check
/** Presence: the data that this page and the others show of their people. */

import { avatar, find, findInput, hue, savePerson } from "./room.js";

/**
 * The data that the pages of all examples show of a person.
 * @typedef {{id: string, name: string, color: number}} Shown
 */
/**
 * A person who is here; `label` is the name to show.
 * @template More
 * @typedef {Shown & More & {connection: string, label: string}} Someone
 */

const MOST_FACES = matchMedia("(max-width: 40rem)").matches ? 2 : 5;

/** @template {object} More what a page shows of its person in addition to `Shown` */
export class People {
  #client;
  #person;
  /** @type {Shown & More} */
  #mine;
  /** The names of all people so far, by connection. @type {Map<string, string>} */
  #names = new Map();
  #rendered = "";

  /**
   * @param {import("/plait/client.js").ThreadClient} client
   * @param {import("./room.js").Person} person
   * @param {More} more
   */
  constructor(client, person, more) {
    this.#client = client;
    this.#person = person;
    this.#mine = { ...person, color: hue(person.id), ...more };
    client.setPresence(this.#mine);
    find("#people").addEventListener("beforetoggle", placeList);
    findInput("#name").value = person.name;
    find("#name").addEventListener("change", () => this.#rename());
  }

  /** Change the data that the others see of this person. @param {Partial<Shown & More>} changes */
  show(changes) {
    const next = { ...this.#mine, ...changes };
    if (JSON.stringify(next) === JSON.stringify(this.#mine)) return;
    this.#mine = next;
    if (this.#client.status !== "closed") this.#client.setPresence(next);
  }

  /** Show who is here; a person with two pages is shown once. */
  render() {
    const everyone = [...new Map(this.#all().map((someone) => [someone.id, someone])).values()];
    const shown = JSON.stringify(everyone.map(({ id, name }) => [id, name]));
    if (this.#rendered === shown) return;
    this.#rendered = shown;
    const more = everyone.length - MOST_FACES;
    const [faces, count] = [document.createElement("span"), document.createElement("span")];
    faces.ariaHidden = "true";
    faces.append(...everyone.slice(0, MOST_FACES).map(avatar), more > 0 ? `+${more}` : "");
    count.className = "visually-hidden";
    count.textContent = everyone.length === 1 ? "1 person is here" : `${everyone.length} people are here`;
    find("#faces").replaceChildren(faces, count);
    find("#people").replaceChildren(...everyone.map((someone) => personItem(someone, someone.id === this.#mine.id)));
  }

  /** Return the others who have the page open; none while this page is offline, as they may have left. */
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

  #rename() {
    const input = findInput("#name");
    this.#person.name = input.value.trim() || this.#person.name;
    input.value = this.#person.name;
    savePerson(this.#person);
    this.show({ ...this.#mine, name: this.#person.name });
  }

  #all() {
    const all = [];
    const presence = /** @type {Record<string, any>} */ (this.#client.presence);
    for (const [connection, shown] of Object.entries(presence)) {
      // Another client may send any JSON as its presence.
      if (typeof shown?.id !== "string" || typeof shown.name !== "string") continue;
      const name = shown.name.slice(0, 40);
      const label = shown.id === this.#mine.id ? "You" : name;
      const someone = { ...shown, name, label, color: Number(shown.color) || 0, connection };
      all.push(/** @type {Someone<More>} */ (someone));
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
