/** Lists of threads: what is asked for, what is shown, and when it is asked for again. */

import { createServer } from "node:http";
import type { IncomingMessage, Server, ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { PlaitError, listThreads, watchThreads } from "../src/index.js";
import type { ListOptions, ThreadList, ThreadPage } from "../src/index.js";
import { uncaught } from "./uncaught.js";

type Answer = (request: IncomingMessage, response: ServerResponse) => void;

const PAGE: ThreadPage = {
  threads: [{ name: "a", people: 1, card: { title: "é😀" } }],
  next: "5:a",
  silent: 0,
  more: true,
};
const OTHER: ThreadPage = { threads: [], next: null, silent: 1, more: false };

let server: Server;
let host: string;
let requests: IncomingMessage[];
let answers: Answer[];
let stops: (() => void)[];

beforeEach(async () => {
  [requests, answers, stops] = [[], [], []];
  server = createServer((request, response) => {
    requests.push(request);
    // The last one is for all further requests.
    ((answers.length > 1 ? answers.shift() : answers[0]) as Answer)(request, response);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  host = `127.0.0.1:${(server.address() as AddressInfo).port}`;
});

afterEach(async () => {
  vi.restoreAllMocks();
  stops.forEach((stop) => stop());
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
});

function json(body: unknown, status = 200): Answer {
  return (_, response) => response.writeHead(status).end(JSON.stringify(body));
}

function refusal(status: number, code: string): Answer {
  return json({ error: { code, message: "no", path: "/after" } }, status);
}

/** Sends pieces of an event stream, and ends it or not. */
function stream(pieces: (string | Uint8Array)[], end = false): Answer {
  return async (_, response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    for (const piece of pieces) {
      response.write(piece);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    if (end) response.end();
  };
}

function event(page: ThreadPage): string {
  return `data: ${JSON.stringify(page)}\n\n`;
}

function watch(options: Partial<ListOptions> = {}): ThreadList[] {
  const seen: ThreadList[] = [];
  stops.push(watchThreads({ kind: "room", host, ...options }, (list) => seen.push(list)));
  return seen;
}

test("a page is asked for with what the options say", async () => {
  answers = [json(PAGE)];
  expect(await listThreads({ kind: "game room", host, limit: 7, after: "5:a&b", token: "secret" })).toEqual(PAGE);
  expect(await listThreads({ kind: "x", url: `ws://${host}/app/threads/room`, token: async () => "t" })).toEqual(PAGE);
  expect(await listThreads({ kind: "room", host, after: null })).toEqual(PAGE);
  expect(await listThreads({ kind: "room", host, mine: true })).toEqual(PAGE);
  expect(requests.map(({ url }) => url)).toEqual([
    "/threads/game%20room/?limit=7&after=5%3Aa%26b",
    "/app/threads/room",
    "/threads/room/",
    "/threads/room/?mine=true",
  ]);
  expect(requests.map(({ headers }) => headers.authorization)).toEqual([
    "Bearer secret",
    "Bearer t",
    undefined,
    undefined,
  ]);
});

test("a page that is refused is an error with the server's code", async () => {
  answers = [refusal(404, "not_found"), (_, response) => response.writeHead(502).end("<html>"), json({ a: 1 })];
  const list = () => listThreads({ kind: "room", host });
  await expect(list()).rejects.toMatchObject({ code: "not_found", message: "no", path: "/after" });
  await expect(list()).rejects.toMatchObject({ code: "error", message: "the server answered with 502" });
  await expect(list()).rejects.toMatchObject({ code: "error", message: "the answer is no list of threads" });
  await expect(listThreads({ kind: "room", host: "127.0.0.1:1" })).rejects.toMatchObject({ code: "disconnected" });
  await expect(listThreads({ kind: "room" })).rejects.toMatchObject({ code: "no_host" });
  const token = () => Promise.reject(new Error("no session"));
  await expect(listThreads({ kind: "room", host, token })).rejects.toMatchObject({ code: "no_token" });
  await expect(list()).rejects.toBeInstanceOf(PlaitError);
});

test("a page is no longer waited for when its signal is aborted", async () => {
  const aborted = new AbortController();
  answers = [() => aborted.abort(new Error("enough"))];
  await expect(listThreads({ kind: "room", host, signal: aborted.signal })).rejects.toThrow("enough");
});

test("a list shows each page, however its bytes arrive", async () => {
  const bytes = new TextEncoder().encode(event(PAGE));
  const middle = bytes.indexOf(0xf0) + 2;
  answers = [stream([": \n\n", bytes.slice(0, middle), bytes.slice(middle), event(PAGE) + event(OTHER)])];
  const seen = watch({ limit: 5 });
  await vi.waitFor(() => expect(seen.length).toBe(2));
  expect(seen).toEqual([
    { ...PAGE, status: "online", error: undefined },
    { ...OTHER, status: "online", error: undefined },
  ]);
  expect(requests[0]?.url).toBe("/threads/room/?limit=5");
  expect(requests[0]?.headers.accept).toBe("text/event-stream");
});

test("a list is asked for again after its stream has ended, was cut off or could not begin", async () => {
  const cut: Answer = (_, response) => {
    response.writeHead(200).write(event(OTHER));
    setTimeout(() => response.destroy(), 20);
  };
  answers = [stream([event(PAGE)], true), refusal(503, "unavailable"), cut, stream([event(PAGE)])];
  const seen = watch();
  await vi.waitFor(() => expect(requests.length).toBe(4), 10_000);
  await vi.waitFor(() => expect(seen.at(-1)?.status).toBe("online"));
  // While it is offline, it shows what it knew.
  expect(seen.map(({ status, threads, error }) => [status, threads.length, error?.code])).toEqual([
    ["online", 1, undefined],
    ["offline", 1, undefined],
    ["offline", 1, "unavailable"],
    ["online", 0, undefined],
    ["offline", 0, undefined],
    ["online", 1, undefined],
  ]);
});

test("a list of a server that is silent for too long is asked for again", async () => {
  const wait = setTimeout;
  const shorten = (fn: () => void, delay?: number) => wait(fn, delay === 45_000 ? 100 : delay);
  vi.spyOn(globalThis, "setTimeout").mockImplementation(shorten as typeof setTimeout);
  answers = [stream([event(PAGE)]), stream([event(OTHER)])];
  const seen = watch();
  await vi.waitFor(() => expect(requests.length).toBeGreaterThan(1), 10_000);
  expect(seen[1]?.status).toBe("offline");
});

test.each([
  [403, "forbidden"],
  [404, "not_found"],
  [401, "unauthenticated"],
] as const)("a list that is refused with %i is closed, and not asked for again", async (status, code) => {
  answers = [refusal(status, code)];
  const seen = watch();
  await vi.waitFor(() => expect(seen.length).toBe(1));
  expect(seen[0]).toMatchObject({ status: "closed", threads: [], error: { code } });
  await new Promise((resolve) => setTimeout(resolve, 300));
  expect(requests.length).toBe(1);
});

test("a list is asked for again after too many requests, with a fresh token each time", async () => {
  let number = 0;
  answers = [refusal(429, "rate_limited"), stream([event(PAGE)])];
  const seen = watch({ token: () => `t${++number}` });
  await vi.waitFor(() => expect(seen.at(-1)?.status).toBe("online"), 10_000);
  expect(requests.map(({ headers }) => headers.authorization)).toEqual(["Bearer t1", "Bearer t2"]);
});

test("a list that is stopped ends its stream and calls no more", async () => {
  answers = [stream([event(PAGE)])];
  const seen = watch();
  await vi.waitFor(() => expect(seen.length).toBe(1));
  const closed = new Promise((resolve) => requests[0]?.socket.once("close", resolve));
  stops[0]?.();
  await closed;
  await new Promise((resolve) => setTimeout(resolve, 300));
  expect([seen.length, requests.length]).toEqual([1, 1]);
});

test("a listener that throws is heard of, and called again", async () => {
  answers = [stream([event(PAGE), event(OTHER)])];
  const seen: ThreadList[] = [];
  const others = await uncaught("uncaughtException", async (heard) => {
    const stop = watchThreads({ kind: "room", host }, (list) => {
      seen.push(list);
      throw new Error(`page ${seen.length}`);
    });
    stops.push(stop);
    expect([await heard.take(), await heard.take()].map(String)).toEqual(["Error: page 1", "Error: page 2"]);
  });
  expect(others).toEqual([]);
  expect([seen.length, requests.length]).toEqual([2, 1]);
});

test("what is no page ends the stream, and the list is asked for again", async () => {
  answers = [stream(["data: {oh\n\n"]), stream([event(PAGE)])];
  const seen = watch();
  await vi.waitFor(() => expect(requests.length).toBe(2), 10_000);
  const first = requests[0]?.socket;
  await vi.waitFor(() => expect(first?.destroyed).toBe(true));
  await vi.waitFor(() => expect(seen.at(-1)?.status).toBe("online"));
});

test("a list that was steady for a while is soon asked for again each time", async () => {
  let now = 0;
  vi.spyOn(performance, "now").mockImplementation(() => (now += 11_000));
  const waits = vi.spyOn(globalThis, "setTimeout");
  answers = [stream([event(PAGE)], true)];
  watch();
  await vi.waitFor(() => expect(requests.length).toBe(5), 10_000);
  // The pauses are random, and all other times are whole numbers.
  const pauses = waits.mock.calls.map(([, wait]) => wait ?? 0).filter((wait) => !Number.isInteger(wait));
  expect(pauses.length).toBeGreaterThan(3);
  expect(pauses.filter((wait) => wait > 100)).toEqual([]);
});
