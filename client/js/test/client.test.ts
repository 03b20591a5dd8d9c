import { getEventListeners } from "node:events";
import { inspect } from "node:util";

import { expect, test, vi } from "vitest";
import { WebSocket } from "ws";

import { PlaitError, ThreadClient } from "../src/full.js";
import type { FullOptions as ThreadOptions } from "../src/full.js";
import type { Joined } from "../src/protocol.js";
import { Arrivals } from "./server.js";
import type { Peer } from "./server.js";
import { clients, server, serving } from "./serving.js";
import { MemoryStorage } from "./storages.js";
import { uncaught } from "./uncaught.js";

interface Note {
  n: number;
  list: string[];
  title?: string;
}

interface Rpcs {
  add_player(name: string): number;
  count(to: number): AsyncIterable<number>;
  "run:support"(input: { message: string }): string;
  "run:count"(upto?: number): AsyncIterable<number>;
}

serving();

function open(options: Partial<ThreadOptions<Note>> = {}): ThreadClient<Note, Rpcs> {
  const client = new ThreadClient<Note, Rpcs>({
    host: server.host,
    kind: "note",
    name: "a",
    WebSocket,
    ...options,
  });
  clients.push(client as unknown as ThreadClient);
  return client;
}

/** A client that has joined a note, and the other end of its socket. */
async function joined(
  options: Partial<ThreadOptions<Note>> = {},
  frame: Partial<Joined> = {},
): Promise<[ThreadClient<Note, Rpcs>, Peer]> {
  const client = open(options);
  const peer = await server.peer();
  await peer.join({ state: { n: 1, list: ["a"] }, ...frame });
  await client.ready;
  return [client, peer];
}

/** Resolves as soon as `holds`, which is asked whenever the client says that something reads differently. */
function until(client: ThreadClient<any, any>, holds: () => boolean): Promise<void> {
  return new Promise((resolve) => {
    const look = () => {
      if (!holds()) return;
      unsubscribe();
      resolve();
    };
    const unsubscribe = client.subscribe(look);
    look();
  });
}

test("a client joins its thread and tells what it was told", async () => {
  const client = open({ name: "a/b c", client: "me", schema: "9c41", token: () => Promise.resolve("secret") });
  expect([client.status, client.state, client.version]).toEqual(["connecting", undefined, undefined]);
  const peer = await server.peer();
  expect(peer.url).toBe("/threads/note/a%2Fb%20c");
  const join = await peer.join({ state: { n: 1, list: [] }, version: 43, readonly: true });
  expect(join).toEqual({ type: "join", client: "me", schema: "9c41", token: "secret" });
  await client.ready;
  expect([client.status, client.state, client.version]).toEqual(["online", { n: 1, list: [] }, 43]);
  expect([client.connection, client.readonly, client.pending]).toEqual(["s1", true, 0]);
});

test("a change is shown at once and resolves to its version", async () => {
  const [client, peer] = await joined();
  const version = client.set((note) => ({ ...note, n: note.n + 1 }));
  expect([client.state?.n, client.confirmed?.n, client.pending]).toEqual([2, 1, 1]);
  const push = await peer.take("push");
  expect(push.ops).toEqual([{ op: "replace", path: "/n", value: 2 }]);
  const shown = client.state;
  peer.send({ type: "ack", ref: push.ref, version: 2 });
  expect(await version).toBe(2);
  expect(client.state).toBe(shown);
  expect([client.version, client.pending]).toEqual([2, 0]);
});

test("an edit sends what it has changed, and an update one place", async () => {
  const [client, peer] = await joined();
  void client.edit((draft) => {
    draft.list.push("b");
    draft.title = "T";
  });
  expect((await peer.take("push")).ops).toEqual([
    { op: "add", path: "/list/1", value: "b" },
    { op: "add", path: "/title", value: "T" },
  ]);
  void client.update("/title", "U");
  void client.update("/list/-", "c");
  expect((await peer.take("push")).ops).toEqual([{ op: "replace", path: "/title", value: "U" }]);
  expect((await peer.take("push")).ops).toEqual([{ op: "add", path: "/list/-", value: "c" }]);
  expect(client.state).toEqual({ n: 1, list: ["a", "b", "c"], title: "U" });
});

test("the elements of a list are told apart by the member that the server names", async () => {
  const [client, peer] = await joined(
    {},
    { state: { n: 1, list: [{ slug: "a" }, { slug: "b" }] }, list_keys: { "/list": "slug" } },
  );
  void client.set({ n: 1, list: [{ slug: "b", n: 1 }] as never[] });
  expect((await peer.take("push")).ops).toEqual([
    { op: "remove", path: "/list/0" },
    { op: "add", path: "/list/0/n", value: 1 },
  ]);
});

test("a change of many places replaces the state", async () => {
  const list = Array.from({ length: 4_001 }, (_, n) => ({ id: `${n}`, n }));
  const [client, peer] = await joined({}, { state: { n: 1, list } });
  const next = { n: 1, list: list.map((each) => ({ ...each, n: each.n + 1 })) as never[] };
  void client.set(next);
  expect((await peer.take("push")).ops).toEqual([{ op: "replace", path: "", value: next }]);
  void client.set((state) => {
    void client.update("/title", "T");
    return { ...state, list: [] };
  });
  expect((await peer.take("push")).ops).toEqual([{ op: "add", path: "/title", value: "T" }]);
  expect((await peer.take("push")).ops).toEqual([{ op: "replace", path: "", value: { n: 1, list: [], title: "T" } }]);
});

