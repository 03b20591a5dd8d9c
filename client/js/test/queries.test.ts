/** The queries of a thread, as a page follows them. */

import { expect, test } from "vitest";
import { WebSocket } from "ws";

import { PlaitError, ThreadClient, queries } from "../src/index.js";
import type { ThreadOptions } from "../src/index.js";
import type { Joined } from "../src/protocol.js";
import { Arrivals } from "./server.js";
import type { Peer } from "./server.js";
import { clients, server, serving } from "./serving.js";

serving();

interface Order {
  id: number;
  item: string;
}

interface ShopRpcs {
  open_orders: { query(customer: string): Order[] };
  add(item: string): void;
  total: { query(filter?: { from: number; to: number }): number };
}

type Shop = ThreadClient<{ n: number }, ShopRpcs>;

const TEA = { id: 1, item: "tea" };
const INK = { id: 2, item: "ink" };

function newShop(options: Partial<ThreadOptions<{ n: number }>> = {}): Shop {
  const shop: Shop = new ThreadClient({ host: server.host, kind: "shop", name: "a", WebSocket, queries, ...options });
  clients.push(shop);
  return shop;
}

async function joined(options: Partial<ThreadOptions<{ n: number }>> = {}, frame: Partial<Joined> = {}) {
  const shop = newShop(options);
  const peer = await server.peer();
  await peer.join({ state: { n: 1 }, ...frame });
  await shop.ready;
  return [shop, peer] as const;
}

/** What a listener is told: the result and the error's code. */
class Told extends Arrivals<[unknown, string | undefined]> {
  readonly listener = (data: unknown, error: PlaitError | undefined) => this.put([data, error?.code]);
}

/** Follows the orders of a customer; returns what is told of them, the ref of the call, and the function to end it. */
async function followed(shop: Shop, peer: Peer, customer = "c1") {
  const told = new Told();
  const stop = shop.query("open_orders", [customer], told.listener);
  const { ref, ...call } = await peer.take("call");
  expect(call).toEqual({ type: "call", method: "open_orders", args: [customer], have: "" });
  return { told, stop, ref, send: (value: object) => send(peer, ref, value) };
}

function send(peer: Peer, ref: number, value: object): void {
  peer.send({ type: "result", ref, done: false, value: { at: 1, tag: "t", ...value } } as never);
}

/** The next frame of the client, after which nothing was sent that would have come before. */
async function nextCall(shop: Shop, peer: Peer): Promise<string> {
  void (shop as unknown as ThreadClient).call("total").catch(() => undefined);
  return (await peer.take("call")).method;
}

test("a listener is told of each result, with its changes; what has not changed stays the same objects", async () => {
  const [shop, peer] = await joined();
  const { told, send } = await followed(shop, peer);
  send({ rows: [TEA, INK] });
  const [first] = (await told.take()) as [Order[], undefined];
  expect(first).toEqual([TEA, INK]);
  expect([first, first[0]].every(Object.isFrozen)).toBe(true);
  send({ tag: "t2", ops: [{ op: "replace", path: "/1/item", value: "red ink" }] });
  const [second] = (await told.take()) as [Order[], undefined];
  expect(second).toEqual([TEA, { id: 2, item: "red ink" }]);
  expect(second[0]).toBe(first[0]);
  expect(Object.isFrozen(second[1])).toBe(true);
  send({ tag: "t3", rows: [TEA, INK] });
  const [third] = (await told.take()) as [Order[], undefined];
  expect(third).toEqual([TEA, INK]);
  expect(third[0]).toBe(first[0]);
});

test("all listeners of a query with the same arguments share one call, and others have calls of their own", async () => {
  const [shop, peer] = await joined();
  const [first, second, other] = [new Told(), new Told(), new Told()];
  shop.query("total", [{ from: 1, to: 2 }], first.listener);
  const { ref } = await peer.take("call");
  send(peer, ref, { rows: 7 });
  expect(await first.take()).toEqual([7, undefined]);
  let isLate = false;
  shop.query("total", [{ to: 2, from: 1 }], (data, error) => {
    expect(isLate).toBe(true);
    second.listener(data, error);
  });
  isLate = true;
  expect(await second.take()).toEqual([7, undefined]);
  shop.query("total", [{ from: 1, to: 3 }], other.listener);
  expect((await peer.take("call")).args).toEqual([{ from: 1, to: 3 }]);
  send(peer, ref, { tag: "t2", rows: 8 });
  expect([await first.take(), await second.take()]).toEqual([
    [8, undefined],
    [8, undefined],
  ]);
  expect(other.waiting).toEqual([]);
});

test("null and 0 are results", async () => {
  const [shop, peer] = await joined();
  const { told, send } = await followed(shop, peer);
  send({ rows: null });
  expect(await told.take()).toEqual([null, undefined]);
  send({ tag: "t2", rows: 0 });
  expect(await told.take()).toEqual([0, undefined]);
});

test("after a failed run the last result stays, and the query goes on", async () => {
  const [shop, peer] = await joined();
  const { told, send } = await followed(shop, peer);
  send({ tag: undefined, error: { code: "sql_error", message: "no such table" } });
  expect(await told.take()).toEqual([undefined, "sql_error"]);
  send({ rows: [TEA] });
  expect(await told.take()).toEqual([[TEA], undefined]);
  send({ tag: undefined, error: { code: "sql_error", message: "no such table" } });
  expect(await told.take()).toEqual([[TEA], "sql_error"]);
  send({});
  expect(await told.take()).toEqual([[TEA], undefined]);
});

