/** Clients that several components share: one for each thread and user, closed a while after the last has let go of it. */

import { isPlaced, socketUrl } from "./address.js";
import { ThreadClient } from "./client.js";
import { identityOf } from "./identity.js";
import type { ThreadOptions } from "./options.js";

/** So long a client outlives its last user: an effect that runs twice, or a change of page, keeps the socket. */
const GRACE = 1_000;
/**
 * So long a client waits for its first user, as a render that React gives up leaves nobody who could let go of it; and
 * behind its last one for the answers to what was changed.
 */
const PATIENCE = 60_000;

/** What tells clients apart. */
export interface ClientKey {
  /** The thread, and whom the token is of. */
  readonly thread: string;
  /** The client's own id and storage. */
  readonly own: string;
}

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

  /** Threads are the same when their sockets are, as the same client with the same storage, for the same user. */
  keyOf(options: ThreadOptions<any>): ClientKey {
    const place = isPlaced(options) ? socketUrl(options) : `${options.kind}/${options.name}`;
    const { client = null, storage, token } = options;
    return {
      thread: JSON.stringify([place, identityOf(token)]),
      own: JSON.stringify([client, storage ? this.#storages.of(storage) : null]),
    };
  }

  /**
   * Returns the client of a thread, which is made but not connected unless somebody holds it. One that was closed for
   * good gives way to another, as who comes later tries anew.
   */
  get(options: ThreadOptions<any>, { thread, own } = this.keyOf(options)): ThreadClient {
    const key = `${thread} ${own}`;
    const known = this.#entries.get(key);
    if (known && known.client.status !== "closed") return known.client;
    const entry = newEntry(key, options);
    this.#byClient.set(entry.client, entry);
    // What a server renders is not shared: it is for one request, and never held. Elsewhere it is shared once it is held.
    if (typeof window === "undefined") return entry.client;
    this.#entries.set(key, entry);
    this.#closeIn(PATIENCE, entry);
    return entry.client;
  }

  /** A client is to use this token from now on, which is of the same user. */
  setToken(client: ThreadClient, token: Entry["token"]): void {
    const entry = this.#byClient.get(client);
    if (entry && identityOf(entry.token) === identityOf(token)) entry.token = token;
  }

  /**
   * Connects a client, and keeps it until the returned function is called; undefined for one that was closed, or in whose
   * place there is another one to share.
   */
  hold(client: ThreadClient): (() => void) | undefined {
    const entry = this.#byClient.get(client);
    if (!entry || client.status === "closed") return undefined;
    const shared = this.#entries.get(entry.key) ?? entry;
    if (shared !== entry && shared.client.status !== "closed") return undefined;
    this.#entries.set(entry.key, entry);
    entry.holders++;
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
