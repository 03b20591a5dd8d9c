/** The messages of a thread, as a page works with them. */

import { expect, test, vi } from "vitest";
import { WebSocket } from "ws";

import { ThreadClient, messages } from "../src/index.js";
import type { ThreadMessages, ThreadOptions } from "../src/index.js";
import type { Json } from "../src/json.js";
import type { Page, Send } from "../src/protocol.js";
import type { Peer } from "./server.js";
import { clients, server, serving } from "./serving.js";

serving();

function newClient(options: Partial<ThreadOptions<unknown>> = {}): ThreadClient {
  const client = new ThreadClient({ host: server.host, kind: "note", name: "a", WebSocket, messages, ...options });
  clients.push(client);
  return client;
}

function pageOf(items: Page["items"], more: Partial<Page> = {}): Page {
  return { type: "page", part: "messages", revision: 1, items: items ?? [], reset: true, ...more };
}

function said({ items }: ThreadMessages): unknown[] {
  return items.map(({ content, status }) => [content, status]);
}

/** Resolves when something is so, which is looked at whenever the messages change. */
function until(of: ThreadMessages, isSo: () => boolean): Promise<void> {
  return new Promise((resolve) => {
    const look = () => {
      if (isSo()) resolve();
    };
    of.subscribe(look);
    look();
  });
}

async function opened(items: Page["items"], more: Partial<Page> = {}): Promise<[ThreadMessages, Peer, ThreadClient]> {
  const client = newClient();
  const of = client.messages;
  const opening = of.open();
  const peer = await server.peer();
  await peer.join({ version: 0 });
  expect(await peer.take("open")).toEqual({ type: "open", part: "messages" });
  peer.send(pageOf(items, more));
  await opening;
  return [of, peer, client];
}

test("without the option there are none", () => {
  expect(() => newClient({ messages: undefined }).messages).toThrow("messages needs the option messages");
});

test("the first use opens the messages, and only the first", async () => {
  const client = newClient();
  const peer = await server.peer();
  await peer.join({ version: 0 });
  await client.ready;
  expect(peer.frames.waiting).toEqual([]);
  expect(client.messages.items).toEqual([]);
  expect(client.messages.items).toEqual([]);
  client.messages.subscribe(() => undefined);
  await peer.take("open");
  client.send("last");
  await peer.take("message");
});

test("chunks continue a text at its code points, also after those before them and after it was replaced", async () => {
  const streaming = { id: "a", role: "assistant", position: 1, status: "streaming" } as const;
  const [of, peer] = await opened([{ ...streaming, content: "1😀\ud83d" }]);
  const chunk = (at: number, text: string) =>
    peer.send({ type: "part", part: "messages", revision: 1, op: "chunk", id: "a", at, text });
  chunk(3, "😀2");
  chunk(4, "23😀"); // The client has its first character.
  chunk(3, "😀2"); // And all of this one.
  chunk(7, "!");
  await until(of, () => of.items[0]?.content === "1😀\ud83d😀23😀!");
  peer.send({ type: "part", part: "messages", revision: 2, op: "update", message: { ...streaming, content: "😀" } });
  chunk(1, "?");
  await until(of, () => of.items[0]?.content === "😀?");
  expect(peer.frames.waiting).toEqual([]); // It did not open the messages again.
});

test("the branch is changed by calls of the part", async () => {
  const [of, peer] = await opened([]);
  const item = { id: "a", role: "user", content: "1", position: 1 };
  const cases: [Promise<unknown>, string, unknown[], Json, unknown][] = [
    [of.regenerate(), "regenerate", [], true, true],
    [of.regenerate("b"), "regenerate", ["b"], false, false],
    [of.edit("a", "2"), "edit", ["a", "2"], "c", "c"],
    [of.switch("a"), "switch", ["a"], true, true],
    [
      of.siblings("a"),
      "siblings",
      ["a"],
      [item],
      [expect.objectContaining({ ...item, status: "completed", depth: 0 })],
    ],
  ];
  for (const [promise, method, args, result, expected] of cases) {
    const call = await peer.take("call");
    expect([call.method, call.args ?? []]).toEqual([`messages:${method}`, args]);
    peer.send({ type: "result", ref: call.ref, done: true, value: result });
    expect(await promise).toEqual(expected);
  }
});

test("messages are marked as read by a call of their part", async () => {
  const [of, peer] = await opened([]);
  const marks = [of.markRead(), of.of("notes").markRead()];
  for (const method of ["messages:read", "notes:read"]) {
    const call = await peer.take("call");
    expect(call).toMatchObject({ method });
    peer.send({ type: "result", ref: call.ref, done: true });
  }
  expect(await Promise.all(marks)).toEqual([undefined, undefined]);
});

test("the list and its messages stay the same objects as long as they do not change", async () => {
  const [of, peer] = await opened([
    { id: "a", role: "user", content: "1", position: 1 },
    { id: "b", role: "assistant", content: "", position: 2, status: "streaming" },
  ]);
  const before = of.items;
  expect(of.items).toBe(before);
  peer.send({ type: "part", part: "messages", revision: 1, op: "chunk", id: "b", text: "Hi" });
  await until(of, () => of.items !== before);
  expect(of.items[0]).toBe(before[0]);
  expect(said(of)).toEqual([
    ["1", "completed"],
    ["Hi", "streaming"],
  ]);
});

