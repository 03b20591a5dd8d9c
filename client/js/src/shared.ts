/** Clients that several components share: one for each thread, closed a while after the last has let go of it. */

import { isPlaced, socketUrl } from "./address.js";
import { ThreadClient } from "./client.js";
import type { ThreadOptions } from "./options.js";

/** So long a client outlives its last user: an effect that runs twice, or a change of page, keeps the socket. */
const GRACE = 1_000;
/**
 * So long a client waits for its first user, as a render that React gives up leaves nobody who could let go of it; and
 * behind its last one for the answers to what was changed.
 */
const PATIENCE = 60_000;

interface Entry {
  key: string;
  client: ThreadClient;
  /** As it was last rendered by a component that is, or was, there. */
  token: ThreadOptions<unknown>["token"];
  holders: number;
  timer: ReturnType<typeof setTimeout> | undefined;
}

export class SharedClients {
  // What is to be handed out; a client that was closed for good gives way to another, and stays with those who hold it.
  readonly #entries = new Map<string, Entry>();
  readonly #byClient = new WeakMap<ThreadClient, Entry>();
  readonly #storages = new Numbers();

  /**
   * Returns the client of a thread, which is made but not connected unless somebody holds it. One that was closed for
   * good is only returned to who has `held` it; who comes later tries anew. One that nobody holds is for no other token.
   */
  get(options: ThreadOptions<any>, held?: ThreadClient): ThreadClient {
    const key = this.#keyOf(options);
    const known = this.#entries.get(key);
    if (known && (known.client === held || (known.client.status !== "closed" && isFor(known, options.token)))) {
      return known.client;
    }
    const entry = newEntry(key, options);
    // What a server renders is not shared: it is for one request, and never held.
    if (typeof window === "undefined") return entry.client;
    this.#entries.set(key, entry);
    this.#byClient.set(entry.client, entry);
    this.#closeIn(PATIENCE, entry);
    return entry.client;
  }

  /** A client is to use this token from now on. While somebody else holds it, who does not hold it yet waits for `hold`. */
  setToken(client: ThreadClient, token: Entry["token"], held?: ThreadClient): void {
    const entry = this.#byClient.get(client);
    if (entry && (client === held || !isAnother(entry.token, token))) entry.token = token;
  }

  /**
   * Connects a client with a token, and keeps it until the returned function is called; undefined for one that was closed,
   * or that nobody holds and that is for another token.
   */
  hold(client: ThreadClient, token: Entry["token"]): (() => void) | undefined {
    const entry = this.#byClient.get(client);
    if (!entry || client.status === "closed" || !isFor(entry, token)) return undefined;
    entry.holders++;
    if (isAnother(entry.token, token)) entry.token = token;
    clearTimeout(entry.timer);
    client.connect();
    return () => {
      entry.holders--;
      if (entry.holders === 0) this.#closeIn(GRACE, entry);
    };
  }

  /** Closes a client after a while; nobody else would send what was changed with it, for which there is time as well. */
  #closeIn(wait: number, entry: Entry, patience = PATIENCE): void {
    entry.timer = setTimeout(() => {
      if (entry.client.pending > 0 && patience > 0) return this.#closeIn(GRACE, entry, patience - GRACE);
      void entry.client.close();
      if (this.#entries.get(entry.key) === entry) this.#entries.delete(entry.key);
    }, wait);
  }

  /** Threads are the same when their sockets are, as the same client with the same storage. */
  #keyOf(options: ThreadOptions<any>): string {
    const place = isPlaced(options) ? socketUrl(options) : `${options.kind}/${options.name}`;
    const { client = null, storage } = options;
    return JSON.stringify([place, client, storage ? this.#storages.of(storage) : null]);
  }
}

/** A number for each object. */
class Numbers {
  readonly #known = new WeakMap<object, number>();
  #next = 1;

  of(object: object): number {
    const number = this.#known.get(object) ?? this.#next++;
    this.#known.set(object, number);
    return number;
  }
}

/** Tells whether a client may be used with a token: a text in the place of another may be that of somebody else. */
function isFor({ holders, token: known }: Entry, token: Entry["token"]): boolean {
  return holders > 0 || !isAnother(known, token);
}

function isAnother(a: Entry["token"], b: Entry["token"]): boolean {
  return typeof a === "string" && typeof b === "string" && a !== b;
}

function newEntry(key: string, options: ThreadOptions<any>): Entry {
  const client = new ThreadClient({
    ...options,
    connect: false,
    get token() {
      return entry.token;
    },
  });
  const entry: Entry = { key, client, token: options.token, holders: 0, timer: undefined };
  return entry;
}