test("a change that is made within another one stays, before it", async () => {
  const [client, peer] = await joined();
  const log = (text: string) => client.edit((draft) => void draft.list.push(text));
  void client.edit((draft) => {
    void log("inner");
    draft.list.push("outer");
    draft.n = 2;
  });
  void client.set((note) => {
    void client.update("/title", "inner");
    return { ...note, n: 3 };
  });
  const ops = [];
  for (let each = 0; each < 4; each++) ops.push((await peer.take("push")).ops);
  expect(ops).toEqual([
    [{ op: "add", path: "/list/1", value: "inner" }],
    [
      { op: "replace", path: "/n", value: 2 },
      { op: "add", path: "/list/2", value: "outer" },
    ],
    [{ op: "add", path: "/title", value: "inner" }],
    [{ op: "replace", path: "/n", value: 3 }],
  ]);
  expect(client.state).toEqual({ n: 3, list: ["a", "inner", "outer"], title: "inner" });
});

test("a change to what another one that is made within it takes away is refused", async () => {
  const [client, peer] = await joined({}, { state: { n: 1, list: [{ text: "a" }] } });
  const outer = client.set((note) => {
    void client.update("/list", []);
    return { ...note, list: [{ text: "b" }] as never };
  });
  await expect(outer).rejects.toMatchObject({ code: "bad_state" });
  expect([client.state, client.pending]).toEqual([{ n: 1, list: [] }, 1]);
  expect((await peer.take("push")).ops).toEqual([{ op: "replace", path: "/list", value: [] }]);
});

test("setting what is there already resolves to the version that has it", async () => {
  const [client, peer] = await joined();
  expect(await client.set({ n: 1, list: ["a"] })).toBe(1);
  expect(peer.frames.waiting).toEqual([]);
});

test("changes that are asked for before the first join are made on what it tells", async () => {
  const client = open();
  const version = client.set((note) => ({ ...note, n: note.n + 10 }));
  expect(client.pending).toBe(1);
  const peer = await server.peer();
  await peer.join({ state: { n: 5, list: [] }, version: 7 });
  const push = await peer.take("push");
  expect(push).toMatchObject({ base: ["e", 7], ops: [{ op: "replace", path: "/n", value: 15 }] });
  peer.send({ type: "ack", ref: push.ref, version: 8 });
  expect(await version).toBe(8);
});

test("a refused change rolls back, rejects and is told, whether or not it is awaited", async () => {
  const [client, peer] = await joined();
  const refusals = new Arrivals<{ error: PlaitError }>();
  client.onRefused((refusal) => refusals.put(refusal));
  void client.update("/n", -1);
  const awaited = client.update("/n", -2);
  for (const ref of [1, 2]) {
    peer.send({ type: "nack", ref, code: "rejected", message: "n cannot be negative", path: "/n", version: 1 });
  }
  await expect(awaited).rejects.toMatchObject({ code: "rejected", message: "n cannot be negative", path: "/n" });
  await expect(awaited).rejects.toBeInstanceOf(PlaitError);
  expect((await refusals.take()).error.code).toBe("rejected");
  expect((await refusals.take()).error.code).toBe("rejected");
  expect(client.state?.n).toBe(1);
});

test("keys that mean something else in JavaScript are set, edited and removed like any others", async () => {
  const [client, peer] = await joined();
  void client.set(JSON.parse('{"n": 1, "list": [], "__proto__": {"polluted": 1}, "constructor": {"prototype": 2}}'));
  void client.update("/__proto__/polluted" as string, 3);
  void client.edit((draft) => {
    const odd = draft as unknown as Record<string, Record<string, unknown>>;
    odd["constructor"]!["prototype"] = 4;
    odd["prototype"] = {};
    delete odd["prototype"];
  });
  expect(JSON.stringify(client.state)).toBe(
    '{"n":1,"list":[],"__proto__":{"polluted":3},"constructor":{"prototype":4}}',
  );
  void client.update("/__proto__" as string, 5);
  expect(Object.getPrototypeOf(client.state)).toBe(Object.prototype);
  expect(({} as { polluted?: unknown }).polluted).toBeUndefined();
  const paths = [];
  for (let each = 0; each < 4; each++)
    paths.push((await peer.take("push")).ops?.map(({ op, path }) => `${op} ${path}`));
  expect(paths.slice(1)).toEqual([
    ["replace /__proto__/polluted"],
    ["replace /constructor/prototype"],
    ["replace /__proto__"],
  ]);
});

test("a refusal without a listener that is not awaited is told to the app, and shown where the app does not listen", async () => {
  const [client, peer] = await joined();
  const shown: unknown[] = [];
  const spy = vi.spyOn(console, "error").mockImplementation((...line) => {
    // Clients of other tests may still be closing.
    if ((line[1] as PlaitError).code !== "closed") shown.push(line);
  });
  const refuse = (ref: number) => peer.send({ type: "nack", ref, code: "rejected", message: "no", version: 1 });
  const told = new Arrivals<unknown[]>();
  const unsubscribe = ThreadClient.onRefused((refusal, of) => {
    if (of === (client as unknown)) told.put([refusal.error.code, refusal.ops]);
  });
  void client.update("/n", -1);
  void client.update("/nowhere/x" as string, 1);
  refuse(1);
  expect(await told.take()).toEqual(["bad_state", [{ op: "add", path: "/nowhere/x", value: 1 }]]);
  expect(await told.take()).toEqual(["rejected", [{ op: "replace", path: "/n", value: -1 }]]);
  const awaited = [client.update("/n", -2), client.update("/n", -3).catch((error: PlaitError) => error.code)];
  awaited.push(client.update("/nowhere/x" as string, 1));
  for (const ref of [2, 3]) refuse(ref);
  expect((await Promise.allSettled(awaited)).map(({ status }) => status)).toEqual([
    "rejected",
    "fulfilled",
    "rejected",
  ]);
  const heard = new Arrivals<unknown>();
  const mute = client.onRefused(({ error }) => heard.put(error.code));
  void client.update("/n", -4);
  refuse(4);
  expect(await heard.take()).toBe("rejected");
  mute();
  unsubscribe();
  expect([told.waiting, shown]).toEqual([[], []]);
  void client.update("/n", -5);
  refuse(5);
  await client.set((note) => note);
  await vi.waitFor(() => expect(shown).toMatchObject([[expect.stringContaining("note/a"), { code: "rejected" }]]));
  spy.mockRestore();
});

