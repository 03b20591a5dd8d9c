// @ts-check
/** The panel that shows a board at any version that the server has kept, and restores it. */

import { find, findInput, notify, room, write } from "../room.js";

/** @typedef {import("./model.js").Board} Board */
/** @typedef {{version: number, source: string, at: number}} Change */
/** @typedef {{names: Record<string, {since: number, name: string}[]>, restored: Record<string, string>}} Memory */

const URL_OF_BOARD = `/threads/board/${encodeURIComponent(room)}`;
const UNITS = /** @type {const} */ ([["day", 86_400], ["hour", 3_600], ["minute", 60], ["second", 1]]);
const AGO = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

export class HistoryPanel {
  #client;
  #onLook;
  #panel = find("#history");
  #slider = findInput("#version");
  #epoch = "";
  /** @type {Map<number, Change>} */
  #changes = new Map();
  /** The people who have changed the board, including people who have left. @type {Memory} */
  #memory = { names: {}, restored: {} };
  #last = 0;
  #isFetching = false;
  #isLooking = false;
  /** The version that is shown; undefined for the current board. @type {number | undefined} */
  #version;

  /**
   * @param {import("/plait/client.js").ThreadClient<Board>} client
   * @param {(past: Board | undefined) => void} onLook gets an older board, or undefined for the current one
   */
  constructor(client, onLook) {
    this.#client = client;
    this.#onLook = onLook;
    find("#open-history").addEventListener("click", () => (this.#panel.hidden ? this.#open() : this.close()));
    find("#close-history").addEventListener("click", () => this.close());
    find("#restore").addEventListener("click", () => this.#restore());
    find("#older").addEventListener("click", () => this.#look(this.#at - 1));
    find("#newer").addEventListener("click", () => this.#look(this.#at + 1));
    this.#slider.addEventListener("input", () => this.#look(this.#slider.valueAsNumber));
    this.#panel.addEventListener("keydown", ({ key }) => key === "Escape" && this.close());
  }

  /** Show the latest changes of the board in the history. */
  async follow() {
    if (this.#panel.hidden || this.#isFetching || (this.#client.version ?? 0) <= this.#last) return;
    if (await this.#fetch()) this.follow();
  }

  /** Show the current board. */
  close() {
    if (this.#panel.contains(document.activeElement)) find("#open-history").focus();
    this.#panel.hidden = true;
    find("#open-history").ariaExpanded = "false";
    this.#version = undefined;
    this.#onLook(undefined);
  }

  get #at() {
    return this.#version ?? this.#last;
  }

  get #isEmpty() {
    return Number(this.#slider.min) >= this.#last;
  }

  async #open() {
    this.#last = 0;
    if (!(await this.#fetch())) return notify("The history is not available without a connection.");
    this.#panel.hidden = false;
    find("#open-history").ariaExpanded = "true";
    (this.#isEmpty ? find("#close-history") : this.#slider).focus();
  }

  /** Get the changes since the last time, or all kept changes; return whether that succeeded. */
  async #fetch() {
    this.#isFetching = true;
    try {
      const since = this.#last ? `?since=${encodeURIComponent(`${this.#epoch}:${this.#last}`)}` : "";
      const { epoch, version, changes } = await getChanges(since);
      if (!since) {
        this.#changes.clear();
        // Boards from before a migration have another shape.
        const first = changes.findLast(({ source }) => source === "migration")?.version;
        this.#slider.min = String(first ?? (changes[0]?.version ?? version + 1) - 1);
      }
      for (const change of changes) this.#changes.set(change.version, change);
      [this.#epoch, this.#last] = [epoch, version];
      // The call is a turn of the board, after the turns that have stored who made the changes.
      this.#memory = await this.#client.call("who");
      this.#describe();
      return true;
    } catch {
      return false;
    } finally {
      this.#isFetching = false;
    }
  }

  /** Look at a version. @param {number} version */
  async #look(version) {
    if (version < Number(this.#slider.min) || version > this.#last) return;
    this.#version = version === this.#last ? undefined : version;
    this.#describe();
    if (this.#version === undefined) this.#onLook(undefined);
    if (this.#isLooking) return;
    this.#isLooking = true;
    // Request one version at a time, however fast the slider moves, and the last one in the end.
    for (let shown; this.#version !== undefined && this.#version !== shown; ) {
      shown = this.#version;
      const past = await get(`${URL_OF_BOARD}?at=${shown}`).catch(() => notify(`Version ${shown} is not available.`));
      if (past && this.#version !== undefined) this.#onLook(past);
    }
    this.#isLooking = false;
  }

  async #restore() {
    const version = this.#version;
    if (version === undefined) return;
    try {
      await this.#client.call("restore", version);
      this.close();
      notify(`Version ${version} is back.`);
    } catch (error) {
      notify(`The server refused: ${/** @type {Error} */ (error).message}.`, { refused: true });
    }
  }

  #describe() {
    const [version, { min }] = [this.#at, this.#slider];
    const isEmpty = this.#isEmpty;
    const when = isEmpty ? "each change is kept from here on" : this.#whenAndWho(version);
    const isPast = this.#version !== undefined;
    const which = `version ${version} of ${this.#last}`;
    const now = isEmpty ? "There is no older board yet" : `This is the current board, ${which}`;
    write(find("#which"), isPast ? `You are looking at ${which}` : now);
    write(find("#when"), when);
    write(find("#close-history"), isPast ? "Back to now" : "Close");
    this.#slider.max = String(this.#last);
    this.#slider.value = String(version);
    this.#slider.setAttribute("aria-valuetext", `Version ${version} of ${this.#last}, ${when}`);
    this.#panel.classList.toggle("is-past", isPast);
    find(".history-time").hidden = find("#restore").hidden = isEmpty;
    find("#older").toggleAttribute("disabled", version <= Number(min));
    find("#newer").toggleAttribute("disabled", !isPast);
    find("#restore").toggleAttribute("disabled", !isPast);
  }

  /** @param {number} version */
  #whenAndWho(version) {
    const change = this.#changes.get(version);
    if (!change) return version === 0 ? "as it was made" : "where this history begins";
    const [name, , undone] = change.source.split(" ");
    const restorer = this.#memory.restored[version];
    const who = {
      server: restorer ? `restored by ${this.#nameOf(restorer, version)}` : "restored",
      migration: "by an update of the server",
      undo: `undone by ${this.#nameOf(undone, version)}`,
    };
    const seconds = Math.max(0, Date.now() / 1000 - change.at);
    const [unit, size] = UNITS.find((each) => seconds >= each[1]) ?? UNITS[3];
    const when = AGO.format(-Math.floor(seconds / size), unit);
    return `${when} · ${who[/** @type {keyof typeof who} */ (name)] ?? `by ${this.#nameOf(name, version)}`}`;
  }

  /** Return the name that someone had when they made a version. @param {string} connection @param {number} version */
  #nameOf(connection, version) {
    if (connection === this.#client.connection) return "you";
    const names = this.#memory.names[connection] ?? [];
    return (names.findLast(({ since }) => since <= version) ?? names[0])?.name ?? "someone without a name";
  }
}

/**
 * Get all changes after a version, in as many requests as needed.
 * @param {string} since
 * @returns {Promise<{epoch: string, version: number, changes: Change[]}>}
 */
async function getChanges(since) {
  const { more, epoch, version, changes } = await get(`${URL_OF_BOARD}/changes${since}`);
  if (!more) return { epoch, version, changes };
  const rest = await getChanges(`?since=${encodeURIComponent(`${epoch}:${version}`)}`);
  return { ...rest, changes: [...changes, ...rest.changes] };
}

/** @param {string} url @returns {Promise<any>} */
async function get(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(response.statusText);
  return response.json();
}
