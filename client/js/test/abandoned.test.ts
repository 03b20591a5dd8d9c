import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { WebSocket } from "ws";

import { ThreadClient } from "../src/full.js";
import type { Joined } from "../src/protocol.js";
import { Arrivals } from "./server.js";
import type { Peer } from "./server.js";
import { clients, server, serving } from "./serving.js";
import { Locks, MemoryStorage } from "./storages.js";

serving();

let storage: MemoryStorage;

beforeEach(() => {
  storage = new MemoryStorage();
  vi.stubGlobal("navigator", { locks: new Locks() });
});

afterEach(() => {
  vi.unstubAllGlobals();
});

/** A tab, which has joined; with the other end of its socket, and its client's id. */
async function tab(joined: Partial<Joined> = {}): Promise<[ThreadClient, Peer, string]> {
  const client = new ThreadClient({ host: server.host, kind: "note", name: "a", storage, WebSocket });
  clients.push(client);
  const peer = await server.peer();
  const join = await peer.join({ state: { n: 1 }, ...joined });
  await client.ready;
  return [client, peer, join.client];
}

/** A closed tab, with a change that it had no answer for. */
async function leave([client, peer]: [ThreadClient, Peer, string], value: number): Promise<void> {
  void client.update("/n", value);
  await peer.take("push");
  client.close();
  await peer.closed.take();
}

/** What is kept: clients, and how many changes without an answer. */
function kept(): Record<string, number | undefined> {
  const backlogs = [...storage.items.values()].map((text) => JSON.parse(text) as { client: string; fold?: KeptPushes });
  return Object.fromEntries(backlogs.map(({ client, fold }) => [client, fold?.pushes.length]));
}

interface KeptPushes {
  pushes: unknown[];
}

test("what two tabs have left is sent by one, each queue once and as the client that it is of", async () => {
  const [a, b] = [await tab(), await tab()];
  await leave(a, 2);
  await leave(b, 3);
  expect(kept()).toEqual({ [a[2]]: 1, [b[2]]: 1 });

  const [client, peer, id] = await tab();
  expect(id).toBe(a[2]);
  expect((await peer.take("push")).ops).toMatchObject([{ value: 2 }]);
  const stray = await server.peer();
  expect(await stray.join({ state: { n: 1 } })).toEqual({ type: "join", client: b[2], have: ["e", 1] });
  expect(await stray.take("push")).toMatchObject({ ref: 1, ops: [{ value: 3 }] });
  stray.send({ type: "ack", ref: 1, version: 2 });
  await stray.closed.take();
  expect(kept()).toEqual({ [a[2]]: 1, [b[2]]: undefined });
  expect(client.pending).toBe(1);
});

test("what a tab has left is sent by another that was open all the while, when it joins again", async () => {
  const [[, peer], other] = [await tab(), await tab()];
  await leave(other, 3);
  peer.drop();
  await (await server.peer()).join();
  const stray = await server.peer();
  expect((await stray.join({ last_ref: 1, version: 2, state: { n: 3 } })).client).toBe(other[2]);
  expect((await stray.take("push")).ref).toBe(1);
  stray.send({ type: "ack", ref: 1, version: 2 });
  await stray.closed.take();
  expect(kept()[other[2]]).toBeUndefined();
});

test("a change of a closed tab is told when it is refused", async () => {
  const [a, b] = [await tab(), await tab()];
  await leave(a, 2);
  await leave(b, 3);
  const [client] = await tab();
  const refused = new Arrivals<unknown>();
  client.onRefused((refusal) => refused.put(refusal));
  const stray = await server.peer();
  await stray.join({ state: { n: 1 } });
  stray.send({ type: "nack", ref: 1, code: "rejected", message: "no", version: 1 });
  expect(await refused.take()).toMatchObject({ error: { code: "rejected" }, ops: [{ path: "/n", value: 3 }] });
  await stray.closed.take();
});

test("the queue of a tab that is open is left to it", async () => {
  const [a, b] = [await tab(), await tab()];
  void a[0].update("/n", 2);
  await a[1].take("push");
  b[1].drop();
  const again = await server.peer();
  expect((await again.join()).client).toBe(b[2]);
  // Whatever else had been opened would have come before the third client.
  expect((await tab())[2]).not.toBe(a[2]);
});

test("a queue that is not answered when the tab that sends it goes is left as it was", async () => {
  const [a, b] = [await tab(), await tab()];
  await leave(a, 2);
  await leave(b, 3);
  const [client] = await tab();
  const stray = await server.peer();
  await stray.join({ state: { n: 1 } });
  await stray.take("push");
  client.close();
  await stray.closed.take();
  expect(kept()).toEqual({ [a[2]]: 1, [b[2]]: 1 });
  const next = await tab();
  expect((await (await server.peer()).join()).client).toBe(next[2] === a[2] ? b[2] : a[2]);
});