test("what cannot be done to the state is refused here", async () => {
  const [client, peer] = await joined();
  await expect(client.update("/nowhere/x" as string, 1)).rejects.toMatchObject({ code: "bad_state" });
  await expect(client.set(() => expect.fail("in an updater"))).rejects.toThrow("in an updater");
  expect(peer.frames.waiting).toEqual([]);
  expect(client.state).toEqual({ n: 1, list: ["a"] });
});

test("a change that is not awaited and whose place was removed is told as refused, and is no error", async () => {
  const others = await uncaught("unhandledRejection", async () => {
    const [client, peer] = await joined();
    const refusals: unknown[] = [];
    client.onRefused((refusal) => refusals.push(refusal));
    void client.update("/list/7/done" as string, true);
    await client.set((note) => note);
    expect(refusals).toMatchObject([
      { error: { code: "bad_state" }, ops: [{ op: "add", path: "/list/7/done", value: true }] },
    ]);
    client.send("after");
    await peer.take("message");
  });
  expect(others).toEqual([]);
});

test("changes made while offline are sent when the thread is joined again", async () => {
  const [client, peer] = await joined();
  peer.drop();
  await until(client, () => client.status === "offline");
  const version = client.update("/n", 2);
  expect(client.state?.n).toBe(2);
  const again = await server.peer();
  const join = await again.join({ version: 2, ops: [{ op: "add", path: "/title", value: "theirs" }] });
  expect(join.have).toEqual(["e", 1]);
  const push = await again.take("push");
  expect(push).toMatchObject({ ref: 1, base: ["e", 2], made: ["e", 1] });
  again.send({ type: "ack", ref: 1, version: 3 });
  expect(await version).toBe(3);
  expect(client.state).toEqual({ n: 2, list: ["a"], title: "theirs" });
  expect(client.status).toBe("online");
});

test("a change that a join has answered for is pending no more, though its answer is to come", async () => {
  const [client, peer] = await joined();
  const version = client.update("/n", 2);
  await peer.take("push");
  peer.drop();
  await until(client, () => client.status === "offline");
  expect(client.pending).toBe(1);
  const again = await server.peer();
  await again.join({ version: 2, last_ref: 1, ops: [{ op: "replace", path: "/n", value: 2 }] });
  expect(await again.take("push")).toMatchObject({ ref: 1, ops: [] });
  expect([client.pending, client.state?.n]).toEqual([0, 2]);
  again.send({ type: "ack", ref: 1, version: 2 });
  expect(await version).toBe(2);
});

test("changes of others are told with their authors, when they are shown", async () => {
  const [client, peer] = await joined();
  const told: unknown[] = [];
  client.onChange((change) => told.push({ ...change, n: client.state?.n }));
  peer.send({ type: "change", version: 2, ops: [{ op: "replace", path: "/n", value: 9 }], source: "server" });
  await client.waitFor((note) => note.n === 9);
  expect(told).toEqual([{ version: 2, ops: [{ op: "replace", path: "/n", value: 9 }], source: "server", n: 9 }]);
});

test("changes that come as one, and a state in their place, are told as one change each, without a source", async () => {
  const [client, peer] = await joined();
  const told: unknown[] = [];
  client.onChange((change) => told.push({ ...change, list: client.state?.list }));
  const ops = ["b", "c"].map((value) => ({ op: "add" as const, path: "/list/-", value }));
  peer.send({ type: "changes", from: 1, to: 3, ops });
  peer.send({ type: "snapshot", epoch: "e", version: 9, state: { n: 9, list: ["a", "b", "c"] } });
  await client.waitFor((note) => note.n === 9);
  const list = ["a", "b", "c"];
  expect(told).toEqual([
    { version: 3, ops, source: undefined, list },
    { version: 9, ops: [{ op: "replace", path: "/n", value: 9 }], source: undefined, list },
  ]);
});

test("the first state of a thread is told as a change", async () => {
  const client = open();
  const peer = await server.peer();
  await peer.join({ version: 0 });
  const told = new Arrivals<unknown>();
  client.onChange((change) => told.put(change));
  peer.send({ type: "snapshot", epoch: "e", version: 1, state: { n: 1, list: [] } });
  const state = { op: "replace", path: "", value: { n: 1, list: [] } };
  expect(await told.take()).toEqual({ version: 1, ops: [state], source: undefined });
});

test("a gap makes the client join again, showing what it knew until then", async () => {
  const [client, peer] = await joined();
  peer.send({ type: "change", version: 9, ops: [], source: "server" });
  const again = await server.peer();
  expect(client.state).toEqual({ n: 1, list: ["a"] });
  const join = await again.join({ version: 9, state: { n: 9, list: [] } });
  expect(join.have).toBeUndefined();
  await client.waitFor((note) => note.n === 9);
});

test("a client without a token joins once more when its cookie has expired", async () => {
  const [client, peer] = await joined();
  const change = client.update("/n", 2);
  peer.close(4401, "the token has expired");
  const again = await server.peer();
  expect(client.status).toBe("offline");
  await again.join({ version: 1 });
  const push = await again.take("push");
  again.send({ type: "ack", ref: push.ref, version: 2 });
  expect(await change).toBe(2);
  expect(client.status).toBe("online");
  // Each joined socket has this once: what refuses the new one is final.
  again.close(4401, "the token has expired");
  (await server.peer()).close(4401, "authentication required");
  await until(client, () => client.status === "closed");
  expect(client.error).toMatchObject({ code: "unauthenticated", message: "authentication required" });
  expect(server.peers.waiting).toEqual([]);
});

test("a final code stops the client and says why", async () => {
  const [client, peer] = await joined({ token: "a" });
  const change = client.update("/n", 2);
  const call = client.call("add_player", "Ada");
  peer.close(4401, "the token has expired");
  await until(client, () => client.status === "closed");
  expect(client.error).toMatchObject({ code: "unauthenticated", message: "the token has expired", closeCode: 4401 });
  await expect(change).rejects.toMatchObject({ code: "unauthenticated" });
  await expect(call).rejects.toBe(client.error);
  await expect(client.update("/n", 3)).rejects.toBe(client.error);
  await expect(client.call("add_player", "Ada")).rejects.toBe(client.error);
});

