/** Clients that components share: one for each thread and user, closed a while after the last component released it. */

import { ThreadClient } from "./client.js";
import { Deferred } from "./deferred.js";
import { PlaitError } from "./errors.js";
import { isObject } from "./json.js";
import { hasHost, socketUrl } from "./options.js";
import type { ThreadOptions } from "./options.js";

type Token = ThreadOptions<unknown>["token"];

/** The milliseconds that a client stays open without a component, as when an effect runs twice or the page changes. */
const GRACE = 1_000;
/**
 * The milliseconds that a client waits for its first component, because a render that React discards never releases it.
 * After its last component, the client waits as long for the answers to its changes.
 */
const PATIENCE = 60_000;

/** Identifies a client. */
export interface ClientKey {
  /** The thread, the user of the token, and whether the state is followed. */
  readonly thread: string;
  /** The client's own id and storage. */
  readonly own: string;
}

/** The options that a later component may add to a client. */
const PARTS = ["text", "undo", "compare", "messages", "tasks", "queries", "optimistic"] as const;

/** A client that connects when a component holds it, or asks when it is ready. */
class SharedClient extends ThreadClient {
  /**
   * Whether the client may be requested again: on a server, the objects of one render are not there for the next one.
   */
  isFound = typeof window !== "undefined";
  readonly #never = new Deferred<void>();

  /** A component that is suspended until then has no effects that would connect. */
  override get ready(): Promise<void> {
    if (this.isFound) {
      this.connect();
      return super.ready;
    }
    this.#never.reject(new PlaitError("disconnected", "rendering on a server opens no socket"));
    return this.#never.promise;
  }
}

interface Entry {
  key: string;
  client: SharedClient;
  options: ThreadOptions<any>;
  /** The token in the last render of a component of the client. */
  token: Token;
  holders: number;
  timer: ReturnType<typeof setTimeout> | undefined;
}

export class SharedClients {
  // The clients to share. A closed client is replaced by another one, and stays with the components that hold it.
  readonly #entries = new Map<string, Entry>();
  readonly #byClient = new WeakMap<ThreadClient, Entry>();
  readonly #storages = new ObjectNumbers();

  /** Returns the same key for options of the same socket, user, client id and storage. */
  keyOf(options: ThreadOptions<any>): ClientKey {
    const place = hasHost(options) ? socketUrl(options) : `${options.kind}/${options.name}`;
    const { client, storage, token, state, cacheKey } = options;
    return {
      thread: JSON.stringify([place, userOf(token), state !== false]),
      own: JSON.stringify([client, storage && this.#storages.of(storage.storage), cacheKey]),
    };
  }

  /** Returns the shared client for the options; if there is none, or a closed one, creates one, not connected. */
  get(options: ThreadOptions<any>, { thread, own } = this.keyOf(options)): ThreadClient {
    const key = `${thread} ${own}`;
    const known = this.#entries.get(key);
    if (known && known.client.status !== "closed") return known.client;
    const entry = newEntry(key, options);
    this.#byClient.set(entry.client, entry);
    // On a server a client serves one render, is never held, and must not be shared between requests.
    if (typeof window === "undefined") return entry.client;
    this.#entries.set(key, entry);
    this.#closeIn(PATIENCE, entry);
    return entry.client;
  }

  /** Gives a client the parts among the options that it does not have yet. */
  addParts(client: ThreadClient, options: ThreadOptions<any>): void {
    const own = this.#byClient.get(client)?.options;
    const missing = PARTS.filter((part) => own && options[part] && !own[part]);
    if (missing.length === 0) return;
    Object.assign(own as object, Object.fromEntries(missing.map((part) => [part, options[part]])));
    client.addParts();
  }

  /** Makes a client use this token from now on, if it is of the same user. */
  setToken(client: ThreadClient, token: Token): void {
    const entry = this.#byClient.get(client);
    if (entry && userOf(entry.token) === userOf(token)) entry.token = token;
  }

  /**
   * Connects a client, and keeps it open until the returned function is called. Returns undefined for a client that is
   * closed, or was replaced by another shared one.
   */
  hold(client: ThreadClient): (() => void) | undefined {
    const entry = this.#byClient.get(client);
    if (!entry || client.status === "closed") return undefined;
    const shared = this.#entries.get(entry.key) ?? entry;
    if (shared !== entry && shared.client.status !== "closed") return undefined;
    this.#entries.set(entry.key, entry);
    entry.holders++;
    entry.client.isFound = true;
    clearTimeout(entry.timer);
    client.connect();
    return () => {
      entry.holders--;
      if (entry.holders === 0) this.#closeIn(GRACE, entry);
    };
  }

  /** Closes a client after `wait`; while its changes have no answer, up to `patience` later. */
  #closeIn(wait: number, entry: Entry, patience = PATIENCE): void {
    entry.timer = setTimeout(() => {
      if (entry.client.pending > 0 && patience > 0) return this.#closeIn(GRACE, entry, patience - GRACE);
      void entry.client.close();
      if (this.#entries.get(entry.key) === entry) this.#entries.delete(entry.key);
    }, wait);
  }
}

/** A number for each object. */
class ObjectNumbers {
  readonly #known = new WeakMap<object, number>();
  #next = 1;

  of(object: object): number {
    const number = this.#known.get(object) ?? this.#next++;
    this.#known.set(object, number);
    return number;
  }
}

function newEntry(key: string, options: ThreadOptions<any>): Entry {
  const own: ThreadOptions<any> = {
    ...options,
    connect: false,
    get token() {
      return entry.token;
    },
  };
  const client = new SharedClient(own);
  const entry: Entry = { key, client, options: own, token: options.token, holders: 0, timer: undefined };
  return entry;
}

// Users

/** Claims of a JWT that differ between two tokens of one user. */
const TIMES: ReadonlySet<string> = new Set(["exp", "iat", "nbf", "auth_time"]);

/**
 * Returns a text that is the same for two tokens only if they are of one user with the same rights: JWTs that differ in
 * their times only, or equal texts. All functions count as one user, because nothing is known of them.
 */
function userOf(token: Token): string | null {
  if (token === undefined) return null;
  if (typeof token === "function") return "function";
  const claims = claimsOf(token);
  return claims
    ? `jwt ${JSON.stringify(Object.entries(claims).filter(([name]) => !isPassing(name, claims)))}`
    : `text ${token}`;
}

/** Tells whether a claim differs in a fresh token; without a subject, the token's own id may identify its user. */
function isPassing(name: string, claims: object): boolean {
  return TIMES.has(name) || (name === "jti" && Object.hasOwn(claims, "sub"));
}

function claimsOf(token: string): object | undefined {
  const [, payload, signature] = token.split(".");
  if (payload === undefined || signature === undefined) return undefined;
  try {
    const claims: unknown = JSON.parse(atob(payload.replaceAll("-", "+").replaceAll("_", "/")));
    return isObject(claims) && Object.keys(claims).some((name) => !TIMES.has(name)) ? claims : undefined;
  } catch {
    return undefined;
  }
}