test("older resolves to whether there are more", async () => {
  const [of, peer] = await opened([{ id: "c", role: "user", content: "3", position: 3 }], { more: true });
  const older = of.older(20);
  expect(await peer.take("open")).toEqual({ type: "open", part: "messages", before: 3, limit: 20 });
  expect(of.isLoading).toBe(true);
  peer.send(pageOf([{ id: "b", role: "user", content: "2", position: 2 }], { reset: false, before: 3 }));
  expect(await older).toBe(false);
  expect(of.hasMore).toBe(false);
  expect(await of.older()).toBe(false);
  expect(said(of)).toEqual([
    ["2", "completed"],
    ["3", "completed"],
  ]);
});

test("an older page that is refused rejects, and keeps what is shown", async () => {
  const [of, peer] = await opened([{ id: "c", role: "user", content: "3", position: 3 }], { more: true });
  const older = expect(of.older()).rejects.toMatchObject({ code: "store_error" });
  await peer.take("open");
  peer.send({ type: "unopened", part: "messages", code: "store_error", message: "no", before: 3 });
  await older;
  expect(of.error?.code).toBe("store_error");
  expect(said({ items: await of.open() } as ThreadMessages)).toEqual([["3", "completed"]]);
  const again = of.older();
  expect(await peer.take("open")).toEqual({ type: "open", part: "messages", before: 3 });
  peer.send(pageOf([], { reset: false, before: 3 }));
  expect(await again).toBe(false);
  expect(of.error).toBeUndefined();
});

test("what is sent while offline is shown, sent once the thread is joined, and resolves to its id", async () => {
  const client = newClient();
  const of = client.messages;
  const sent = [of.send("one", { attachments: [{ url: "/a" }] }), of.send("two")];
  expect(said(of)).toEqual([
    ["one", "sending"],
    ["two", "sending"],
  ]);
  const first = await server.peer();
  await first.join({ version: 0 });
  await first.take("open");
  const frame = await first.take("send");
  expect(frame).toMatchObject({ ref: 1, part: "messages", content: "one", attachments: [{ url: "/a" }] });
  await first.take("send");
  first.drop();
  const second = await server.peer();
  await second.join({ version: 0 });
  await second.take("open");
  const again: Send[] = [await second.take("send"), await second.take("send")];
  expect(again.map(({ ref, content }) => [ref, content])).toEqual([
    [1, "one"],
    [2, "two"],
  ]);
  expect(again[0]?.key).toBe(frame.key);
  second.send({ type: "sent", ref: 1, id: "m1" });
  second.send({ type: "sent", ref: 2, id: "m2" });
  expect(await Promise.all(sent)).toEqual(["m1", "m2"]);
  const known = again.map(({ key, content }, index) => ({
    id: `m${index + 1}`,
    role: "user" as const,
    content,
    position: index + 1,
    status: "pending" as const,
    metadata: { key },
  }));
  second.send(pageOf(known));
  await until(of, () => of.isReady);
  expect(said(of)).toEqual([
    ["one", "pending"],
    ["two", "pending"],
  ]);
});

test("a refused message rejects, is shown no more, and is told to listeners, or logged if it is not awaited", async () => {
  const [of, peer] = await opened([]);
  const refused = expect(of.send("no")).rejects.toMatchObject({ code: "readonly" });
  await peer.take("send");
  peer.send({ type: "unsent", ref: 1, code: "readonly", message: "Connection is readonly" });
  await refused;
  expect(of.items).toEqual([]);
  const log = vi.spyOn(console, "error").mockImplementation(() => undefined);
  void of.send("nor this");
  await peer.take("send");
  peer.send({ type: "unsent", ref: 2, code: "readonly", message: "Connection is readonly" });
  await vi.waitFor(() => expect(log).toHaveBeenCalledOnce());
  log.mockRestore();
  const told = new Promise((resolve) => of.onRefused(resolve));
  void of.send("nor that");
  await peer.take("send");
  peer.send({ type: "unsent", ref: 3, code: "forbidden", message: "Forbidden" });
  expect(await told).toMatchObject({ content: "nor that", error: { code: "forbidden" } });
});

test("a part that may not be opened rejects, and can be tried again; another part has messages of its own", async () => {
  const client = newClient();
  const notes = client.messages.of("notes");
  expect(client.messages.of("notes")).toBe(notes);
  const refused = expect(notes.open()).rejects.toMatchObject({ code: "forbidden" });
  const peer = await server.peer();
  await peer.join({ version: 0 });
  await peer.take("open");
  peer.send({ type: "unopened", part: "notes", code: "forbidden", message: "Forbidden" });
  await refused;
  expect(notes.error?.code).toBe("forbidden");
  const again = notes.open(7);
  expect(await peer.take("open")).toEqual({ type: "open", part: "notes", limit: 7 });
  peer.send(pageOf([{ id: "n", role: "user", content: "note" }], { part: "notes" }));
  expect((await again).map(({ content }) => content)).toEqual(["note"]);
  expect(client.messages.isReady).toBe(false);
  notes.close();
  expect(await peer.take("close")).toEqual({ type: "close", part: "notes" });
});

test("closing waits for messages that were sent, and those without an answer reject", async () => {
  const [of, peer, client] = await opened([]);
  const sent = of.send("last words");
  const closed = client.close();
  await peer.take("send");
  peer.send({ type: "sent", ref: 1, id: "m1" });
  await closed;
  expect(await sent).toBe("m1");
  expect(() => of.send("too late")).toThrow("closed");
  const other = newClient();
  const waiting = expect(other.messages.send("never")).rejects.toMatchObject({ code: "closed" });
  const opening = expect(other.messages.open()).rejects.toMatchObject({ code: "closed" });
  await other.close();
  await Promise.all([waiting, opening]);
});