test("a client that is refused at once is never ready", async () => {
  const client = open();
  const early = client.set({ n: 0, list: [] });
  (await server.peer()).close(4404);
  await expect(client.ready).rejects.toMatchObject({ code: "not_found", closeCode: 4404 });
  await expect(early).rejects.toMatchObject({ code: "not_found" });
});

test("closing ends the socket and rejects what waits", async () => {
  const [client, peer] = await joined();
  const waiting = client.waitFor((note) => note.n === 100);
  const call = client.call("add_player", "Ada");
  const stream = client.stream("count", 3);
  client.close();
  await peer.closed.take();
  for (const lost of [call, stream.next(), stream.result]) await expect(lost).rejects.toMatchObject({ code: "closed" });
  await expect(waiting).rejects.toMatchObject({ code: "closed" });
  expect([client.status, client.error]).toEqual(["closed", undefined]);
});

test("closing waits until the changes and messages before it are sent, and takes nothing more", async () => {
  const [client, peer] = await joined();
  const changes = Array.from({ length: 100 }, (_, n) => client.update("/n", n));
  client.send("last");
  const closed = client.close();
  expect(client.status).toBe("closed");
  await expect(client.update("/n", -1)).rejects.toMatchObject({ code: "closed" });
  for (let version = 2; version < 102; version++) {
    peer.send({ type: "ack", ref: (await peer.take("push")).ref, version });
  }
  expect((await peer.take("message")).data).toBe("last");
  expect((await Promise.all(changes)).at(-1)).toBe(101);
  await closed;
  await peer.closed.take();
});

test("closing sends messages that came too fast where a storage keeps changes, too: it keeps no messages", async () => {
  const [client, peer] = await joined({ storage: new MemoryStorage() });
  client.send("a");
  await peer.take("message");
  peer.taken = 0;
  peer.send({ type: "error", code: "rate_limited", message: "", refused: "message", retry_after: 0.05, messages: 0 });
  peer.send({ type: "message", data: "after that" });
  await new Promise((resolve) => client.onMessage(resolve));
  client.send("b");
  const closed = client.close();
  for (const text of ["a", "b"]) expect((await peer.take("message")).data).toBe(text);
  peer.send({ type: "pong", messages: 2 });
  await closed;
});

test("what closing drops is rejected and told as refused: at a loss of the connection, and before there is one", async () => {
  const [client, peer] = await joined();
  const early = open({ connect: false });
  const told: string[] = [];
  for (const each of [client, early]) each.onRefused(({ error }) => told.push(error.code));
  const changes = [client.update("/n", 2), early.update("/n", 3)];
  await peer.take("push");
  const closed = [client.close(), early.close()];
  expect(told).toEqual(["closed"]);
  peer.drop();
  await Promise.all(closed);
  for (const change of changes) await expect(change).rejects.toMatchObject({ code: "closed" });
  expect(told).toEqual(["closed", "closed"]);
});

test("closing waits no longer than five seconds", async () => {
  const [client, peer] = await joined();
  const change = client.update("/n", 2);
  await peer.take("push");
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  try {
    void client.close();
    vi.advanceTimersByTime(4_999);
    expect(client.pending).toBe(1);
    vi.advanceTimersByTime(1);
  } finally {
    vi.useRealTimers();
  }
  await expect(change).rejects.toMatchObject({ code: "closed" });
  await peer.closed.take();
});

test("a client that is closed throws for what is said through it", async () => {
  const [client] = await joined();
  void client.close();
  expect(() => client.send("hello")).toThrow(PlaitError);
  expect(() => client.setPresence({ at: 1 })).toThrow("closed");
});

test("a call resolves to what the method returns, under either of its names", async () => {
  const [client, peer] = await joined();
  const results = [client.call("add_player", "Ada"), client.rpc.addPlayer("Ada"), client.rpc.add_player("Ada")];
  for (const [index, result] of results.entries()) {
    const call = await peer.take("call");
    expect(call).toMatchObject({ method: "add_player", args: ["Ada"] });
    peer.send({ type: "result", ref: call.ref, value: index, done: true });
    expect(await result).toBe(index);
  }
});

test("a call that fails rejects with the server's error, and one may have keyword arguments", async () => {
  const [client, peer] = await joined();
  const result = client.callWith("add_player", { kwargs: { team: "red" } });
  const { ref, kwargs } = await peer.take("call");
  expect(kwargs).toEqual({ team: "red" });
  peer.send({ type: "error", ref, code: "invalid_arguments", message: "no", path: "/name" });
  await expect(result).rejects.toMatchObject({ code: "invalid_arguments", path: "/name" });
});

test("a call that fails and is not awaited is heard of, but not one that closing ends", async () => {
  const others = await uncaught("unhandledRejection", async (heard) => {
    const [client, peer] = await joined();
    void client.call("add_player", "Ada");
    peer.send({ type: "error", ref: (await peer.take("call")).ref, code: "rejected", message: "no" });
    expect(await heard.take()).toMatchObject({ code: "rejected" });
    void client.rpc.addPlayer("Grace");
    peer.send({ type: "error", ref: (await peer.take("call")).ref, code: "call_failed", message: "no" });
    expect(await heard.take()).toMatchObject({ code: "call_failed" });
    const stream = client.stream("count", 3);
    peer.send({ type: "error", ref: (await peer.take("call")).ref, code: "rejected", message: "no" });
    await expect(stream.next()).rejects.toMatchObject({ code: "rejected" });
    void client.call("add_player", "Edsger");
    await peer.take("call");
    await client.close();
    await peer.closed.take();
  });
  expect(others).toEqual([]);
});

test("a thread without a kind or a name is a mistake, unless it has a url", () => {
  for (const more of [{ kind: undefined }, { name: undefined }, { name: "" }, { kind: 7 }]) {
    expect(() => open(more as never)).toThrow(TypeError);
  }
  open({ kind: undefined, name: undefined, url: `ws://${server.host}/threads/note/a` } as never);
});

