/** The confirmed state that a client keeps for the next page. */

import { afterEach, expect, test, vi } from "vitest";
import { WebSocket } from "ws";

import { cacheOn } from "../src/cache-part.js";
import { Cache } from "../src/cache.js";
import { ThreadClient, keepIn } from "../src/index.js";
import type { ThreadOptions } from "../src/index.js";
import type { Joined } from "../src/protocol.js";
import { Session } from "../src/session.js";
import type { Peer } from "./server.js";
import { clients, server, serving } from "./serving.js";
import { MemoryShelf, MemoryStorage } from "./storages.js";

serving();

afterEach(() => {
  vi.useRealTimers();
});

/** A socket that never opens. */
class Never {
  binaryType = "";
  addEventListener(): void {}
  send(): void {}
  close(): void {}
}

function open(shelf: MemoryShelf | undefined, more: Partial<ThreadOptions<any>> = {}): ThreadClient {
  const place = { host: server.host, kind: "note", name: "a", WebSocket };
  const client = new ThreadClient({ ...place, cache: cacheOn(shelf), cacheKey: "ada", ...more });
  clients.push(client);
  return client;
}

async function joined(
  shelf: MemoryShelf,
  { more, ...answer }: Partial<Joined> & { more?: Partial<ThreadOptions<any>> } = {},
): Promise<[ThreadClient, Peer]> {
  const client = open(shelf, more);
  const peer = await server.peer();
  await peer.join({ state: { n: 1 }, ...answer });
  await client.ready;
  return [client, peer];
}

/** Keeps the state of a page that was closed. */
async function kept(answer: Partial<Joined> = {}): Promise<MemoryShelf> {
  const shelf = new MemoryShelf();
  const [client] = await joined(shelf, answer);
  await vi.waitFor(() => expect(client.savedAt).toBeDefined());
  await client.close();
  return shelf;
}

async function shows(shelf: MemoryShelf, more: Partial<ThreadOptions<any>> = {}): Promise<unknown> {
  const client = open(shelf, { WebSocket: Never, ...more });
  const shown = await Promise.race([
    client.waitFor(() => true),
    new Promise((resolve) => setTimeout(() => resolve("nothing"), 700)),
  ]);
  void client.close();
  return shown;
}

test("the next page shows the state offline, and since when", async () => {
  const before = Date.now();
  const shelf = await kept({ version: 7 });
  const client = open(shelf, { WebSocket: Never });
  await client.waitFor((state) => state.n === 1);
  expect([client.version, client.status]).toEqual([7, "connecting"]);
  expect(client.savedAt).toBeGreaterThanOrEqual(before);
  // It can be changed, too; the change waits.
  void client.set({ n: 2 }).catch(() => undefined);
  expect([client.state, client.pending]).toEqual([{ n: 2 }, 1]);
});

test("the next page asks only for what it lacks", async () => {
  const shelf = await kept({ version: 7, list_keys: { "/l": "slug" } });
  const client = open(shelf);
  const peer = await server.peer();
  const { have } = await peer.join({ version: 8, ops: [{ op: "replace", path: "/n", value: 2 }] });
  expect(have).toEqual(["e", 7]);
  await client.waitFor((state) => state.n === 2);
  expect(client.version).toBe(8);
});

test("another user of the browser, and another thread, see nothing of it", async () => {
  const shelf = await kept();
  expect(await shows(shelf, { cacheKey: "grace" })).toBe("nothing");
  expect(await shows(shelf, { name: "b" })).toBe("nothing");
  expect(await shows(shelf)).toEqual({ n: 1 });
});

test("pushes in a storage come with their own state", async () => {
  const shelf = await kept({ version: 7 });
  const storage = new MemoryStorage();
  const more = { storage: keepIn(storage) };
  const [client, peer] = await joined(shelf, { version: 8, state: { n: 8 }, more });
  void client.set({ n: 9 }).catch(() => undefined);
  await peer.take("push");
  peer.drop();
  await client.close();
  const next = open(shelf, { WebSocket: Never, ...more });
  await next.waitFor((state) => state.n === 9);
  expect([next.confirmed, next.pending]).toEqual([{ n: 8 }, 1]);
});

test("a busy thread is written once a second, and the last state at the end", async () => {
  const shelf = new MemoryShelf();
  const [client, peer] = await joined(shelf);
  const startedAt = performance.now();
  for (let version = 2; version < 200; version++) {
    peer.send({ type: "change", version, ops: [{ op: "replace", path: "/n", value: version }], source: "s2" });
    await client.waitFor((state) => state.n === version);
  }
  await client.close();
  await vi.waitFor(async () => expect(await shows(shelf)).toEqual({ n: 199 }));
  expect(shelf.writes).toBeLessThanOrEqual(2 + (performance.now() - startedAt) / 1_000);
});

