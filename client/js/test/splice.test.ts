import { expect, test } from "vitest";
import { WebSocket } from "ws";

import { readBacklog } from "../src/backlog.js";
import { stringify } from "../src/exact.js";
import { PlaitError, ThreadClient } from "../src/full.js";
import type { FullOptions as ThreadOptions } from "../src/full.js";
import { PatchError, apply } from "../src/patch.js";
import type { Document } from "../src/json.js";
import type { Joined, Op } from "../src/protocol.js";
import type { Peer } from "./server.js";
import { clients, server, serving } from "./serving.js";
import { MemoryStorage } from "./storages.js";

interface Pad {
  note: string;
  status: string;
  cards: { id: string; body: string }[];
}

const PAD: Pad = { note: "one 🔑 two", status: "doing", cards: [{ id: "a", body: "tea" }] };
const TEXTS = ["/note", "/cards/*/body"];

serving();

function open(options: Partial<ThreadOptions<Pad>> = {}): ThreadClient<Pad> {
  const client = new ThreadClient<Pad>({ host: server.host, kind: "note", name: "a", WebSocket, ...options });
  clients.push(client);
  return client;
}

/** A client that has joined a pad, and the other end of its socket. */
async function joined(
  options: Partial<ThreadOptions<Pad>> = {},
  frame: Partial<Joined> = {},
): Promise<[ThreadClient<Pad>, Peer]> {
  const client = open(options);
  const peer = await server.peer();
  await peer.join({ state: PAD as unknown as Joined["state"] & object, texts: TEXTS, ...frame });
  await client.ready;
  return [client, peer];
}

async function ops(peer: Peer): Promise<readonly Op[]> {
  return (await peer.take("push")).ops;
}

// Applying

test.each<[string, Document, object, string]>([
  ["past the end", { t: "🔑b" }, { at: 3 }, "splice /t does not fit what is there"],
  ["that removes more than is there", { t: "🔑b" }, { at: 1, remove: 2 }, "splice /t does not fit"],
  ["at a negative place", { t: "ab" }, { at: -1 }, "splice /t does not fit"],
  ["that removes less than nothing", { t: "ab" }, { at: 0, remove: -2 }, "splice /t does not fit"],
  ["at a part of a place", { t: "ab" }, { at: 0.5 }, "splice /t does not fit"],
  ["at a truth", { t: "ab" }, { at: true }, "splice /t does not fit"],
  ["without a place", { t: "ab" }, { insert: "x" }, "splice /t does not fit"],
  ["with a value", { t: "ab" }, { at: 0, value: "x" }, "splice /t does not fit"],
  ["of half a surrogate pair", { t: "ab" }, { at: 0, insert: "\ud83d" }, "splice /t does not fit"],
  ["of a number", { t: 5 }, { at: 0 }, "splice /t does not fit what is there"],
  ["of a list", { t: ["a"] }, { at: 0 }, "splice /t does not fit what is there"],
  ["of nothing", {}, { at: 0 }, "splice /t does not fit"],
])("a splice %s does not fit", (_, document, change, message) => {
  const op = { op: "splice", path: "/t", ...change } as Op;
  expect(() => apply(document, [op])).toThrow(PatchError);
  expect(() => apply(document, [op])).toThrow(message);
});

test("a splice changes a text anywhere in a document, or the document that is one", () => {
  const splice = (path: string): Op => ({ op: "splice", path, at: 1, remove: 1, insert: "🔒" });
  expect(apply("abc", [splice("")])).toBe("a🔒c");
  expect(apply({ l: [{ t: "🔑bc" }] }, [splice("/l/0/t")])).toEqual({ l: [{ t: "🔑🔒c" }] });
  expect(apply(["x", "abc"], [splice("/1")])).toEqual(["x", "a🔒c"]);
});

// Asking for it

test("a splice has the positions of JavaScript, and is sent with those of code points", async () => {
  const [client, peer] = await joined();
  const version = client.splice("/note", 6, 1, " and ");
  expect(client.state?.note).toBe("one 🔑 and two");
  expect(await ops(peer)).toEqual([{ op: "splice", path: "/note", at: 5, remove: 1, insert: " and " }]);
  peer.send({ type: "ack", ref: 1, version: 2 });
  expect(await version).toBe(2);
  void client.splice("/note", 4, 2);
  void client.append("/note", "!");
  void client.splice("/status", 0, 0, "still ");
  expect(await ops(peer)).toEqual([{ op: "splice", path: "/note", at: 4, remove: 1 }]);
  expect(await ops(peer)).toEqual([{ op: "splice", path: "/note", at: 12, insert: "!" }]);
  expect(await ops(peer)).toEqual([{ op: "splice", path: "/status", at: 0, insert: "still " }]);
  expect(await client.append("/note", "")).toBe(2);
  expect(client.state).toMatchObject({ note: "one  and two!", status: "still doing" });
});