test("a call is cancelled by its signal", async () => {
  const [client, peer] = await joined();
  const controller = new AbortController();
  const result = client.callWith("add_player", { args: ["Ada"], signal: controller.signal });
  const { ref } = await peer.take("call");
  controller.abort();
  expect((await peer.take("cancel")).ref).toBe(ref);
  await expect(result).rejects.toMatchObject({ name: "AbortError" });
});

test("a stream is iterated chunk by chunk, and its final value can be had", async () => {
  const [client, peer] = await joined();
  const stream = client.stream("count", 3);
  const { ref } = await peer.take("call");
  for (const value of [1, 2, 3]) peer.send({ type: "result", ref, value, done: false });
  peer.send({ type: "result", ref, value: "done", done: true });
  const chunks: number[] = [];
  for await (const chunk of stream) chunks.push(chunk);
  expect(chunks).toEqual([1, 2, 3]);
  expect(await stream.result).toBe("done");
});

test("leaving a stream's loop cancels the call", async () => {
  const [client, peer] = await joined();
  const stream = client.stream("count", 3);
  const { ref } = await peer.take("call");
  peer.send({ type: "result", ref, value: 1, done: false });
  for await (const chunk of stream) {
    expect(chunk).toBe(1);
    break;
  }
  expect((await peer.take("cancel")).ref).toBe(ref);
  await expect(stream.result).rejects.toMatchObject({ code: "cancelled" });
});

test("a run is a call with the input as its only argument, and of an agent that streams gives a list", async () => {
  const [client, peer] = await joined();
  const answer = client.run("support", { message: "hi" });
  const call = await peer.take("call");
  expect(call).toMatchObject({ method: "run:support", args: [{ message: "hi" }] });
  peer.send({ type: "result", ref: call.ref, value: null, done: true });
  expect(await answer).toBe(null);
  const chunks = client.run("count");
  const { ref, args } = await peer.take("call");
  expect(args ?? []).toEqual([]);
  for (const value of [1, 2]) peer.send({ type: "result", ref, value, done: false });
  peer.send({ type: "result", ref, done: true });
  expect(await chunks).toEqual([1, 2]);
});

test("a run that fails and is not awaited is heard of", async () => {
  const others = await uncaught("unhandledRejection", async (heard) => {
    const [client, peer] = await joined();
    void client.run("support", { message: "hi" });
    peer.send({ type: "error", ref: (await peer.take("call")).ref, code: "rate_limited", message: "no" });
    expect(await heard.take()).toMatchObject({ code: "rate_limited" });
  });
  expect(others).toEqual([]);
});

test("what an agent yields is iterated, and leaving the loop cancels the call", async () => {
  const [client, peer] = await joined();
  const stream = client.runStream("count", 3);
  const { ref, method } = await peer.take("call");
  expect(method).toBe("run:count");
  peer.send({ type: "result", ref, value: 1, done: false });
  for await (const chunk of stream) {
    expect(chunk).toBe(1);
    break;
  }
  expect((await peer.take("cancel")).ref).toBe(ref);
});

test("a call that is answered as in doubt is not sent again", async () => {
  const [client, peer] = await joined();
  const result = client.call("add_player", "Ada");
  const { ref } = await peer.take("call");
  peer.send({ type: "error", ref, code: "indeterminate", message: "a part is stored" });
  await expect(result).rejects.toMatchObject({ code: "indeterminate" });
  const next = client.call("count", 3);
  expect((await peer.take("call")).method).toBe("count");
  await client.close();
  await expect(next).rejects.toMatchObject({ code: "closed" });
});

test("an interrupt is a call with the message, if there is one", async () => {
  const [client, peer] = await joined();
  for (const args of [["stop"], []]) {
    const interrupted = client.interrupt(...args);
    const call = await peer.take("call");
    expect([call.method, call.args ?? []]).toEqual(["run:interrupt", args]);
    peer.send({ type: "result", ref: call.ref, value: true, done: true });
    expect(await interrupted).toBe(true);
  }
});

test("a stream throws what the method failed with after the chunks before it, once", async () => {
  const [client, peer] = await joined();
  const stream = client.stream("count", 3);
  const { ref } = await peer.take("call");
  peer.send({ type: "result", ref, value: 1, done: false });
  peer.send({ type: "error", ref, code: "call_failed", message: "no" });
  await expect(stream.result).rejects.toMatchObject({ code: "call_failed" });
  expect(await stream.next()).toEqual({ done: false, value: 1 });
  await expect(stream.next()).rejects.toMatchObject({ code: "call_failed" });
  expect(await stream.next()).toEqual({ done: true, value: undefined });
});

test("messages and events go both ways, bytes too", async () => {
  const [client, peer] = await joined();
  const messages = new Arrivals<unknown>();
  const goals = new Arrivals<unknown>();
  client.onMessage((data) => messages.put(data));
  const unsubscribe = client.onEvent("goal", (data) => goals.put(data));
  client.send({ hello: "thread" });
  client.send(new Uint8Array([1, 2]));
  expect(await peer.take("message")).toEqual({ type: "message", data: { hello: "thread" } });
  expect(new Uint8Array(await peer.bytes.take())).toEqual(new Uint8Array([1, 2]));
  peer.send({ type: "event", name: "goal", data: { by: "Ada" } });
  expect(await goals.take()).toEqual({ by: "Ada" });
  unsubscribe();
  peer.send({ type: "event", name: "goal", data: { by: "Grace" } });
  peer.sendBytes(new Uint8Array([3]));
  expect(new Uint8Array((await messages.take()) as ArrayBuffer)).toEqual(new Uint8Array([3]));
  expect(goals.waiting).toEqual([]);
});

