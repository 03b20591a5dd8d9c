import { expect, test } from "vitest";
import { WebSocket } from "ws";

import { PlaitError, ThreadClient } from "../src/full.js";
import type { FullOptions as ThreadOptions } from "../src/full.js";
import type { Outgoing } from "../src/messages.js";
import type { Joined, Op } from "../src/protocol.js";
import { Arrivals } from "./server.js";
import type { Peer } from "./server.js";
import { clients, server, serving } from "./serving.js";
import { uncaught } from "./uncaught.js";
import { Session } from "./whole.js";

const JOINED: Joined = { type: "joined", connection: "s1", thread: "note/a", epoch: "e", version: 1 };
const LARGE = "x".repeat(500);

serving();

function open(options: Partial<ThreadOptions<unknown>> = {}): ThreadClient {
  const client = new ThreadClient({ host: server.host, kind: "note", name: "a", WebSocket, ...options });
  clients.push(client);
  return client;
}

/** A client whose frames may have 500 bytes, and the other end of its socket. */
async function joined(): Promise<[ThreadClient, Peer]> {
  const client = open();
  const peer = await server.peer();
  await peer.join({ state: { n: 1 }, max_frame: 500 });
  await client.ready;
  return [client, peer];
}

function session(): Session {
  const session = new Session({ client: "c1", now: () => 0 });
  session.open();
  session.receive({ ...JOINED, state: { n: 1 } });
  session.takeFrames();
  session.takeEvents();
  return session;
}

function add(key: string, value: string): Op[] {
  return [{ op: "add", path: `/${key}`, value }];
}

/** What has been sent of pushes: their numbers, and the places that they change. */
function pushes(frames: readonly Outgoing[]): unknown[] {
  return frames.flatMap((frame) => (frame.type === "push" ? [[frame.ref, frame.ops?.map(({ path }) => path)]] : []));
}

test("a frame may have as many bytes as the server says, and not one more", () => {
  const frame = { type: "push", ref: 1, base: ["e", 1], ops: add("é", "é") };
  const bytes = new TextEncoder().encode(JSON.stringify(frame)).length;
  for (const [limit, sent] of [
    [bytes, [frame]],
    [bytes - 1, []],
    [undefined, [frame]],
  ] as const) {
    const session = new Session({ client: "c1", now: () => 0 });
    session.open();
    session.receive({ ...JOINED, state: {}, ...(limit && { max_frame: limit }) });
    session.takeFrames();
    session.push(add("é", "é"));
    expect(session.takeFrames()).toEqual(sent);
  }
});

test("of what was changed while offline, what is too large is refused at the join, and the rest is sent", () => {
  const offline = session();
  offline.lost(1006);
  for (const [key, value] of Object.entries({ a: "1", b: LARGE, c: "3", d: LARGE, e: "5" })) {
    offline.push(add(key, value));
  }
  const [, large] = offline.pushes;
  offline.open();
  offline.receive({ ...JOINED, max_frame: 500 });
  expect(pushes(offline.takeFrames())).toEqual([
    [1, ["/a"]],
    [2, ["/c"]],
    [3, ["/e"]],
  ]);
  const refused = offline.takeEvents().filter((event) => event.type === "refused");
  expect(refused.map(({ error }) => error.code)).toEqual(["too_large", "too_large"]);
  expect(refused[0]?.push).toBe(large);
  expect(offline.shown).toEqual({ n: 1, a: "1", c: "3", e: "5" });
});

test("what was made of a change that is too large is refused with it", () => {
  const offline = session();
  offline.lost(1006);
  offline.push([{ op: "add", path: "/card", value: { text: LARGE } }]);
  offline.push([{ op: "add", path: "/card/done", value: true }]);
  offline.push([{ op: "replace", path: "/n", value: 2 }]);
  offline.open();
  offline.receive({ ...JOINED, max_frame: 500 });
  expect(pushes(offline.takeFrames())).toEqual([[1, ["/n"]]]);
  const codes = offline.takeEvents().map((event) => event.type === "refused" && event.error.code);
  expect(codes).toEqual([false, "too_large", "conflict"]);
});