test.each<[string, (client: ThreadClient<Pad>) => Promise<number>, string]>([
  [
    "in the middle of a pair",
    (client) => client.splice("/note", 5, 0, "x"),
    "position 5 is in the middle of a surrogate",
  ],
  [
    "up to the middle of a pair",
    (client) => client.splice("/note", 4, 1),
    "position 5 is in the middle of a surrogate",
  ],
  ["past the end", (client) => client.splice("/note", 11, 0, "x"), "11 to 11 is not within 0 to 10"],
  ["that removes more than is there", (client) => client.splice("/note", 9, 2), "9 to 11 is not within 0 to 10"],
  [
    "at a negative place",
    (client) => client.splice("/note", -1, 0, "x"),
    "splice /note: -1 to -1 is not within 0 to 10",
  ],
  [
    "that removes less than nothing",
    (client) => client.splice("/note", 1, -2),
    "splice /note: 1 to -1 is not within 0 to 10",
  ],
  ["at a part of a place", (client) => client.splice("/note", 0.5), "two integers"],
  ["at a truth", (client) => client.splice("/note", true as unknown as number), "two integers"],
  ["of half a pair", (client) => client.append("/note", "\ud83d"), "half a surrogate pair"],
  ["at no number", (client) => client.splice("/note", NaN), "two integers"],
  ["at nothing", (client) => client.splice("/note", undefined as unknown as number), "two integers"],
  ["of a list", (client) => client.append("/cards", "x"), "splice /cards: there is no text"],
  ["of nothing", (client) => client.append("/title", "x"), "splice /title: there is no text"],
])("a splice %s is refused, and the client goes on", async (_, splice, message) => {
  const [client, peer] = await joined();
  const refusals: PlaitError[] = [];
  client.onRefused(({ error }) => refusals.push(error));
  const error = await splice(client).catch((error: unknown) => error);
  expect(error).toBeInstanceOf(PlaitError);
  expect(error).toMatchObject({ code: "bad_state", message: expect.stringContaining(message) as string });
  expect(refusals).toEqual([error]);
  expect(client.state).toEqual(PAD);
  void client.append("/note", "!");
  expect(await ops(peer)).toMatchObject([{ at: 9, insert: "!" }]);
});

// What is different

test("of a text only what is different is sent, of any other string the whole", async () => {
  const [client, peer] = await joined();
  void client.update("/note", "one 🔑, two");
  void client.edit((pad) => {
    (pad.cards[0] as Pad["cards"][0]).body += " time";
    pad.status = "done";
  });
  void client.set((pad) => ({ ...pad, note: "one, two", status: "undone" }));
  expect(await ops(peer)).toEqual([{ op: "splice", path: "/note", at: 5, insert: "," }]);
  expect(await ops(peer)).toEqual([
    { op: "replace", path: "/status", value: "done" },
    { op: "splice", path: "/cards/0/body", at: 3, insert: " time" },
  ]);
  expect(await ops(peer)).toEqual([
    { op: "splice", path: "/note", at: 3, remove: 2 },
    { op: "replace", path: "/status", value: "undone" },
  ]);
  expect(await client.update("/note", "one, two")).toBe(1);
  void client.update("/note" as string, 7);
  expect(await ops(peer)).toEqual([{ op: "replace", path: "/note", value: 7 }]);
});

test("an edit of a text that is made within another one stays", async () => {
  const [client, peer] = await joined();
  const version = client.set((pad) => {
    void client.append("/note", "!");
    return { ...pad, note: `So: ${pad.note}` };
  });
  expect(client.state?.note).toBe("So: one 🔑 two!");
  await peer.take("push");
  peer.send({ type: "ack", ref: 1, version: 2 });
  expect(await ops(peer)).toEqual([{ op: "splice", path: "/note", at: 0, insert: "So: " }]);
  peer.send({ type: "ack", ref: 2, version: 3 });
  expect(await version).toBe(3);
});