test("presence is sent, and sent again after a reconnect", async () => {
  const [client, peer] = await joined();
  client.setPresence({ cursor: [1, 2] });
  expect((await peer.take("presence")).data).toEqual({ cursor: [1, 2] });
  peer.send({ type: "presence", snapshot: { s1: { cursor: [1, 2] } } });
  await until(client, () => "s1" in client.presence);
  peer.close(1001);
  const again = await server.peer();
  await again.join();
  expect((await again.take("presence")).data).toEqual({ cursor: [1, 2] });
});

test("presences that are set in one go are one frame, and a patch leaves the other members", async () => {
  const [client, peer] = await joined();
  const seen: unknown[] = [];
  client.subscribe(() => seen.push(client.ownPresence));
  client.updatePresence({ name: "Ada", at: 1 });
  client.updatePresence({ at: 2, tool: "pen" });
  client.updatePresence({ tool: undefined });
  expect(seen.at(-1)).toEqual({ name: "Ada", at: 2 });
  expect(client.ownPresence).toEqual({ name: "Ada", at: 2 });
  expect((await peer.take("presence")).data).toEqual({ name: "Ada", at: 2 });
  client.setPresence({ at: 3 });
  client.setPresence("Ada");
  expect((await peer.take("presence")).data).toBe("Ada");
  client.updatePresence({ at: 4 });
  expect((await peer.take("presence")).data).toEqual({ at: 4 });
  expect(peer.frames.waiting).toEqual([]);
});

test("a token that is about to expire is asked for again", async () => {
  let count = 0;
  const [, peer] = await joined({ token: () => `token ${++count}` });
  peer.send({ type: "auth_expiring", in: 30 });
  expect((await peer.take("auth")).token).toBe("token 2");
});

test("subscribers are told only when something reads differently", async () => {
  const [client, peer] = await joined();
  let told = 0;
  client.subscribe(() => told++);
  peer.send({ type: "message", data: 1 });
  peer.send({ type: "pong" });
  peer.send({ type: "event", name: "goal", data: 1 });
  peer.send({ type: "change", version: 2, ops: [{ op: "replace", path: "/n", value: 2 }], source: "server" });
  await client.waitFor((note) => note.n === 2);
  expect(told).toBe(1);
});

test("waiting for a state can be given up", async () => {
  const [client] = await joined();
  const controller = new AbortController();
  const waiting = client.waitFor((note) => note.n === 100, { signal: controller.signal });
  controller.abort(new Error("enough"));
  await expect(waiting).rejects.toThrow("enough");
});

test("until the thread has told its state, an initial one is shown", async () => {
  const client = open({ initialState: { n: 0, list: [] } });
  expect(client.state).toEqual({ n: 0, list: [] });
  await (await server.peer()).join({ state: { n: 4, list: [] } });
  await client.ready;
  expect(client.state).toEqual({ n: 4, list: [] });
});

test("changes of an initial state are shown at once, kept on top of what the thread tells, and sent", async () => {
  const client = open({ initialState: { n: 0, list: ["x"], title: "" } });
  const shown: unknown[] = [];
  client.subscribe(() => shown.push(client.state?.title));
  for (const letter of "hello") void client.edit((draft) => void (draft.title = (draft.title ?? "") + letter));
  void client.update("/list/-", "y");
  const version = client.set((note) => ({ ...note, list: [...note.list, "z"] }));
  const same = client.set((note) => note);
  expect([client.state, client.pending]).toEqual([{ n: 0, list: ["x", "y", "z"], title: "hello" }, 8]);
  const peer = await server.peer();
  await peer.join({ state: { n: 5, list: ["new", "x"], title: "" }, version: 7 });
  const pushes = [];
  for (let each = 0; each < 7; each++) pushes.push(await peer.take("push"));
  expect(pushes[4]).toMatchObject({ base: ["e", 7], ops: [{ op: "replace", path: "/title", value: "hello" }] });
  expect(pushes[6]?.ops).toEqual([{ op: "add", path: "/list/3", value: "z" }]);
  expect(client.state).toEqual({ n: 5, list: ["new", "x", "y", "z"], title: "hello" });
  for (const [at, { ref }] of pushes.entries()) peer.send({ type: "ack", ref, version: at + 8 });
  expect([await version, await same, client.pending]).toEqual([14, 7, 0]);
  expect(shown.slice(0, 5)).toEqual(["h", "he", "hel", "hell", "hello"]);
  expect(new Set(shown.slice(4))).toEqual(new Set(["hello"]));
});

test("changes of an initial state are those of a thread that has none, and go with a client that is closed", async () => {
  const client = open({ initialState: { n: 1, list: [] } });
  void client.update("/n", 2);
  void client.update("/n", 3);
  const peer = await server.peer();
  await peer.join({ version: 0 });
  expect((await peer.take("push")).ops).toEqual([{ op: "add", path: "", value: { n: 2, list: [] } }]);
  expect((await peer.take("push")).ops).toEqual([{ op: "replace", path: "/n", value: 3 }]);
  expect(client.state).toEqual({ n: 3, list: [] });
  const closed = open({ initialState: { n: 1, list: [] }, connect: false });
  const lost = closed.update("/n", 2);
  expect(closed.state?.n).toBe(2);
  await closed.close();
  await expect(lost).rejects.toMatchObject({ code: "closed" });
  expect(closed.state?.n).toBe(1);
});

test("a change of an initial state whose place the thread does not have is refused, and those beside it are not", async () => {
  const client = open({ initialState: { n: 0, list: ["x"] } });
  const lost = client.update("/list/0", "y");
  await expect(client.update("/list/7", "y")).rejects.toMatchObject({ code: "bad_state" });
  const kept = client.update("/n", 1);
  const peer = await server.peer();
  await peer.join({ state: { n: 5, list: [] } });
  await expect(lost).rejects.toMatchObject({ code: "bad_state" });
  const push = await peer.take("push");
  peer.send({ type: "ack", ref: push.ref, version: 2 });
  expect(await kept).toBe(2);
  expect(client.state).toEqual({ n: 1, list: [] });
});

