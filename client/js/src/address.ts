/** Where the socket of a thread is. */

import { PlaitError } from "./errors.js";
import type { ThreadOptions } from "./options.js";

type Place = Pick<ThreadOptions<unknown>, "kind" | "name" | "host" | "secure" | "url">;

/** Throws a TypeError where a thread has neither a kind and a name nor an address. */
export function checkNamed({ kind, name, url }: Partial<Place>): void {
  const isText = (value: unknown) => typeof value === "string" && value !== "";
  if (url === undefined && !(isText(kind) && isText(name))) {
    throw new TypeError("A thread is known by its kind and its name, or by a url");
  }
}

/** Tells whether there is something that an address can be made of. */
export function isPlaced({ host, url }: Partial<Place>): boolean {
  return url !== undefined || host !== undefined || globalThis.location !== undefined;
}

/** Returns the address of a thread's socket. Throws a PlaitError where there is none. */
export function socketUrl(place: Place): string {
  return resolve(place).href;
}

/** Returns what tells a thread from those of other servers and apps, without what may be secret in its address. */
export function threadId(place: Place): string {
  const { host, pathname } = resolve(place);
  return host + pathname;
}

function resolve({ kind, name, host, secure, url }: Place): URL {
  const page = globalThis.location as Location | undefined;
  if (url !== undefined) return parse(String(url), page?.href);
  const at = host ?? page?.host;
  if (!at) throw new PlaitError("no_host", "Where there is no page, a client needs a host or a url");
  // What follows a host that is a whole address, or ends with a query, would not be the path.
  if (/\/\/|[?#]/.test(at)) throw badUrl(at);
  const scheme = (secure ?? page?.protocol === "https:") ? "wss" : "ws";
  return parse(`${scheme}://${at}/threads/${encodeURIComponent(kind)}/${encodeURIComponent(name)}`);
}

function parse(text: string, base?: string): URL {
  let url: URL;
  try {
    url = new URL(text, base);
  } catch {
    throw badUrl(text);
  }
  url.protocol = url.protocol.replace("http", "ws");
  if (!/^wss?:$/.test(url.protocol) || url.hash) throw badUrl(text);
  return url;
}

function badUrl(text: string): PlaitError {
  // A query may hold a token.
  return new PlaitError("bad_url", `No WebSocket can be opened with ${text.replace(/[?#].*/s, "")}`);
}
