/** What a client is made with. */

import type { DeepReadonly } from "./frozen.js";
import type { WebSocketClass } from "./socket.js";
import type { StorageLike } from "./storage.js";

export interface ThreadOptions<State> {
  /** kebab-case of the Thread subclass's name. */
  kind: string;
  name: string;
  /** Host and port, and a path where the app is mounted under one; that of the page unless given. */
  host?: string | undefined;
  /** Whether to use wss; as the page does unless given, and false where there is no page. */
  secure?: boolean | undefined;
  /** The whole address of the thread, instead of the above. */
  url?: string | URL | undefined;
  /** An id that is this client's alone, over all its sockets; random unless given. */
  client?: string | undefined;
  /** Stands for an Authorization header; a function is asked before each socket, and when the token is about to expire. */
  token?: string | (() => string | undefined | Promise<string | undefined>) | undefined;
  /** The hash of the state's schema that the app was built for. */
  schema?: string | undefined;
  /** Where the id and the unanswered pushes are kept beyond a page: localStorage, sessionStorage or the like. */
  storage?: StorageLike | undefined;
  /** Where there is no global one, as in Node 20: that of the package `ws`. */
  WebSocket?: WebSocketClass | undefined;
  /** What `state` is until the thread has told it, as it was rendered by a server. */
  initialState?: DeepReadonly<State> | undefined;
  /** Whether to connect at once, as it does unless false; `connect()` does it later. */
  connect?: boolean | undefined;
}

/** Returns a name for a client that no other has. */
export function randomId(): string {
  // Pages that did not come over TLS have no crypto.randomUUID.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