test("what is changed while early changes are carried over is made on what the thread tells", async () => {
  const client = open({ initialState: { n: 0, list: ["x"] } });
  void client.update("/n", 1);
  void client.call("add_player", "Ada").catch(() => undefined);
  let edits = 0;
  client.subscribe(() => {
    if (client.version === undefined || edits > 1) return;
    edits++;
    // Twice, so that the one waits for its turn while the other is made.
    void client.edit((draft) => void (draft.list[draft.list.indexOf("x")] += "!"));
    void client.edit((draft) => void (draft.list[draft.list.indexOf("b")] += "?"));
  });
  const peer = await server.peer();
  await peer.join({ state: { n: 5, list: ["a", "b", "x"] } });
  expect((await peer.take("push")).ops).toEqual([{ op: "replace", path: "/n", value: 1 }]);
  await peer.take("call");
  expect((await peer.take("push")).ops?.at(-1)).toEqual({ op: "add", path: "/list/2", value: "x!" });
  expect((await peer.take("push")).ops?.at(-1)).toEqual({ op: "add", path: "/list/1", value: "b?" });
});

test("a whole address stands for host, kind and name", async () => {
  open({ url: `http://${server.host}/mounted/threads/note/b`, host: "nowhere.invalid" });
  expect((await server.peer()).url).toBe("/mounted/threads/note/b");
});

test("a value that cannot be sent is refused here, wherever it is handed over", async () => {
  const [client, peer] = await joined();
  const circle: { n: number; list: string[]; circle?: unknown } = { n: 1, list: [] };
  circle.circle = circle;
  await expect(client.set(circle)).rejects.toBeInstanceOf(TypeError);
  await expect(client.edit((draft) => void (draft.title = "\ud83d"))).rejects.toBeInstanceOf(TypeError);
  await expect(client.update("/title", "\ud83d")).rejects.toBeInstanceOf(TypeError);
  await expect(client.update("/\ud83d" as string, 1)).rejects.toMatchObject({ code: "bad_state" });
  expect(() => client.setPresence({ "\ud83d": 1 })).toThrow(TypeError);
  expect(() => client.send("\ud83d")).toThrow(TypeError);
  void client.update("/n", 2);
  expect((await peer.take("push")).ops).toEqual([{ op: "replace", path: "/n", value: 2 }]);
});

test("what was handed over may be changed, and changes nothing here", async () => {
  const [client, peer] = await joined();
  const list = ["b"];
  const version = client.update("/list", list);
  const { ref } = await peer.take("push");
  list.push("c");
  expect(client.state?.list).toEqual(["b"]);
  peer.send({ type: "ack", ref, version: 2 });
  await version;
  expect([client.state?.list, client.confirmed?.list]).toEqual([["b"], ["b"]]);
  void client.set({ n: 1, list });
  expect((await peer.take("push")).ops).toEqual([{ op: "add", path: "/list/1", value: "c" }]);
});

test("what is handed out cannot be changed in place: the attempt is an error, and the state is the server's", async () => {
  const [client, peer] = await joined({ initialState: { n: 0, list: [] } });
  const change = (state: unknown) => {
    (state as Note).n = 42;
    return state as Note;
  };
  const grow = (state: unknown) => (state as Note).list.push("x");
  await expect(client.set(change)).rejects.toBeInstanceOf(TypeError);
  await expect(client.set((note) => ({ ...note, n: grow(note) }))).rejects.toBeInstanceOf(TypeError);
  for (const handed of ["state", "confirmed", "initialState"] as const) {
    expect(() => change(client[handed])).toThrow(TypeError);
    expect(() => grow(client[handed])).toThrow(TypeError);
  }
  peer.send({ type: "change", version: 2, ops: [{ op: "add", path: "/tags", value: [["x"]] }], source: "server" });
  const next = (await client.waitFor((note) => "tags" in note)) as unknown as { tags: string[][] };
  expect(() => next.tags[0]?.push("y")).toThrow(TypeError);
  expect(() => grow(next)).toThrow(TypeError);
  peer.send({ type: "snapshot", epoch: "e", version: 9, state: { n: 9, list: ["a", "b"] } });
  await client.waitFor((note) => note.n === 9);
  expect(() => grow(client.state)).toThrow(TypeError);
  void client.update("/list" as string, [["deep"]]);
  expect(() => grow(client.state?.list[0] as unknown)).toThrow(TypeError);
  expect([client.state, client.confirmed]).toEqual([
    { n: 9, list: [["deep"]] },
    { n: 9, list: ["a", "b"] },
  ]);
});

test("an initial state is a copy of the app's own object", async () => {
  const initialState = { n: 1, list: ["a"] };
  const client = open({ initialState });
  initialState.list.push("b");
  expect(client.state).toEqual({ n: 1, list: ["a"] });
});

test.each([0, "", false, null])("the initial state %j is shown", (initialState) => {
  const client = open({ initialState: initialState as unknown as Note, connect: false });
  expect(client.state).toBe(initialState);
});

test("an initial state is checked as any other value, also one that counts as false", () => {
  expect(open({ initialState: 0n as unknown as Note, connect: false }).state).toBe(0);
  expect(() => open({ initialState: NaN as unknown as Note })).toThrow("NaN");
});

test("integers beyond 2^53 go both ways unchanged, and none that is inexact is sent", async () => {
  const [client, peer] = await joined();
  const id = 9007199254740993n;
  peer.sendText(`{"type":"change","version":2,"ops":[{"op":"add","path":"/id","value":${id}}],"source":"server"}`);
  expect(await client.waitFor((note) => "id" in note)).toEqual({ n: 1, list: ["a"], id });
  void client.update("/other" as string, id + 1n);
  expect((await peer.take("push")).ops).toEqual([{ op: "add", path: "/other", value: id + 1n }]);
  await expect(client.update("/n", 9007199254740994)).rejects.toThrow("BigInt");
  const result = client.call("add_player", id as unknown as string);
  const call = await peer.take("call");
  expect(call.args).toEqual([id]);
  peer.sendText(`{"type":"result","ref":${call.ref},"value":${id},"done":true}`);
  expect(await result).toBe(id);
});