test("a change that the server has carried out is asked about, however large it was", () => {
  const late = session();
  late.push(add("a", LARGE));
  late.takeFrames();
  late.lost(1006);
  late.open();
  late.receive({ ...JOINED, version: 2, last_ref: 1, state: { n: 1, a: LARGE }, max_frame: 200 });
  expect(late.takeFrames().map((frame) => [frame.type, JSON.stringify(frame).length < 200])).toEqual([
    ["join", true],
    ["push", true],
  ]);
  late.receive({ type: "ack", ref: 1, version: 2 });
  expect(late.takeEvents()).toMatchObject([{ type: "joined" }, { type: "applied", version: 2 }]);
});

test("a change that is too large is rolled back and told, and its socket lives on", async () => {
  const [client, peer] = await joined();
  const refusals = new Arrivals<{ error: PlaitError }>();
  client.onRefused((refusal) => refusals.put(refusal));
  await expect(client.update("/text", LARGE)).rejects.toMatchObject({ code: "too_large" });
  expect((await refusals.take()).error).toBeInstanceOf(PlaitError);
  expect([client.state, client.pending, client.status]).toEqual([{ n: 1 }, 0, "online"]);
  void client.update("/n", 2);
  expect(await peer.take("push")).toMatchObject({ ref: 1, ops: [{ path: "/n" }] });
});

test("a call or stream with arguments that are too large fails, before the first join too", async () => {
  const client = open();
  const early = client.call("add", LARGE);
  const peer = await server.peer();
  await peer.join({ state: { n: 1 }, max_frame: 500 });
  await expect(early).rejects.toMatchObject({ code: "too_large" });
  await expect(client.rpc["add"]?.(LARGE)).rejects.toMatchObject({ code: "too_large" });
  await expect(client.stream("add", LARGE).next()).rejects.toMatchObject({ code: "too_large" });
  void client.call("add", "Ada");
  expect((await peer.take("call")).args).toEqual(["Ada"]);
});

test("a presence that is too large throws, and the one before it stays", async () => {
  const [client, peer] = await joined();
  client.setPresence({ at: 1 });
  expect(() => client.setPresence({ at: LARGE })).toThrow(PlaitError);
  expect((await peer.take("presence")).data).toEqual({ at: 1 });
  peer.drop();
  const again = await server.peer();
  await again.join({ state: { n: 1 }, max_frame: 500 });
  expect((await again.take("presence")).data).toEqual({ at: 1 });
});

test("a message that is too large throws, as bytes too", async () => {
  const [client, peer] = await joined();
  expect(() => client.send(LARGE)).toThrow(PlaitError);
  expect(() => client.send(new Uint8Array(501))).toThrow(PlaitError);
  client.send(new Uint8Array(500));
  expect(await peer.bytes.take()).toHaveLength(500);
  expect(peer.frames.waiting).toEqual([]);
});

test("of a message that is too large nothing is sent, nor is the count of messages begun", () => {
  const limited = new Session({ client: "c1", now: () => 0 });
  limited.open();
  limited.receive({ ...JOINED, state: { n: 1 }, max_frame: 500 });
  limited.takeFrames();
  expect(() => limited.send({ type: "message", data: LARGE })).toThrow(PlaitError);
  expect(limited.takeFrames()).toEqual([]);
  limited.send({ type: "message", data: "short" });
  expect(limited.takeFrames()).toEqual([
    { type: "ping", messages: 0 },
    { type: "message", data: "short" },
  ]);
});

test("a presence and messages that turn out at the join to be too large are heard of, and not sent", async () => {
  const errors = await uncaught("uncaughtException", async (heard) => {
    const client = open();
    client.setPresence({ at: LARGE });
    client.send(LARGE);
    client.send(new Uint8Array(501));
    client.send("short");
    const peer = await server.peer();
    await peer.join({ state: { n: 1 }, max_frame: 500 });
    expect((await peer.take("message")).data).toBe("short");
    for (let time = 0; time < 3; time++) await heard.take();
    peer.drop();
    const again = await server.peer();
    await again.join({ state: { n: 1 }, max_frame: 500 });
    client.send("again");
    expect((await again.take("message")).data).toBe("again");
    again.drop();
    const large = await server.peer();
    await large.join({ state: { n: 1 } });
    expect((await large.take("presence")).data).toEqual({ at: LARGE });
  });
  expect(errors).toEqual([]);
});
