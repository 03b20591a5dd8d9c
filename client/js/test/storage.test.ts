import { afterEach, expect, test, vi } from "vitest";
import { WebSocket } from "ws";

import { ThreadClient } from "../src/full.js";
import type { Backlog } from "../src/backlog.js";
import type { StorageLike } from "../src/index.js";
import { DuplicateCheck, claimSlot } from "../src/storage.js";
import type { Peer } from "./server.js";
import { Locks, MemoryStorage } from "./storages.js";
import { clients, server, serving } from "./serving.js";

serving();

const checks: DuplicateCheck[] = [];

afterEach(() => {
  vi.unstubAllGlobals();
  checks.splice(0).forEach((each) => each.close());
});

/** Opens the check of a page that uses this client id. */
function duplicates(client: string | undefined, isClosing = () => false): DuplicateCheck {
  const check = new DuplicateCheck("key", () => client, isClosing);
  checks.push(check);
  return check;
}

/** Waits until what pages have asked each other so far is answered. */
async function areAnswered(): Promise<void> {
  duplicates("another");
  await duplicates("another").hasDuplicate();
}

function open(storage: StorageLike): ThreadClient {
  const client = new ThreadClient({
    host: server.host,
    kind: "note",
    name: "a",
    storage,
    WebSocket,
  });
  clients.push(client);
  return client;
}

/** Joins a client to its thread; returns it with the other end of its socket. */
async function join(client: ThreadClient): Promise<[ThreadClient, Peer]> {
  const peer = await server.peer();
  await peer.join({ state: { n: 1 } });
  await client.ready;
  return [client, peer];
}

test("what was changed before a page was left is sent by the next one, as the same client", async () => {
  const storage = new MemoryStorage();
  const first = open(storage);
  const peer = await server.peer();
  const { client } = await peer.join({ state: { n: 1 } });
  await first.ready;
  void first.update("/n", 2);
  void first.update("/n", 3);
  await peer.take("push");
  first.close();

  const second = open(storage);
  const again = await server.peer();
  const join = await again.take("join");
  expect(join).toEqual({ type: "join", client, have: ["e", 1] });
  expect([second.state, second.pending, second.status]).toEqual([{ n: 3 }, 2, "connecting"]);
  again.send({
    type: "joined",
    connection: "s1",
    thread: "note/a",
    epoch: "e",
    version: 2,
    last_ref: 1,
    ops: [{ op: "replace", path: "/n", value: 2 }],
  });
  expect(await again.take("push")).toMatchObject({ ref: 1 });
  expect(await again.take("push")).toMatchObject({
    ref: 2,
    base: ["e", 2],
    ops: [{ op: "replace", path: "/n", value: 3 }],
  });
  again.send({ type: "ack", ref: 1, version: 2 });
  again.send({ type: "ack", ref: 2, version: 3 });
  await second.waitFor(() => second.pending === 0);
  expect(second.state).toEqual({ n: 3 });
  void second.update("/n", 4);
  expect(await again.take("push")).toMatchObject({ ref: 3 });
});

test("what is asked for before a queue is found comes after it, and before what is asked for later", async () => {
  const storage = new MemoryStorage();
  const [first] = await join(open(storage));
  void first.update("/n", "kept");
  first.close();

  const second = open(storage);
  void second.call("before");
  void second.update("/n", "A");
  void second.call("between");
  second.send("said");
  expect([second.state, second.pending]).toEqual([undefined, 1]);
  await second.waitFor((state) => state.n === "A");
  expect([second.status, second.pending]).toEqual(["connecting", 2]);
  void second.update("/n", "B");
  void second.call("after");
  const peer = await server.peer();
  await peer.join({ state: { n: 1 } });
  const frames = [];
  for (let each = 0; each < 7; each++) frames.push(await peer.frames.take());
  const told = frames.map((frame) => (frame.type === "push" ? frame.ops?.[0] : frame));
  expect(told).toMatchObject([
    { value: "kept" },
    { method: "before" },
    { value: "A" },
    { method: "between" },
    { data: "said" },
    { value: "B" },
    { method: "after" },
  ]);
  expect(second.state).toEqual({ n: "B" });
});

test("a push is kept before it is sent", async () => {
  const storage = new MemoryStorage();
  const [client] = await join(open(storage));
  void client.update("/n", 2);
  expect(JSON.parse(storage.getItem(`plait:${server.host}/threads/note/a`) ?? "")).toMatchObject({
    next: 2,
    fold: { pushes: [{ ref: 1 }] },
  });
});

