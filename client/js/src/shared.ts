/** Clients that several components share: one for each thread, closed a moment after the last has let go of it. */

import { ThreadClient } from "./client.js";
import { socketUrl } from "./options.js";
import type { ThreadOptions } from "./options.js";

/** So long a client outlives its last user: an effect that runs twice, or a change of page, keeps the socket. */
const GRACE = 1_000;

interface Entry {
  client: ThreadClient;
  holders: number;
  timer: ReturnType<typeof setTimeout> | undefined;
}

export class SharedClients {
  readonly #entries = new Map<string, Entry>();

  /** Returns the client of a thread, which is made but not connected unless somebody holds it. */
  get(options: ThreadOptions<any>): ThreadClient {
    const key = keyOf(options);
    const known = this.#entries.get(key);
    // One that the server has refused for good stays with those who have it; who comes later tries anew.
    if (known && (known.holders > 0 || known.client.status !== "closed")) return known.client;
    const client = new ThreadClient({ ...options, connect: false });
    // What a server renders is not shared: it is for one request, and never held.
    if (typeof window === "undefined") return client;
    this.#entries.set(key, { client, holders: 0, timer: undefined });
    return client;
  }

  /** Connects a client, and keeps it until the returned function is called; undefined for one that was let go. */
  hold(client: ThreadClient): (() => void) | undefined {
    const found = [...this.#entries].find(([, entry]) => entry.client === client);
    if (!found) return undefined;
    const [key, entry] = found;
    entry.holders++;
    clearTimeout(entry.timer);
    client.connect();
    return () => {
      entry.holders--;
      if (entry.holders > 0) return;
      entry.timer = setTimeout(() => {
        client.close();
        if (this.#entries.get(key) === entry) this.#entries.delete(key);
      }, GRACE);
    };
  }
}

/** Threads are the same when their sockets are, as the same client. */
export function keyOf(options: ThreadOptions<any>): string {
  const isPlaced = options.url !== undefined || options.host !== undefined || globalThis.location !== undefined;
  const place = isPlaced ? socketUrl(options) : `${options.kind}/${options.name}`;
  return JSON.stringify([place, options.client ?? null]);
}
