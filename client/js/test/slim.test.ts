/** A client without options: what it can do, and what it does with texts. */

import { expect, test } from "vitest";
import { WebSocket } from "ws";

import { ThreadClient, bindText, keepIn, text, undo } from "../src/index.js";
import type { ThreadOptions } from "../src/index.js";
import type { Joined } from "../src/protocol.js";
import type { Peer } from "./server.js";
import { clients, server, serving } from "./serving.js";
import { MemoryStorage } from "./storages.js";

interface Pad {
  note: string;
  status: string;
  cards: { id?: string; title: string }[];
}

const STATE = {
  note: "one two",
  status: "doing",
  cards: [
    { id: "a", title: "tea" },
    { id: "b", title: "milk" },
  ],
};
const INSERTION = { op: "splice", path: "/note", at: 3, insert: " 🔑" } as const;

serving();

async function joined(
  options: Partial<ThreadOptions<Pad>> = {},
  frame: Partial<Joined> = {},
): Promise<[ThreadClient<Pad>, Peer]> {
  const client = new ThreadClient<Pad>({ host: server.host, kind: "note", name: "a", WebSocket, ...options });
  clients.push(client);
  const peer = await server.peer();
  await peer.join({ state: STATE, texts: ["/note"], ...frame });
  await client.ready;
  return [client, peer];
}

test("what others type is shown, also over an own change that has no answer", async () => {
  const [client, peer] = await joined();
  void client.update("/status", "done");
  peer.send({ type: "change", version: 2, ops: [INSERTION], source: "another" });
  await client.waitFor(({ note }) => note === "one 🔑 two");
  expect(client.state?.status).toBe("done");
});

test.each<[string, "text" | "undo" | "queries", (client: ThreadClient<Pad>) => unknown]>([
  ["splice", "text", (client) => client.splice("/note", 0, 1)],
  ["append", "text", (client) => client.append("/note", "!")],
  ["onText", "text", (client) => client.onText("/note", () => undefined)],
  ["editsBetween", "text", (client) => client.editsBetween("a", "b")],
  ["undo", "undo", (client) => client.undo()],
  ["canRedo", "undo", (client) => client.canRedo()],
  ["query", "queries", (client) => client.query("open_orders", ["c1"], () => undefined)],
])("%s throws a TypeError that names the option %s", async (method, option, use) => {
  const [client] = await joined();
  expect(() => use(client)).toThrow(TypeError);
  expect(() => use(client)).toThrow(`${method} needs the option ${option}, which plait-client exports`);
});

test("a storage that is given as it is throws a TypeError that names keepIn", () => {
  const storage = new MemoryStorage() as never;
  const make = () => new ThreadClient({ host: "127.0.0.1:1", kind: "note", name: "a", connect: false, storage });
  expect(make).toThrow(new TypeError("the option storage needs keepIn, which plait-client exports"));
});

test.each<[string, (client: ThreadClient<Pad>) => Promise<number>]>([
  ["set", (client) => client.set((pad) => ({ ...pad, note: "" }))],
  ["edit", (client) => client.edit((pad) => void (pad.note = ""))],
  ["update", (client) => client.update("/note", "")],
])("%s changes no text, but all else", async (_, change) => {
  const [client, peer] = await joined();
  await expect(change(client)).rejects.toThrow("/note is a text, which needs the option text");
  expect(client.state).toEqual(STATE);
  void client.update("/status", "");
  expect((await peer.take("push")).ops).toEqual([{ op: "replace", path: "/status", value: "" }]);
});

test("in lists, elements with an id or from a draft change and move, and others are replaced in their places", async () => {
  const [client, peer] = await joined();
  void client.set((pad) => ({
    ...pad,
    cards: [
      { id: "b", title: "oats" },
      { id: "a", title: "tea" },
    ],
  }));
  expect((await peer.take("push")).ops).toEqual([
    { op: "remove", path: "/cards/0" },
    { op: "add", path: "/cards/1", value: { id: "a", title: "tea" }, moved: true },
    { op: "replace", path: "/cards/0/title", value: "oats" },
  ]);
  void client.set((pad) => ({ ...pad, cards: [{ title: "x" }, { title: "y" }] }));
  await peer.take("push");
  void client.set((pad) => ({ ...pad, cards: [{ title: "x" }, { title: "z" }] }));
  expect((await peer.take("push")).ops).toEqual([{ op: "replace", path: "/cards/1", value: { title: "z" } }]);
  void client.edit((pad) => void (pad.cards[1]!.title = "w"));
  expect((await peer.take("push")).ops).toEqual([{ op: "replace", path: "/cards/1/title", value: "w" }]);
});

test("a splice that another page has kept is left to the server where others type in its text", async () => {
  const storage = new MemoryStorage();
  const [first] = await joined({ text, storage: keepIn(storage) });
  void first.append("/note", "!");
  await first.close();
  const [second, peer] = await joined(
    { storage: keepIn(storage) },
    { version: 2, state: undefined as never, ops: [INSERTION] },
  );
  expect(await peer.take("push")).toMatchObject({ ref: 1, base: ["e", 1], ops: [{ at: 7, insert: "!" }] });
  const ops = [{ ...INSERTION, at: 9, insert: "!" }];
  peer.send({ type: "ack", ref: 1, version: 3, rebased: true, ops });
  await second.waitFor(({ note }) => note === "one 🔑 two!");
});

test("with text and undo, typing is sent and taken back", async () => {
  const [client, peer] = await joined({ text, undo });
  void client.set((pad) => ({ ...pad, note: "one, two, three" }));
  const insert = ", two, three";
  expect((await peer.take("push")).ops).toEqual([{ op: "splice", path: "/note", at: 3, remove: 4, insert }]);
  void client.undo();
  expect(client.state).toEqual(STATE);
  expect(typeof bindText).toBe("function");
});

test("the methods that options bring need no object, and those of a subclass come first", async () => {
  class Editor extends ThreadClient<Pad> {
    override canUndo(): boolean {
      return true;
    }
  }
  const client = new Editor({ host: server.host, kind: "note", name: "a", WebSocket, text, undo });
  clients.push(client);
  const peer = await server.peer();
  await peer.join({ state: STATE, texts: ["/note"] });
  const { append, canUndo, canRedo } = client;
  expect([canUndo(), canRedo()]).toEqual([true, false]);
  void append("/note", "!");
  expect((await peer.take("push")).ops).toEqual([{ op: "splice", path: "/note", at: 7, insert: "!" }]);
});
