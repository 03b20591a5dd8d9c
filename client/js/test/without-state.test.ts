/** A client that does not follow the state of its thread. */

import { expect, test } from "vitest";
import { WebSocket } from "ws";

import { ThreadClient, keepIn, queries, text, undo } from "../src/index.js";
import type { ThreadOptions } from "../src/index.js";
import { SharedClients } from "../src/shared.js";
import type { Peer } from "./server.js";
import { clients, server, serving } from "./serving.js";
import { MemoryStorage } from "./storages.js";

serving();

function options(more: Partial<ThreadOptions<any>> = {}): ThreadOptions<any> {
  return { host: server.host, kind: "note", name: "a", WebSocket, state: false, ...more };
}

async function joined(more: Partial<ThreadOptions<any>> = {}): Promise<[ThreadClient, Peer]> {
  const client = new ThreadClient(options(more));
  clients.push(client);
  const peer = await server.peer();
  const { client: _, ...join } = await peer.join({ version: 40 });
  expect(join).toEqual({ type: "join", state: false });
  await client.ready;
  return [client, peer];
}

test("it has no state, and the version of its joins", async () => {
  const [client, peer] = await joined();
  expect([client.state, client.confirmed, client.version]).toEqual([undefined, undefined, 40]);
  const called = client.call("count");
  const { ref } = await peer.take("call");
  peer.send({ type: "result", ref, value: 3, done: true });
  expect(await called).toBe(3);
  peer.drop();
  const second = await server.peer();
  const join = await second.join({ version: 42 });
  expect([join.have, join.state]).toEqual([undefined, false]);
  await new Promise<void>((resolve) => {
    const look = () => client.version === 42 && client.status === "online" && resolve();
    client.subscribe(look);
    look();
  });
  expect(client.state).toBeUndefined();
});

test("the results of queries raise its version, and never lower it", async () => {
  const [client, peer] = await joined({ queries });
  const versions: (number | undefined)[] = [];
  client.subscribe(() => versions.push(client.version));
  let tell: (data: unknown) => void = () => undefined;
  const told = () => new Promise((resolve) => (tell = resolve));
  client.query("count", [], (data, error) => tell(data ?? error?.code));
  const { ref } = await peer.take("call");
  for (const [at, rows] of [
    [41, 1],
    [41, 2],
    [39, 3],
    [44, 4],
  ]) {
    const next = told();
    peer.send({ type: "result", ref, done: false, value: { at, rows, tag: "t" } } as never);
    expect(await next).toBe(rows);
  }
  const failed = told();
  peer.send({ type: "result", ref, done: false, value: { at: 45, error: { code: "sql_error", message: "no" } } });
  await failed;
  await client.close();
  expect(versions.filter((version, index) => version !== versions[index - 1])).toEqual([41, 44, 45]);
});

test.each<[string, (client: ThreadClient) => Promise<unknown> | undefined]>([
  ["set", (client) => client.set({ n: 1 })],
  ["set with a function", (client) => client.set((state: { n: number }) => ({ n: state.n + 1 }))],
  ["edit", (client) => client.edit((state: { n: number }) => void state.n++)],
  ["update", (client) => client.update("/n", 1)],
  ["splice", (client) => client.splice("/text", 0, 0, "a")],
  ["append", (client) => client.append("/text", "a")],
  ["undo", (client) => client.undo()],
  ["redo", (client) => client.redo()],
])("%s is refused, and nothing is sent", async (_, change) => {
  const [client, peer] = await joined({ text, undo });
  const error = await (change(client) as Promise<unknown>).catch((thrown: unknown) => thrown);
  expect(error).toMatchObject({ code: "bad_state", message: "the thread was opened without its state" });
  expect([client.pending, client.state]).toEqual([0, undefined]);
  client.send("last");
  expect((await peer.take("message")).data).toBe("last");
});

test("a change that was made before the join is refused, too", async () => {
  const client = new ThreadClient(options());
  clients.push(client);
  const early = client.set({ n: 1 }).catch((error: { code: string }) => error.code);
  await (await server.peer()).join({ version: 3 });
  expect(await early).toBe("bad_state");
});

test("it has nothing to keep in a storage", () => {
  const make = () => new ThreadClient(options({ storage: keepIn(new MemoryStorage()), connect: false }));
  expect(make).toThrow(new TypeError("a client without the state has no changes to keep"));
});

test("components that follow the state share no client with those that do not", () => {
  const shared = new SharedClients();
  const { state: _, ...whole } = options();
  expect(shared.keyOf(options())).not.toEqual(shared.keyOf(whole));
  expect(shared.keyOf({ ...whole, state: true })).toEqual(shared.keyOf(whole));
});
