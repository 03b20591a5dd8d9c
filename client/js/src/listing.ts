/** The threads of a kind: a page of them, or a live list. */

import { Backoff } from "./backoff.js";
import { PlaitError } from "./errors.js";
import { socketUrl } from "./options.js";
import type { ThreadOptions } from "./options.js";
import { clock } from "./platform.js";
import { RefusedRequest, authorize, httpUrl, request } from "./requests.js";

/** A live list is requested again after this many milliseconds of silence: the server sends data every 20 seconds. */
const SILENCE = 45_000;

/** A thread of a list. */
export interface ListedThread<Card = unknown> {
  readonly name: string;
  /** The number of people who have it open. */
  readonly people: number;
  /** The result of the class's `card` for its state; null if it has none. */
  readonly card: Card | null;
  /** How many messages the user has not read: in the user's own list, for classes with messages and a card. */
  readonly unread?: number;
}

/** Threads of a kind; those that changed last come first. */
export interface ThreadPage<Card = unknown> {
  readonly threads: readonly ListedThread<Card>[];
  /** The `after` of the next page; null in the last one. */
  readonly next: string | null;
  /** The number of workers or nodes that did not answer in time: some people, or whole threads, are missing. */
  readonly silent: number;
  /** Whether threads may follow that are not on this page. */
  readonly more: boolean;
}

export interface ListOptions extends Pick<ThreadOptions<unknown>, "kind" | "host" | "secure" | "token"> {
  /** The whole address of the list, in place of kind, host and secure. */
  url?: string | URL | undefined;
  /** The maximum number of threads: 50 by default, at most 200. */
  limit?: number | undefined;
  /** Whether only threads of the token's user are listed. */
  mine?: boolean | undefined;
}

export interface PageOptions extends ListOptions {
  /** The `next` of the page before. */
  after?: string | null | undefined;
  signal?: AbortSignal | undefined;
}

/** A page that is kept up to date. */
export interface ThreadList<Card = unknown> extends ThreadPage<Card> {
  /** "closed" when the server refuses the list; `error` has the reason. */
  readonly status: "connecting" | "online" | "offline" | "closed";
  readonly error: PlaitError | undefined;
}

/** A list before its first page. */
export const UNKNOWN: ThreadList<never> = {
  threads: [],
  next: null,
  silent: 0,
  more: false,
  status: "connecting",
  error: undefined,
};

/** Returns a page of the threads of a kind. Rejects with a PlaitError, and with the reason of `signal`. */
export async function listThreads<Card = unknown>(options: PageOptions): Promise<ThreadPage<Card>> {
  const response = await ask(options, "application/json", options.signal);
  const page = (await response.json()) as ThreadPage<Card>;
  if (!Array.isArray(page?.threads)) throw new PlaitError("error", "the answer is no list of threads");
  return page;
}

/**
 * Calls `listener` with the first page of the threads of a kind, and after each change, until the returned function is
 * called. The list reconnects by itself.
 */
export function watchThreads<Card = unknown>(
  options: ListOptions,
  listener: (list: ThreadList<Card>) => void,
): () => void {
  const stopped = new AbortController();
  let list: ThreadList<Card> = UNKNOWN;
  const show = (changes: Partial<ThreadList<Card>>) => {
    list = { ...list, ...changes };
    if (stopped.signal.aborted) return;
    try {
      listener(list);
    } catch (error) {
      // The list goes on; the page gets the error like any other that nothing catches.
      setTimeout(() => {
        throw error;
      });
    }
  };
  void follow(options, show, stopped);
  return () => stopped.abort();
}

async function follow<Card>(
  options: ListOptions,
  show: (changes: Partial<ThreadList<Card>>) => void,
  stopped: AbortController,
): Promise<void> {
  const backoff = new Backoff();
  while (!stopped.signal.aborted) {
    try {
      for await (const page of events<Card>(options, stopped.signal)) {
        backoff.joined(clock.now());
        show({ ...page, status: "online", error: undefined });
      }
      show({ status: "offline" });
    } catch (error) {
      const refusal = error instanceof PlaitError ? error : undefined;
      if (refusal && isFinal(refusal)) return show({ status: "closed", error: refusal });
      show({ status: "offline", error: refusal });
    }
    await pause(backoff.delay(clock.now(), Math.random()), stopped.signal);
  }
}

/** Yields the pages of an event stream until it ends. */
async function* events<Card>(options: ListOptions, stopped: AbortSignal): AsyncGenerator<ThreadPage<Card>> {
  const ended = new AbortController();
  const end = () => ended.abort();
  stopped.addEventListener("abort", end);
  let timer = setTimeout(end, SILENCE);
  try {
    const { body } = await ask(options, "text/event-stream", ended.signal);
    const reader = (body as ReadableStream<Uint8Array>).getReader();
    const decoder = new TextDecoder();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      clearTimeout(timer);
      if (done) return;
      timer = setTimeout(end, SILENCE);
      text += decoder.decode(value, { stream: true });
      const parts = text.split("\n\n");
      text = parts.pop() as string;
      // If several pages have come at once, only the last one counts.
      const last = parts.filter((part) => part.startsWith("data: ")).pop();
      if (last !== undefined) yield JSON.parse(last.slice("data: ".length)) as ThreadPage<Card>;
    }
  } finally {
    clearTimeout(timer);
    stopped.removeEventListener("abort", end);
    end();
  }
}

async function ask(options: PageOptions, accept: string, signal: AbortSignal | undefined): Promise<Response> {
  const url = httpUrl(socketUrl({ ...options, name: "" }), "", {
    ...(options.limit !== undefined && { limit: String(options.limit) }),
    ...(options.mine && { mine: "true" }),
    ...(options.after != null && { after: options.after }),
  });
  const headers = { accept, ...(await authorize(options.token)) };
  return request(url, { headers, cache: "no-store", ...(signal && { signal }) });
}

/** Tells whether another attempt would be refused as well: by the server, or because there is no such address. */
function isFinal(error: PlaitError): boolean {
  return error instanceof RefusedRequest ? error.isFinal : error.code === "bad_url" || error.code === "no_host";
}

async function pause(wait: number, signal: AbortSignal): Promise<void> {
  if (signal.aborted) return;
  await new Promise<void>((resolve) => {
    const timer = setTimeout(resolve, wait);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
