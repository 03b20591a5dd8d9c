import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { WebSocket } from "ws";

import { PlaitError, ThreadClient } from "../src/full.js";
import type { FullOptions as ThreadOptions } from "../src/full.js";
import { Arrivals } from "./server.js";
import { clients, server, serving } from "./serving.js";

serving();

let shown: Arrivals<unknown>;

beforeEach(() => {
  shown = new Arrivals();
  vi.spyOn(console, "error").mockImplementation((error) => shown.put(error));
});

afterEach(() => {
  vi.restoreAllMocks();
});

function open(options: Partial<ThreadOptions<unknown>>): [ThreadClient, Arrivals<PlaitError | undefined>] {
  const client = new ThreadClient({ host: server.host, kind: "note", name: "a", WebSocket, ...options });
  clients.push(client);
  const troubles = new Arrivals<PlaitError | undefined>();
  client.subscribe(() => client.trouble && troubles.put(client.trouble));
  return [client, troubles];
}

test("a token that cannot be had is the trouble until one can, and is shown in the console", async () => {
  const cause = new Error("no network");
  let asked = 0;
  const [client, troubles] = open({
    token: () => {
      if (++asked < 3) throw cause;
      return "late";
    },
  });
  expect(await troubles.take()).toMatchObject({ name: "PlaitError", code: "no_token", cause });
  expect(await shown.take()).toMatchObject({ code: "no_token", cause });
  expect([client.status, client.error]).toEqual(["offline", undefined]);
  const peer = await server.peer();
  expect((await peer.join({ state: {} })).token).toBe("late");
  await client.ready;
  expect(client.trouble).toBeUndefined();
});

test("a WebSocket that cannot be made is the trouble, and is shown in the console", async () => {
  class Blocked extends WebSocket {
    constructor() {
      super("no address");
    }
  }
  const [, troubles] = open({ WebSocket: Blocked });
  expect(await troubles.take()).toMatchObject({ code: "disconnected", cause: expect.any(SyntaxError) as Error });
  expect(await shown.take()).toBeInstanceOf(SyntaxError);
});

test("what stops a client by itself is shown in the console once, and nothing when it is closed", async () => {
  const [client] = open({});
  const peer = await server.peer();
  peer.close(4404);
  await expect(client.ready).rejects.toMatchObject({ code: "not_found" });
  const [closed] = open({});
  const other = await server.peer();
  await other.join({ state: {} });
  await closed.ready;
  await closed.close();
  expect(shown.waiting).toEqual([client.error]);
});

test("a connection that is lost leaves what it was closed with", async () => {
  const [client, troubles] = open({});
  const peer = await server.peer();
  await peer.join({ state: {} });
  await client.ready;
  peer.close(1013, "too many connections");
  expect(await troubles.take()).toMatchObject({
    code: "disconnected",
    message: "too many connections",
    closeCode: 1013,
  });
  expect(shown.waiting).toEqual([]);
});

test("a token that cannot be renewed is shown in the console", async () => {
  let asked = 0;
  const [client] = open({ token: () => (++asked === 1 ? "first" : Promise.reject(new Error("logged out"))) });
  const peer = await server.peer();
  await peer.join({ state: {} });
  await client.ready;
  peer.send({ type: "auth_expiring", in: 30 });
  expect(await shown.take()).toMatchObject({
    code: "no_token",
    message: expect.stringContaining("logged out") as string,
  });
});

test("a token that is no function's is not sent again when it is about to expire", async () => {
  const [client] = open({ token: "the only one" });
  const peer = await server.peer();
  await peer.join({ state: {} });
  await client.ready;
  peer.send({ type: "auth_expiring", in: 30 });
  peer.send({ type: "change", version: 2, ops: [{ op: "add", path: "/n", value: 1 }], source: "server" });
  await client.waitFor((state) => state.n === 1);
  client.send("after it");
  expect((await peer.take("message")).data).toBe("after it");
});