test("what others type at the same time stays, also where they have sent whole states", async () => {
  const [client, peer] = await joined({}, { state: { note: "one two" } });
  void client.update("/note", "one, two");
  await peer.take("push");
  peer.send({ type: "change", version: 2, ops: [{ op: "splice", path: "/note", at: 0, insert: "🔑 " }], source: "s2" });
  await client.waitFor(() => client.version === 2);
  expect(client.state?.note).toBe("🔑 one, two");
  peer.send({ type: "snapshot", epoch: "e", version: 4, state: { note: "🔑 one two three" } });
  await client.waitFor(() => client.version === 4);
  expect(client.state?.note).toBe("🔑 one, two three");
  peer.drop();
  const again = await server.peer();
  await again.join({ version: 6, state: { note: "🔒 one two four" }, texts: TEXTS });
  expect(await ops(again)).toEqual([{ op: "splice", path: "/note", at: 5, insert: "," }]);
  expect(client.state?.note).toBe("🔒 one, two four");
});

test("a string that was spliced merges with a whole state, too, though it is not declared as a text", async () => {
  const [client, peer] = await joined({}, { state: { note: "one two" }, texts: [] });
  void client.append("/note", "!");
  await peer.take("push");
  peer.drop();
  await (await server.peer()).join({ version: 6, state: { note: "one three two" } });
  await client.waitFor(() => client.version === 6);
  expect(client.state?.note).toBe("one three two!");
});

test("a text of the initial state that is changed merges with what the thread has", async () => {
  const client = open({ initialState: { ...PAD, note: "one two" } });
  void client.update("/note", "one, two");
  void client.edit((pad) => void (pad.note += "!"));
  void client.append("/note", "!");
  expect(client.state?.note).toBe("one, two!!");
  const peer = await server.peer();
  await peer.join({ state: { ...PAD, note: "🔑 one two" }, texts: TEXTS });
  for (const [at, insert, own] of [
    [5, ","],
    [10, "!"],
    [11, "!", true],
  ] as const) {
    expect(await ops(peer)).toEqual([{ op: "splice", path: "/note", at, insert, ...(own && { own }) }]);
  }
  expect(client.state?.note).toBe("🔑 one, two!!");
});

test("a splice before the thread has told its state is made in the text that it has", async () => {
  const client = open();
  void client.append("/note", "!");
  const peer = await server.peer();
  await peer.join({ state: { note: "🔑" } });
  expect(await ops(peer)).toEqual([{ op: "splice", path: "/note", at: 1, insert: "!" }]);
});

// Keeping it

test("splices are kept for the next page, which makes splices of texts, too, before it has joined", async () => {
  const storage = new MemoryStorage();
  const [first] = await joined({ storage }, { state: { note: "one two", list: [] }, list_keys: { "/list": "name" } });
  void first.append("/note", " 🔑");
  first.close();

  const second = open({ storage });
  await second.waitFor(({ note }) => note === "one two 🔑");
  void second.update("/note", "one, two 🔑");
  const peer = await server.peer();
  await peer.join({ version: 2, state: { note: "three two", list: [] }, texts: TEXTS });
  expect(await ops(peer)).toEqual([{ op: "splice", path: "/note", at: 9, insert: " 🔑" }]);
  expect(await ops(peer)).toMatchObject([{ op: "splice", path: "/note", insert: "," }]);
});

test.each<[string, object, boolean]>([
  ["a splice", { op: "splice", path: "/t", at: 1, remove: 2, insert: "x" }, true],
  ["a splice without a place", { op: "splice", path: "/t", insert: "x" }, false],
  ["a splice at a text", { op: "splice", path: "/t", at: "1" }, false],
  ["a splice of half a pair", { op: "splice", path: "/t", at: 1, insert: "\ud83d" }, false],
  ["what is no operation", { op: "move", path: "/t", at: 1 }, false],
])("of a storage that has %s, it is checked before it is used", (_, op, isValid) => {
  const fold = { at: ["e", 1], confirmed: {}, pushes: [{ ref: 1, made: ["e", 1], ops: [op] }] };
  expect(readBacklog(stringify({ client: "c", next: 2, fold })) !== undefined).toBe(isValid);
});

test.each<[object, boolean]>([
  [{ texts: ["/note"], list_keys: { "/l": "name" } }, true],
  [{ texts: "/note" }, false],
  [{ texts: [1] }, false],
  [{ list_keys: ["name"] }, false],
  [{ list_keys: { "/l": 1 } }, false],
])("of places in a storage, %j, it is checked that they are any", (places, isValid) => {
  const fold = { at: ["e", 1], confirmed: {}, pushes: [], ...places };
  expect(readBacklog(stringify({ client: "c", next: 1, fold })) !== undefined).toBe(isValid);
});