test.each([4401, 4403, 4404, 4409, 4410])("after %i nothing is kept", async (code) => {
  const shelf = await kept();
  const client = open(shelf, { token: "t" });
  vi.spyOn(console, "error").mockImplementation(() => undefined);
  const peer = await server.peer();
  await peer.take("join");
  peer.close(code);
  await expect(client.ready).rejects.toMatchObject({ closeCode: code });
  expect(client.savedAt).toBeUndefined();
  await vi.waitFor(async () => expect(await shows(shelf)).toBe("nothing"));
});

test("after 4408, a close, and a loss the state stays", async () => {
  vi.spyOn(console, "error").mockImplementation(() => undefined);
  const shelf = await kept();
  const client = open(shelf, { token: "t" });
  const peer = await server.peer();
  await peer.join({ state: { n: 1 } });
  peer.close(4408);
  await vi.waitFor(() => expect(client.status).toBe("closed"));
  expect(await shows(shelf)).toEqual({ n: 1 });
});

test("another tab does not write what was cleared, until it has joined again", async () => {
  vi.spyOn(console, "error").mockImplementation(() => undefined);
  const shelf = new MemoryShelf();
  const [other, otherPeer] = await joined(shelf);
  await vi.waitFor(() => expect(other.savedAt).toBeDefined());
  const [client, peer] = await joined(shelf, { more: { token: "t" } });
  peer.close(4401);
  await vi.waitFor(() => expect(client.status).toBe("closed"));
  const asks = shelf.asks;
  otherPeer.send({ type: "change", version: 2, ops: [{ op: "replace", path: "/n", value: 2 }], source: "s2" });
  await vi.waitFor(() => expect(shelf.asks).toBeGreaterThan(asks), 5_000);
  expect(other.state).toEqual({ n: 2 });
  expect([...shelf.entries.values()].map(({ text }) => text)).toEqual([undefined]);
  otherPeer.drop();
  const next = await server.peer();
  await next.join({ version: 2 });
  await vi.waitFor(async () => expect(await shows(shelf)).toEqual({ n: 2 }), 5_000);
});

test("the state of an earlier history is removed at the join", async () => {
  const shelf = await kept({ version: 7 });
  const client = open(shelf);
  const peer = await server.peer();
  await peer.join({ epoch: "f", version: 0 });
  await client.ready;
  expect(await shows(shelf)).not.toEqual({ n: 1 });
});

test("the entry of an open page is renewed each day, while the thread is joined", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "Date", "performance"] });
  const cache = new Cache(new MemoryShelf(), () => "key");
  const session = new Session({ client: "c1", now: () => 0 });
  const hours = async (count: number) => vi.advanceTimersByTimeAsync(count * 3_600_000);
  session.open();
  session.receive({ type: "joined", connection: "s1", thread: "note/a", epoch: "e", version: 1, state: { n: 1 } });
  cache.keep(session);
  await hours(0.001);
  const first = cache.savedAt as number;
  await hours(24);
  const second = cache.savedAt as number;
  expect(second - first).toBeGreaterThan(11 * 3_600_000);
  session.lost(1006);
  cache.keep(session);
  await hours(48);
  expect(cache.savedAt).toBe(second);
  cache.release();
});

test("a shelf that fails, or is not there, keeps nothing, and the client works", async () => {
  const shelf = new MemoryShelf();
  shelf.isBroken = true;
  const [client] = await joined(shelf);
  expect([client.state, client.savedAt]).toEqual([{ n: 1 }, undefined]);
  expect(open(undefined).savedAt).toBeUndefined();
});

test("without a key there is no cache, and without a cache no key", () => {
  const open = (more: object) => () =>
    new ThreadClient({ host: "h", kind: "note", name: "a", connect: false, ...more });
  const cache = cacheOn(new MemoryShelf());
  expect(open({ cache })).toThrow(
    new TypeError("cache needs the option cacheKey, such as the user's id: users may share a browser"),
  );
  expect(open({ cache, cacheKey: "" })).toThrow(TypeError);
  expect(open({ cacheKey: "ada" })).toThrow(
    new TypeError("cacheKey needs the option cache, which plait-client exports"),
  );
  expect(open({ cache, cacheKey: "ada", state: false })).toThrow("a client without the state has none to keep");
  expect(open({})().savedAt).toBeUndefined();
});
