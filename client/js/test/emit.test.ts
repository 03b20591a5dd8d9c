/** Events of clients, and the doubt of a connection. */

import { expect, test, vi } from "vitest";
import { WebSocket } from "ws";

import { ThreadClient } from "../src/index.js";
import type { ThreadOptions } from "../src/index.js";
import { Arrivals } from "./server.js";
import type { Peer } from "./server.js";
import { clients, server, serving } from "./serving.js";
import { uncaught } from "./uncaught.js";

serving();

async function joined(more: Partial<ThreadOptions<any>> = {}): Promise<[ThreadClient, Peer]> {
  const client = new ThreadClient({ host: server.host, kind: "note", name: "a", WebSocket, ...more });
  clients.push(client);
  const peer = await server.peer();
  await peer.join({ state: { n: 1 }, max_frame: 1_000 });
  await client.ready;
  return [client, peer];
}

test("an event is sent to the others, and theirs come with their connection", async () => {
  const [client, peer] = await joined();
  const heard = new Arrivals<unknown[]>();
  client.onEvent("cursor", (...all) => heard.put(all));
  client.emit("cursor", { x: 1 });
  expect(await peer.take("emit")).toEqual({ type: "emit", name: "cursor", data: { x: 1 } });
  peer.send({ type: "event", name: "cursor", data: { x: 2 }, from: "s2" });
  expect(await heard.take()).toEqual([{ x: 2 }, "s2"]);
  peer.send({ type: "event", name: "cursor", data: { x: 3 } });
  expect(await heard.take()).toEqual([{ x: 3 }, undefined]);
});

test("an event that cannot be sent throws, and one that the server refuses is an uncaught error", async () => {
  const [client, peer] = await joined();
  expect(() => client.emit("cursor", "x".repeat(1_000))).toThrow("the event is larger than the server takes");
  const others = await uncaught("uncaughtException", async (heard) => {
    peer.send({ type: "error", code: "forbidden", message: "clients may not emit 'goal'", refused: "emit" });
    expect(await heard.take()).toMatchObject({ code: "forbidden", message: "clients may not emit 'goal'" });
  });
  expect(others).toEqual([]);
  expect(client.status).toBe("online");
  await client.close();
  expect(() => client.emit("cursor", 1)).toThrow("the client is closed");
});

test("a connection that is replaced is another one, under which the client goes on", async () => {
  const [client, peer] = await joined();
  const call = client.call("count");
  await peer.take("call");
  client.reconnect();
  expect(client.status).toBe("offline");
  await expect(call).rejects.toMatchObject({ code: "disconnected" });
  await peer.closed.take();
  const next = await server.peer();
  expect((await next.join({ version: 1 })).have).toEqual(["e", 1]);
  await vi.waitFor(() => expect(client.status).toBe("online"));
});

test("a client that is closed, or not connected, does not reconnect", async () => {
  const [client] = await joined();
  const idle = new ThreadClient({ host: server.host, kind: "note", name: "a", WebSocket, connect: false });
  clients.push(idle);
  await client.close();
  client.reconnect();
  idle.reconnect();
  expect([client.status, idle.status]).toEqual(["closed", "connecting"]);
  expect(server.peers.waiting).toEqual([]);
});
