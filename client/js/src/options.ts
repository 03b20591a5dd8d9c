/** The options of a client, and the address of its thread. */

import { PlaitError } from "./errors.js";
import type { SessionEvent } from "./events.js";
import type { DeepReadonly } from "./json.js";
import type { MessagesPart } from "./messages-part.js";
import type { CachePart, ComparePart, FilesPart, OptimisticPart, TextPart, UndoPart } from "./parts.js";
import { normal, page } from "./platform.js";
import type { QueriesPart } from "./queries-part.js";
import type { Token } from "./requests.js";
import type { WebSocketClass } from "./socket.js";
import type { KeptSlot, StorageLike } from "./storage.js";
import type { TasksPart } from "./tasks-part.js";

export interface ThreadOptions<State> {
  /** The name of the Thread subclass in kebab case. */
  kind: string;
  name: string;
  /** Host and port, with a path if the app is mounted under one. The default is the host of the page. */
  host?: string | undefined;
  /** Whether to use wss. The default follows the page; false outside a page. */
  secure?: boolean | undefined;
  /** The whole address of the thread, in place of kind, name, host and secure. */
  url?: string | URL | undefined;
  /** This client's id, the same for all its sockets and used by no other client. The default is random. */
  client?: string | undefined;
  /** Sent like an Authorization header. A function is called for each socket, and before the token expires. */
  token?: Token;
  /** The hash of the state's schema for which the app was built. */
  schema?: string | undefined;
  /** Keeps the client's id and unanswered changes for the next page: `keepIn(localStorage)` or the like. */
  storage?: Keeper | undefined;
  /** `cache` of this package: keeps the confirmed state for the next page, which shows it while offline. */
  cache?: CachePart | undefined;
  /** Whose state `cache` keeps, such as the id of the user: another user of the browser does not see it. */
  cacheKey?: string | undefined;
  /** `text` of this package: typing in texts, and listening to changes in them. */
  text?: TextPart | undefined;
  /** `undo` of this package: undo and redo. */
  undo?: UndoPart | undefined;
  /** `compare` of this package: finds changes within texts, and in lists of elements without ids. */
  compare?: ComparePart | undefined;
  /** `messages` of this package: the messages that the thread keeps. */
  messages?: MessagesPart | undefined;
  /** `tasks` of this package: the runs of the thread's tasks. */
  tasks?: TasksPart | undefined;
  /** `queries` of this package: the results of queries, and their changes. */
  queries?: QueriesPart | undefined;
  /** `optimistic` of this package: what calls will do is shown at once. */
  optimistic?: OptimisticPart | undefined;
  /** `files` of this package: the files that the thread keeps. */
  files?: FilesPart | undefined;
  /**
   * The WebSocket class, such as that of the package `ws`. The default is the global one, which Node 20 does not have.
   */
  WebSocket?: WebSocketClass | undefined;
  /** The value of `state` until the thread has sent its own, as a server rendered it. */
  initialState?: DeepReadonly<State> | undefined;
  /**
   * Whether to follow the thread's state, by default true. Without it `state` is undefined, and changes of it are
   * refused with `bad_state`; calls, queries, messages and the like work as always.
   */
  state?: boolean | undefined;
  /** Whether to connect at once, by default true; `connect()` does it later. */
  connect?: boolean | undefined;
}

/** Keeps a client's unanswered changes in a storage; `keepIn` makes it. */
export interface Keeper {
  readonly storage: StorageLike;
  /** Returns a place of the storage that only this client uses until it releases it. */
  claim(options: ThreadOptions<unknown>, isClosing: () => boolean): Promise<KeptSlot>;
  /**
   * Returns an object that sends the changes that closed tabs have left; `onEvent` is told of those that the server
   * refuses.
   */
  newQueues(
    options: ThreadOptions<unknown>,
    onEvent: (event: SessionEvent) => void,
  ): { send(): Promise<void>; close(): void };
}

/** Throws a TypeError that names the missing object, by default the option of the same name. */
export function missing(what: string, needed = `the option ${what}`): never {
  throw new TypeError(`${what} needs ${needed}, which plait-client exports`);
}

type Address = Pick<ThreadOptions<unknown>, "kind" | "name" | "host" | "secure" | "url">;

/** Throws a TypeError if the options have neither a kind and a name nor a url. */
export function checkNamed({ kind, name, url }: Partial<Address>): void {
  if (url === undefined && ![kind, name].every((part) => typeof part === "string" && part))
    throw new TypeError("the thread is missing: pass kind and name, or url");
}

/** Tells whether the host is known, from the options or from the page. */
export function hasHost({ host, url }: Partial<Address>): boolean {
  return (url ?? host ?? page.location) !== undefined;
}

/** Returns the address of a thread's socket. Throws a PlaitError if it has none. */
export function socketUrl(address: Address): string {
  return resolve(address)[0];
}

/** Returns host and path of a thread: unique over servers and apps, and without the query, which may hold a secret. */
export function threadId(address: Address): string {
  return resolve(address)[1];
}

/** Returns the key of a thread in a storage; a client with an id from the app has a key of its own. */
export function storageKey(options: ThreadOptions<unknown>): string {
  const key = `plait:${threadId(options)}`;
  return options.client === undefined ? key : `${key} ${options.client}`;
}

/** Returns an address, and host and path in it. */
function resolve({ kind, name, host, secure, url }: Address): readonly [address: string, id: string] {
  const at = host ?? page.location?.host ?? "";
  if (url === undefined && !at) throw new PlaitError("no_host", "outside a page, pass host or url");
  const scheme = (secure ?? page.location?.protocol === "https:") ? "wss" : "ws";
  const text = String(url ?? `${scheme}://${at}/threads/${encodeURIComponent(kind)}/${encodeURIComponent(name)}`);
  try {
    const found = /^wss?:\/\/(?:[^\s/?#]*@)?([^\s/?#]+[^\s?#]*)(?:\?[^\s#]*)?$/.exec(
      normal(text).replace(/^http/, "ws"),
    );
    // The path could not be appended to a whole address, or to a query.
    if (found && (url !== undefined || !/\/\/|[?#]/.test(at))) return found as unknown as [string, string];
  } catch {
    // The text is not an address.
  }
  // A query may hold a token.
  throw new PlaitError("bad_url", `invalid host or url "${String(url ?? at).replace(/[?#].*/s, "")}"`);
}
