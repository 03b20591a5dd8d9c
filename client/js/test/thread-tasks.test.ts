/** The tasks of a thread, as a page works with them. */

import { expect, test } from "vitest";
import { WebSocket } from "ws";

import { ThreadClient, messages, tasks } from "../src/index.js";
import type { TaskRun, ThreadOptions } from "../src/index.js";
import type { Part } from "../src/protocol.js";
import type { Peer } from "./server.js";
import { clients, server, serving } from "./serving.js";

serving();

const RUN: TaskRun = { id: "a", name: "work", status: "running", created_at: 1 };

function newClient(options: Partial<ThreadOptions<unknown>> = {}): ThreadClient {
  const client = new ThreadClient({ host: server.host, kind: "desk", name: "a", WebSocket, tasks, ...options });
  clients.push(client);
  return client;
}

async function opened(runs: TaskRun[]): Promise<[ThreadClient, Peer]> {
  const client = newClient();
  const opening = client.tasks.open();
  const peer = await server.peer();
  await peer.join({ version: 0 });
  expect(await peer.take("open")).toEqual({ type: "open", part: "tasks" });
  peer.send({ type: "page", part: "tasks", revision: 0, reset: true, runs });
  expect(await opening).toEqual(runs);
  return [client, peer];
}

function update(revision: number, run: TaskRun): Part {
  return { type: "part", part: "tasks", revision, op: "update", run };
}

/** Resolves when something is so, which is looked at whenever the runs change. */
function until({ tasks }: ThreadClient, isSo: () => boolean): Promise<void> {
  return new Promise((resolve) => {
    const look = () => {
      if (isSo()) resolve();
    };
    tasks.subscribe(look);
    look();
  });
}

test("without the option there are none", () => {
  expect(newClient({ tasks: undefined }).tasks).toBeUndefined();
});

test("a run stays the same object until it changes, and others do while it does", async () => {
  const other: TaskRun = { id: "b", name: "work", status: "sleeping", created_at: 2 };
  const [client, peer] = await opened([RUN, other]);
  const [items, found] = [client.tasks.items, client.tasks.find("b")];
  expect(client.tasks.items).toBe(items);
  peer.send(update(1, { ...RUN, value: { done: 1 } }));
  await until(client, () => client.tasks.items !== items);
  expect(client.tasks.find("a")?.value).toEqual({ done: 1 });
  expect(client.tasks.find("b")).toBe(found);
  expect(client.tasks.find("c")).toBeUndefined();
});

test("runs are begun and decided about by calls", async () => {
  const [{ tasks: of }, peer] = await opened([]);
  const asked: [Promise<unknown>, string, unknown[], object?][] = [
    [of.run("work", 1, "two"), "task:work", [1, "two"]],
    [of.runWith("work", { args: [1], key: "k" }), "task:work", [1], { key: "k" }],
    [of.send("a", "go"), "tasks:send", ["a", "go", null]],
    [of.approve("a", "publish"), "tasks:send", ["a", "publish", { approved: true, reason: "", metadata: {} }]],
    [
      of.reject("a", "publish", { reason: "no", metadata: { by: 1 } }),
      "tasks:send",
      ["a", "publish", { approved: false, reason: "no", metadata: { by: 1 } }],
    ],
    [of.cancel("a"), "tasks:cancel", ["a"]],
  ];
  for (const [answer, method, args, kwargs = {}] of asked) {
    const { ref, ...call } = await peer.take("call");
    expect({ args: [], kwargs: {}, ...call }).toEqual({ type: "call", method, args, kwargs });
    peer.send({ type: "result", ref, done: true, value: method });
    expect(await answer).toBe(method);
  }
});

test("a run that is asked for is shown from then on, until a page without it comes", async () => {
  const [client, peer] = await opened([RUN]);
  const old: TaskRun = { id: "old", name: "work", status: "done", result: 3, created_at: 0 };
  for (const value of [old, null]) {
    const found = client.tasks.get("old");
    peer.send({ type: "result", ref: (await peer.take("call")).ref, done: true, value: value as never });
    expect(await found).toEqual(value ?? undefined);
  }
  expect(client.tasks.items).toEqual([old, RUN]);
  peer.send({ type: "part", part: "tasks", revision: 0, op: "missed" });
  expect(await peer.take("open")).toEqual({ type: "open", part: "tasks", since: 0 });
  peer.send({ type: "page", part: "tasks", revision: 7, reset: true, runs: [RUN] });
  await until(client, () => client.tasks.items.length === 1);
});

test("the runs that are not over and the last 50 that are are kept", async () => {
  const [client, peer] = await opened([RUN]);
  for (let number = 1; number <= 300; number++) {
    peer.send(update(number, { id: `${number}`, name: "work", status: "done", created_at: number + 1 }));
  }
  await until(client, () => client.tasks.find("300") !== undefined);
  expect(client.tasks.items.map(({ id }) => id)).toEqual(["a", ...Array.from({ length: 50 }, (_, i) => `${251 + i}`)]);
  peer.send(update(301, { ...RUN, status: "done" }));
  await until(client, () => client.tasks.find("251") === undefined);
  expect(client.tasks.items.map(({ id }) => id)).toEqual(["a", ...Array.from({ length: 49 }, (_, i) => `${252 + i}`)]);
});

test("tasks and messages of one client know nothing of each other", async () => {
  const client = newClient({ messages });
  const [opening, shown] = [client.tasks.open(), client.messages.open()];
  const peer = await server.peer();
  await peer.join({ version: 0 });
  expect([(await peer.take("open")).part, (await peer.take("open")).part].sort()).toEqual(["messages", "tasks"]);
  let changes = 0;
  client.messages.subscribe(() => changes++);
  peer.send({ type: "page", part: "messages", revision: 0, reset: true });
  await shown;
  const before = changes;
  peer.send({ type: "page", part: "tasks", revision: 0, reset: true, runs: [RUN] });
  expect(await opening).toEqual([RUN]);
  expect([client.messages.items, changes]).toEqual([[], before]);
  expect(() => client.tasks.of("messages")).toThrow("in use");
  expect(client.tasks.of("jobs").of("tasks")).toBe(client.tasks);
});

test("what cannot be opened says why", async () => {
  const client = newClient();
  const opening = client.tasks.open();
  const peer = await server.peer();
  await peer.join({ version: 0 });
  await peer.take("open");
  peer.send({ type: "unopened", part: "tasks", code: "not_found", message: "no such part" });
  await expect(opening).rejects.toMatchObject({ code: "not_found" });
  expect(client.tasks.error?.code).toBe("not_found");
});