test("a storage that is full keeps nothing rather than an old queue", async () => {
  const storage = new MemoryStorage();
  const [client, peer] = await join(open(storage));
  void client.update("/n", 2);
  storage.isFull = true;
  void client.update("/n", 3);
  expect(storage.items.size).toBe(0);
  expect(await peer.take("push")).toMatchObject({ ref: 1 });
  expect(await peer.take("push")).toMatchObject({ ref: 2 });
});

test("what is not a backlog is as if nothing were there", async () => {
  const storage = new MemoryStorage();
  for (const text of ["", "null", "{}", '{"client": 1}', "no JSON"]) {
    storage.setItem("key", text);
    expect((await claimSlot(storage, "key", undefined)).read()).toBeUndefined();
  }
});

test("a backlog with a part that is not right is as if nothing were there", async () => {
  const storage = new MemoryStorage();
  const place = await claimSlot(storage, "key", undefined);
  const push = { ref: 1, made: ["e", 1], ops: [{ op: "add", path: "/n", value: 1 }], isOrphan: false };
  const fold = { at: ["e", 1], confirmed: {}, pushes: [push, { ...push, ref: 2 }] };
  const backlog = { client: "x", next: 3, fold };
  const op = (more: object) => ({ fold: { ...fold, pushes: [{ ...push, ops: [{ ...push.ops[0], ...more }] }] } });
  storage.setItem("key", JSON.stringify(backlog));
  expect(place.read()).toEqual(backlog);
  for (const part of [
    { client: "" },
    { next: 0 },
    { next: 2 },
    { fold: null },
    { fold: {} },
    { fold: { ...fold, at: "zz" } },
    { fold: { ...fold, confirmed: undefined } },
    { fold: { ...fold, confirmed: "\ud83d" } },
    { fold: { ...fold, pushes: [push, push] } },
    { fold: { ...fold, pushes: [{ ...push, ops: undefined }] } },
    { fold: { ...fold, pushes: [{ ...push, made: 1 }] } },
    { fold: { ...fold, pushes: [{ ...push, lostOn: 1 }] } },
    { fold: { ...fold, pushes: [{ ...push, isSettled: 1 }] } },
    { fold: { ...fold, pushes: [{ ...push, isSent: 1 }] } },
    op({ op: "move" }),
    op({ path: "n" }),
    op({ path: "/\ud83d" }),
    op({ value: undefined }),
    op({ value: "\ud83d" }),
  ]) {
    storage.setItem("key", JSON.stringify({ ...backlog, ...part }));
    expect(place.read(), JSON.stringify(part)).toBeUndefined();
  }
});

test("a client whose storage refuses everything works without it", async () => {
  const refuse = () => {
    throw new DOMException("no", "SecurityError");
  };
  const [client, peer] = await join(open({ getItem: refuse, setItem: refuse, removeItem: refuse }));
  const version = client.update("/n", 2);
  peer.send({ type: "ack", ref: (await peer.take("push")).ref, version: 2 });
  expect(await version).toBe(2);
});

test("a client that is given no lock works without its storage", async () => {
  const locks = { request: () => Promise.reject(new DOMException("no", "SecurityError")) };
  vi.stubGlobal("navigator", { locks });
  const storage = new MemoryStorage();
  const [client, peer] = await join(open(storage));
  void client.update("/n", 2);
  expect(await peer.take("push")).toMatchObject({ ref: 1 });
  expect(storage.items.size).toBe(0);
});

test("two clients of one storage have a place each, and a place that is released is taken again", async () => {
  const storage = new MemoryStorage();
  const locks = new Locks();
  const first = await claimSlot(storage, "key", locks);
  const second = await claimSlot(storage, "key", locks);
  first.write({ client: "one", next: 1 });
  second.write({ client: "two", next: 1 });
  expect([...storage.items.keys()]).toEqual(["key", "key#2"]);
  first.release();
  await Promise.resolve();
  const third = await claimSlot(storage, "key", locks);
  expect(third.read()).toEqual({ client: "one", next: 1 });
});

test("a page that comes while the one before it still holds its queue waits for it a moment", async () => {
  const storage = new MemoryStorage();
  const locks = new Locks();
  const before = await claimSlot(storage, "key", locks);
  before.write({ client: "one", next: 2, fold: { at: ["e", 1], confirmed: {}, pushes: [] } });
  const claiming = claimSlot(storage, "key", locks);
  before.release();
  expect((await claiming).read()).toMatchObject({ client: "one" });
});