test("what looks at a client or its methods calls none of them", async () => {
  const [client, peer] = await joined();
  expect(JSON.parse(JSON.stringify(client))).toMatchObject({ kind: "note", name: "a" });
  expect(JSON.stringify({ rpc: client.rpc })).toBe('{"rpc":{}}');
  expect([`${client.rpc as unknown}`, String(client.rpc), (client.rpc as unknown as string) + ""]).toEqual(
    Array(3).fill("[object Object]"),
  );
  expect(inspect(client.rpc, { depth: 4 })).toBe("{}");
  expect(inspect(client)).toContain("ThreadClient");
  expect(await client.rpc).toBe(client.rpc);
  expect(Number(client.rpc)).toBeNaN();
  expect([client.rpc]).not.toEqual([1]);
  for (const name of ["toJSON", "then", "inspect", "asymmetricMatch", "$$typeof"]) {
    expect((client.rpc as unknown as Record<string, unknown>)[name]).toBeUndefined();
  }
  void client.call("inspect" as never);
  expect((await peer.take("call")).method).toBe("inspect");
});

test("presences cannot be changed in place", async () => {
  const [client, peer] = await joined();
  peer.send({ type: "presence", snapshot: { s1: { cursor: [1, 2] } } });
  await until(client, () => "s1" in client.presence);
  const presence = client.presence as Record<string, { cursor: number[] }>;
  expect(() => presence["s1"]?.cursor.push(3)).toThrow(TypeError);
  expect(() => delete presence["s1"]).toThrow(TypeError);
});

test("an edit may return the next state", async () => {
  const [client, peer] = await joined();
  void client.edit((draft) => ({ ...draft, n: 2 }));
  expect((await peer.take("push")).ops).toEqual([{ op: "replace", path: "/n", value: 2 }]);
});

test("waiting for a state fails with what the predicate throws, and looks no more", async () => {
  const [client, peer] = await joined();
  let looks = 0;
  const failing = (from: number) =>
    client.waitFor((note) => {
      looks++;
      if (note.n >= from) throw new Error(`no ${note.n}`);
      return false;
    });
  const later = failing(2);
  await expect(failing(1)).rejects.toThrow("no 1");
  peer.send({ type: "change", version: 2, ops: [{ op: "replace", path: "/n", value: 2 }], source: "server" });
  await expect(later).rejects.toThrow("no 2");
  peer.send({ type: "change", version: 3, ops: [{ op: "replace", path: "/n", value: 3 }], source: "server" });
  await client.waitFor((note) => note.n === 3);
  expect(looks).toBe(3);
});

test("a call with arguments that are no JSON fails as one that the server refuses, and sends nothing", async () => {
  const [client, peer] = await joined();
  const bad = (() => 1) as unknown as string;
  await expect(client.call("add_player", bad)).rejects.toBeInstanceOf(TypeError);
  await expect(client.rpc.addPlayer("\ud83d")).rejects.toBeInstanceOf(TypeError);
  await expect(client.callWith("add_player", { kwargs: { bad } })).rejects.toBeInstanceOf(TypeError);
  const stream = client.stream("count", bad as unknown as number);
  await expect(stream.next()).rejects.toBeInstanceOf(TypeError);
  await expect(stream.result).rejects.toBeInstanceOf(TypeError);
  void client.call("add_player", "Ada");
  expect((await peer.take("call")).args).toEqual(["Ada"]);
});

test("a call whose signal is aborted already is not sent", async () => {
  const [client, peer] = await joined();
  const signal = AbortSignal.abort(new Error("too late"));
  await expect(client.callWith("add_player", { args: ["Ada"], signal })).rejects.toThrow("too late");
  void client.call("add_player", "Grace");
  expect((await peer.take("call")).args).toEqual(["Grace"]);
});

test("a call that has its answer listens to its signal no more", async () => {
  const [client, peer] = await joined();
  const { signal } = new AbortController();
  const results = [client.callWith("add_player", { signal }), client.callWith("add_player", { signal })];
  expect(getEventListeners(signal, "abort")).toHaveLength(2);
  peer.send({ type: "result", ref: (await peer.take("call")).ref, value: 1, done: true });
  peer.send({ type: "error", ref: (await peer.take("call")).ref, code: "rejected", message: "no" });
  await Promise.allSettled(results);
  expect(getEventListeners(signal, "abort")).toEqual([]);
});

test("a listener that another one has removed is not told", async () => {
  const [client, peer] = await joined();
  const told: string[] = [];
  client.onEvent("goal", () => {
    told.push("first");
    unsubscribe();
  });
  const unsubscribe = client.onEvent("goal", () => told.push("second"));
  const last = new Arrivals<unknown>();
  client.onEvent("goal", () => last.put("last"));
  peer.send({ type: "event", name: "goal", data: 1 });
  await last.take();
  expect(told).toEqual(["first"]);
});

test("a stream that was left has nothing more, for one that reads already too", async () => {
  const [client, peer] = await joined();
  const stream = client.stream("count", 3);
  const { ref } = await peer.take("call");
  const reading = stream.next();
  const end = { done: true, value: undefined };
  expect(await stream.return()).toEqual(end);
  expect([await reading, await stream.next(), await stream.next()]).toEqual([end, end, end]);
  expect((await peer.take("cancel")).ref).toBe(ref);
});

test("what an edit throws is heard of when it is not awaited, before the first join too", async () => {
  const others = await uncaught("unhandledRejection", async (heard) => {
    const client = open();
    void client.edit(() => expect.fail("early"));
    const caught = client.edit(() => expect.fail("caught"));
    caught.catch(() => undefined);
    await (await server.peer()).join({ state: { n: 1, list: [] } });
    expect(await heard.take()).toMatchObject({ message: "early" });
    void client.edit(() => expect.fail("late"));
    expect(await heard.take()).toMatchObject({ message: "late" });
  });
  expect(others).toEqual([]);
});
