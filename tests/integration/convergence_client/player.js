// One ThreadClient that edits at random, loses its sockets, and is looked at whenever something may have changed.

import { createHash } from "node:crypto";

import { choose, rewrite, swap } from "./edits.js";
import { canonical, fold } from "./fold.js";
import { troubled } from "./troubled.js";

// Each client has a storage of its own: no lock on it is needed.
Object.defineProperty(globalThis, "navigator", { value: undefined, configurable: true });

/** Milliseconds after which what has not happened is taken not to happen. */
export const TIMEOUT = 90_000;

export class Player {
  /** What each edit became, by its number: "ack" or the code of the refusal. */
  outcomes = {};
  /** The text that each edit put into the list, if it did. */
  tokens = {};
  /** What it meant to take from the list. */
  meant = [];
  /** The letters that each edit put into texts, and took out of them. */
  typed = {};
  deleted = {};
  edits = 0;
  looks = 0;
  reloads = 0;
  cuts = 0;
  /** Hashes of what was confirmed, by version. */
  seen = {};
  problems = [];
  #ThreadClient;
  #options;
  #dice;
  #Socket;
  #stored = new Map();
  #lastRef = 0;
  #own = undefined;
  #byToken = new Map();
  #open = new Set();

  /** `hasOwn` says that no other client removes from the state what this client writes of its own. */
  constructor(ThreadClient, dice, { id, isCalm, hasOwn = true, ...options }) {
    this.id = id;
    this.hasOwn = hasOwn;
    this.#ThreadClient = ThreadClient;
    this.#dice = dice;
    this.#Socket = troubled(dice, {
      isCalm,
      told: (frame) => {
        if (frame.type === "joined") this.#lastRef = frame.last_ref ?? 0;
      },
    });
    const storage = {
      getItem: (key) => this.#stored.get(key) ?? null,
      setItem: (key, value) => void this.#stored.set(key, value),
      removeItem: (key) => void this.#stored.delete(key),
    };
    this.#options = { ...options, storage, WebSocket: this.#Socket };
    this.#connect();
  }

  #connect() {
    const client = new this.#ThreadClient(this.#options);
    this.client = client;
    client.subscribe(() => client === this.client && this.look());
    client.onRefused(({ error, ops }) => client === this.client && this.#refused(error, ops));
  }

  // What it does

  cut() {
    this.cuts += 1;
    this.#Socket.last?.cut();
  }

  /** Goes on as another life of the same client, as a page does that is loaded again. */
  reload() {
    if (!this.client.state) return;
    this.reloads += 1;
    this.client.close();
    this.#Socket.last?.cut();
    this.#connect();
  }

  edit(number, token) {
    const { client } = this;
    if (!client.state) return;
    const change = choose(this.#dice, client.state, number, token);
    if (change.takes) this.meant.push(change.takes);
    if (change.uses) {
      this.tokens[number] = token;
      this.#byToken.set(token, number);
    }
    this.#follow(
      number,
      this.#dice.chance(0.5) ? client.edit(change.make) : client.set((state) => made(state, change)),
    );
    this.look();
  }

  /** Gives a text a new value, as an input does that does not know what was done in it; or moves the texts. */
  type(number) {
    const { client } = this;
    if (!client.state) return;
    if (this.#dice.chance(0.1)) {
      this.#follow(number, client.edit(swap));
    } else {
      const change = rewrite(this.#dice, client.state, number);
      this.typed[number] = change.typed;
      this.deleted[number] = change.deleted;
      for (const letter of change.typed) this.#byToken.set(letter, number);
      const how = this.#dice.pick(["update", "edit", "set"]);
      if (how === "update") this.#follow(number, client.update(change.pointer, change.value));
      else if (how === "edit") this.#follow(number, client.edit(change.make));
      else
        this.#follow(
          number,
          client.set((state) => made(state, change)),
        );
    }
    this.look();
  }

  /** Writes what only this client writes. */
  write(number) {
    const { client } = this;
    if (!client.state || !this.hasOwn) return;
    this.#own = number;
    this.#follow(number, client.update(`/by/own-${this.id}`, number));
    this.look();
  }

  /** Writes what another client writes at the same time, and waits until both have an outcome. */
  async contend(number) {
    const change = this.client.update("/n", number);
    this.#follow(number, change);
    this.look();
    await change.catch(() => {});
  }

  draw(number) {
    const { client } = this;
    const call = client.call("draw", number).catch((error) => {
      if (!["disconnected", "closed"].includes(error.code)) this.#problem(`a call failed: ${error.code}`);
    });
    this.#open.add(call);
    void call.then(() => this.#open.delete(call));
  }

  // What is checked

  look() {
    this.looks += 1;
    const { state, confirmed, pending, version } = this.client;
    if (state === undefined) return;
    const kept = JSON.parse([...this.#stored.values()][0] ?? "{}").fold;
    const expected = kept ? fold(kept.confirmed, kept.pushes, this.#lastRef) : confirmed;
    if (canonical(state) !== canonical(expected)) {
      const known = `${this.client.status} in life ${this.reloads + 1}, up to push ${this.#lastRef} answered, ${canonical(kept)}`;
      this.#problem(`at ${version} it shows ${canonical(state)}, not ${canonical(expected)}: ${known}`);
    }
    if (kept && canonical(kept.confirmed) !== canonical(confirmed)) this.#problem("it keeps another state");
    if (pending === 0 && canonical(state) !== canonical(confirmed)) this.#problem("it shows a state that no client pushed");
    if (this.#own !== undefined && state.by[`own-${this.id}`] !== this.#own) {
      this.#problem(`what it wrote flickers: ${state.by[`own-${this.id}`]}, not ${this.#own}`);
    }
    this.#observe(version, confirmed);
  }

  #observe(version, confirmed) {
    const hash = createHash("sha1").update(canonical(confirmed)).digest("hex");
    const known = (this.seen[version] ??= hash);
    if (known !== hash) this.#problem(`version ${version} is two states`);
  }

  #problem(text) {
    if (this.problems.length < 5) this.problems.push(`${this.id}: ${text}`);
  }

  // The outcomes of its edits

  #follow(number, change) {
    this.edits += 1;
    this.outcomes[number] = null;
    const life = this.client;
    const settled = change.then(
      () => this.#outcome(number, "ack"),
      // An edit of a life that has ended is the next one's.
      (error) =>
        (error.code === "closed" && life !== this.client) || this.#outcome(number, error.code ?? String(error)),
    );
    this.#open.add(settled);
    void settled.then(() => this.#open.delete(settled));
  }

  #refused(error, ops) {
    const token = ops.flatMap(({ value, insert = "" }) => [value, ...insert]).find((value) => this.#byToken.has(value));
    const number = this.#byToken.get(token);
    // Those of this life are told by their promises, too.
    if (number !== undefined && this.outcomes[number] === null) this.#inherited.set(number, error.code);
  }

  #inherited = new Map();

  #outcome(number, outcome) {
    if (this.outcomes[number] !== null) this.#problem(`edit ${number} is ${this.outcomes[number]} and ${outcome}`);
    this.outcomes[number] = outcome;
  }

  /** Waits until all that it did has an outcome. */
  async rest() {
    while (this.#open.size > 0) await Promise.all(this.#open);
    await this.until(() => this.client.pending === 0);
    // Those that a join has answered for have their own answers before this one.
    await this.sync();
    for (const [number, outcome] of Object.entries(this.outcomes)) {
      // Made in a life that ended before the answer: the next one was told of refusals only.
      if (outcome === null) this.outcomes[number] = this.#inherited.get(Number(number)) ?? "ack";
    }
  }

  /** Returns the thread's version after everything that was sent before. */
  async sync() {
    for (;;) {
      try {
        return await this.client.call("sync");
      } catch (error) {
        if (error.code !== "disconnected") throw error;
      }
    }
  }

  async until(condition) {
    await this.client.waitFor(condition, { signal: AbortSignal.timeout(TIMEOUT) });
  }

  toString() {
    const { status, trouble, version, pending } = this.client;
    const made = `${this.#open.size} promises open, ${pending} pushes pending`;
    return `${this.id} in life ${this.reloads + 1} is ${status} at ${version}, ${made}, trouble ${trouble}`;
  }

  report() {
    const { version, state, confirmed, connection } = this.client;
    const { id, outcomes, tokens, meant, typed, deleted, seen, problems, edits, looks, cuts, reloads } = this;
    return {
      id,
      connection,
      version,
      state,
      confirmed,
      outcomes,
      tokens,
      meant,
      typed,
      deleted,
      seen,
      problems,
      edits,
      looks,
      cuts,
      reloads,
    };
  }
}

function made(state, change) {
  const next = structuredClone(state);
  change.make(next);
  return next;
}
