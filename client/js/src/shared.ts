/** Clients that several components share: one for each thread, closed a moment after the last has let go of it. */

import { isPlaced, socketUrl } from "./address.js";
import { ThreadClient } from "./client.js";
import type { ThreadOptions } from "./options.js";

/** So long a client outlives its last user: an effect that runs twice, or a change of page, keeps the socket. */
const GRACE = 1_000;
/** So long a client waits for its first user: a render that React gives up leaves nobody who could let go of it. */
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

  /**
   * Returns the client of a thread, which is made but not connected unless somebody holds it. One that was closed for
   * good is only returned to who has `held` it; who comes later tries anew.
   */
  get(options: ThreadOptions<any>, held?: ThreadClient): ThreadClient {
    const key = keyOf(options);
    const known = this.#entries.get(key);
    if (known && (known.client === held || known.client.status !== "closed")) return known.client;
    const entry = newEntry(key, options);
    // What a server renders is not shared: it is for one request, and never held.
    if (typeof window === "undefined") return entry.client;
    this.#entries.set(key, entry);
    this.#byClient.set(entry.client, entry);
    this.#closeIn(PATIENCE, entry);
    return entry.client;
  }

  /** A client is to use this token from now on. */
  setToken(client: ThreadClient, token: Entry["token"]): void {
    const entry = this.#byClient.get(client);
    if (entry) entry.token = token;
  }

  /** Connects a client, and keeps it until the returned function is called; undefined for one that was closed. */
  hold(client: ThreadClient): (() => void) | undefined {
    const entry = this.#byClient.get(client);
    if (!entry || client.status === "closed") return undefined;
    entry.holders++;
    clearTimeout(entry.timer);
    client.connect();
    return () => {
      entry.holders--;
      if (entry.holders === 0) this.#closeIn(GRACE, entry);
    };
  }

  #closeIn(wait: number, entry: Entry): void {
    entry.timer = setTimeout(() => {
      entry.client.close();
      if (this.#entries.get(entry.key) === entry) this.#entries.delete(entry.key);
    }, wait);
  }
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

/** Threads are the same when their sockets are, as the same client. */
export function keyOf(options: ThreadOptions<any>): string {
  const place = isPlaced(options) ? socketUrl(options) : `${options.kind}/${options.name}`;
  return JSON.stringify([place, options.client ?? null]);
}