test("a queue that is held for longer belongs to another tab", async () => {
  const storage = new MemoryStorage();
  const locks = new Locks();
  (await claimSlot(storage, "key", locks)).write({
    client: "one",
    next: 2,
    fold: { at: ["e", 1], confirmed: {}, pushes: [] },
  });
  expect((await claimSlot(storage, "key", locks)).read()).toBeUndefined();
});

test("where there are no locks, a tab that is a copy of another one is another client, with nothing to send", async () => {
  const storage = new MemoryStorage();
  const [first, peer] = await join(open(storage));
  peer.drop();
  await new Promise<void>((resolve) => first.subscribe(() => first.status === "offline" && resolve()));
  void first.update("/n", 2);
  const copied = new MemoryStorage();
  for (const [key, text] of storage.items) copied.setItem(key, text);

  const again = await server.peer();
  const { client } = await again.join({ state: { n: 1 } });
  const [second, other] = await join(open(copied));
  expect([second.state, second.pending, first.pending]).toEqual([{ n: 1 }, 0, 1]);
  void second.update("/n", 3);
  expect((await other.take("push")).ops).toMatchObject([{ value: 3 }]);
  const ids = [storage, copied].map(({ items }) => (JSON.parse([...items.values()][0] as string) as Backlog).client);
  expect([ids[0], ids[0] === ids[1]]).toEqual([client, false]);
});

test("where there are no locks, a client waits for the one before it, which is closing, and goes on as that", async () => {
  const storage = new MemoryStorage();
  const first = open(storage);
  const peer = await server.peer();
  const { client } = await peer.join({ state: { n: 1 } });
  await first.ready;
  void first.update("/n", 2);
  await peer.take("push");
  // The client waits until the server has taken this.
  peer.taken = 0;
  first.send("bye");
  void first.close();

  const second = open(storage);
  await areAnswered();
  peer.drop();
  const again = await server.peer();
  expect(await again.take("join")).toEqual({ type: "join", client, have: ["e", 1] });
  expect([second.state, second.pending]).toEqual([{ n: 2 }, 1]);
});

test("a slot with a queue that was left is claimed before an empty one", async () => {
  const storage = new MemoryStorage();
  const locks = new Locks();
  storage.setItem("key", JSON.stringify({ client: "one", next: 1 }));
  storage.setItem("key#3", JSON.stringify({ client: "three", next: 2, fold: { at: ["e", 0], pushes: [] } }));
  expect((await claimSlot(storage, "key", locks)).read()).toMatchObject({ client: "three" });
  expect((await claimSlot(storage, "key", locks)).read()).toMatchObject({ client: "one" });
});

test("more clients than there are slots keep nothing", async () => {
  const storage = new MemoryStorage();
  const locks = new Locks();
  for (let slot = 0; slot < 64; slot++) (await claimSlot(storage, "key", locks)).write({ client: "x", next: 1 });
  expect([storage.items.size, [...storage.items.keys()].at(-1)]).toEqual([64, "key#64"]);
  await expect(claimSlot(storage, "key", locks)).rejects.toThrow("taken");
});

test("of two pages that ask at the same time for one client, one has it; a page that asks later does not", async () => {
  const both = [duplicates("one"), duplicates("one")];
  const found = await Promise.all(both.map((each) => each.hasDuplicate()));
  expect(found.sort()).toEqual([false, true]);
  expect(await duplicates("one").hasDuplicate()).toBe(true);
});

test("pages with other clients, or with none, are no duplicates", async () => {
  const pages = [duplicates("one"), duplicates("two"), duplicates(undefined)];
  expect(await Promise.all(pages.map((each) => each.hasDuplicate()))).toEqual([false, false, false]);
});

test("a page that is closing is waited for; one that was closed while it asks itself, too", async () => {
  const closing = duplicates("one", () => true);
  let isClosed = false;
  const second = duplicates("one", () => isClosed);
  const asking = second.hasDuplicate();
  await areAnswered();
  isClosed = true;
  const third = duplicates("one").hasDuplicate();
  await areAnswered();
  closing.close();
  await asking;
  second.close();
  expect(await third).toBe(false);
});

test("a page that is closing is asked again, until it is closed", async () => {
  let asked = 0;
  const closing = duplicates("one", () => {
    if (++asked === 2) queueMicrotask(() => closing.close());
    return true;
  });
  expect(await duplicates("one").hasDuplicate()).toBe(false);
  expect(asked).toBe(2);
});

test("a page that stays is found beside one that is closing", async () => {
  duplicates("one", () => true);
  duplicates("one");
  expect(await duplicates("one").hasDuplicate()).toBe(true);
});