test("after a lost connection a query is called again, and a result that is the same is not told again", async () => {
  const [shop, peer] = await joined();
  const { told, send: sendFirst } = await followed(shop, peer);
  sendFirst({ rows: [TEA] });
  const [rows] = await told.take();
  peer.drop();
  const second = await server.peer();
  await second.join();
  const { ref, have } = await second.take("call");
  expect(have).toBe("t");
  send(second, ref, {});
  send(second, ref, { tag: "t2", ops: [{ op: "add", path: "/-", value: INK }] });
  const [next] = (await told.take()) as [Order[], undefined];
  expect(next).toEqual([TEA, INK]);
  expect(next[0]).toBe((rows as Order[])[0]);
});

test("a query is followed as soon as the thread is joined", async () => {
  const shop = newShop({ connect: false });
  const told = new Told();
  shop.query("total", [], told.listener);
  shop.connect();
  const peer = await server.peer();
  await peer.join({ state: { n: 1 } });
  send(peer, (await peer.take("call")).ref, { rows: 3 });
  expect(await told.take()).toEqual([3, undefined]);
});

test("a connection that may not change the state follows queries", async () => {
  const [shop, peer] = await joined({}, { readonly: true });
  const { told, send } = await followed(shop, peer);
  send({ rows: [] });
  expect(await told.take()).toEqual([[], undefined]);
  expect(shop.readonly).toBe(true);
});

test("a refused query is not called again until all its listeners have left", async () => {
  const [shop, peer] = await joined();
  const { told, stop, ref, send: sendFirst } = await followed(shop, peer);
  sendFirst({ rows: [TEA] });
  await told.take();
  peer.send({ type: "error", ref, code: "forbidden", message: "no longer" });
  expect(await told.take()).toEqual([[TEA], "forbidden"]);
  peer.drop();
  const second = await server.peer();
  await second.join();
  const late = new Told();
  const stopLate = shop.query("open_orders", ["c1"], late.listener);
  expect(await late.take()).toEqual([[TEA], "forbidden"]);
  expect(await nextCall(shop, second)).toBe("total");
  stop();
  stopLate();
  await Promise.resolve();
  await followed(shop, second);
});

test("a query ends when its last listener has left, and one that comes at once keeps it", async () => {
  const [shop, peer] = await joined();
  const { told, stop, ref, send } = await followed(shop, peer);
  send({ rows: [TEA] });
  await told.take();
  stop();
  const again = new Told();
  const stopAgain = shop.query("open_orders", ["c1"], again.listener);
  expect(await again.take()).toEqual([[TEA], undefined]);
  expect(await nextCall(shop, peer)).toBe("total");
  stopAgain();
  stopAgain();
  expect(await peer.take("cancel")).toEqual({ type: "cancel", ref });
  send({ rows: [] });
  const next = await followed(shop, peer);
  expect([next.told.waiting, again.waiting, told.waiting]).toEqual([[], [], []]);
});

test("a listener that has left is not called, not even with what was known", async () => {
  const [shop, peer] = await joined();
  const { told, send } = await followed(shop, peer);
  send({ rows: [TEA] });
  await told.take();
  const left = new Told();
  shop.query("open_orders", ["c1"], left.listener)();
  send({ tag: "t2", rows: [] });
  expect(await told.take()).toEqual([[], undefined]);
  expect(left.waiting).toEqual([]);
});

test("a difference that does not fit is not shown, and the query is called for the whole result", async () => {
  const [shop, peer] = await joined();
  const { told, ref, send: sendFirst } = await followed(shop, peer);
  sendFirst({ rows: [TEA] });
  await told.take();
  sendFirst({ tag: "t2", ops: [{ op: "remove", path: "/3" }] });
  expect((await peer.take("cancel")).ref).toBe(ref);
  const again = await peer.take("call");
  expect(again.have).toBe("");
  sendFirst({ tag: "t3", rows: [] });
  send(peer, again.ref, { tag: "t2", rows: [INK] });
  expect(await told.take()).toEqual([[INK], undefined]);
});

test("a method that is no query ends what follows it", async () => {
  const [shop, peer] = await joined();
  const { told, ref } = await followed(shop, peer);
  peer.send({ type: "result", ref, value: [TEA], done: true });
  expect(await told.take()).toEqual([undefined, "method_not_found"]);
});

test("queries end with their client, and those of a closed client tell that it is closed", async () => {
  const [shop, peer] = await joined();
  const { told, send } = await followed(shop, peer);
  send({ rows: [TEA] });
  await told.take();
  const closing = shop.close();
  expect(await told.take()).toEqual([[TEA], "closed"]);
  await closing;
  const late = new Told();
  shop.query("total", [], late.listener);
  expect(await late.take()).toEqual([undefined, "closed"]);
});

test("a query that waits for a connection ends with its client, too", async () => {
  const shop = newShop({ connect: false });
  const told = new Told();
  shop.query("total", [], told.listener);
  await shop.close();
  expect(await told.take()).toEqual([undefined, "closed"]);
});

test("arguments that JSON cannot hold throw a TypeError", () => {
  const shop = newShop({ connect: false }) as unknown as ThreadClient;
  expect(() => shop.query("total", [new Map()], () => undefined)).toThrow(TypeError);
});
