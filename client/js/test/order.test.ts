import { expect, test } from "vitest";
import { WebSocket } from "ws";

import { ThreadClient } from "../src/full.js";
import { messageOf } from "../src/messages.js";
import type { Outgoing } from "../src/messages.js";
import { UNANSWERED } from "../src/protocol.js";
import type { Joined } from "../src/protocol.js";
import { clients, server, serving } from "./serving.js";
import { Session } from "./whole.js";

const JOINED: Joined = { type: "joined", connection: "s1", thread: "note/a", epoch: "e", version: 1 };

serving();

function open(): ThreadClient {
  const client = new ThreadClient({ host: server.host, kind: "note", name: "a", WebSocket });
  clients.push(client);
  return client;
}

function joined(now = () => 0): Session {
  const session = new Session({ client: "c1", now });
  session.open();
  session.receive({ ...JOINED, state: { n: 0 } });
  session.takeFrames();
  return session;
}

function increase(session: Session, times: number): void {
  for (let n = 1; n <= times; n++) session.push([{ op: "replace", path: "/n", value: n }]);
}

/** Those of what was asked for: the counting of messages is none of it. */
function types(frames: readonly Outgoing[]): string {
  return frames
    .filter(({ type }) => type !== "ping")
    .map((frame) => frame.type)
    .join(" ");
}

test("calls and messages wait until the changes before them are sent, and stay in order", () => {
  const session = joined();
  increase(session, UNANSWERED + 2);
  session.call("first");
  session.send(messageOf("second"));
  session.push([{ op: "add", path: "/after", value: true }]);
  session.call("third");
  expect(types(session.takeFrames())).toBe(Array(UNANSWERED).fill("push").join(" "));
  session.receive({ type: "ack", ref: 1, version: 2 });
  expect(types(session.takeFrames())).toBe("push");
  session.receive({ type: "ack", ref: 2, version: 3 });
  expect(types(session.takeFrames())).toBe("push call message");
  session.receive({ type: "ack", ref: 3, version: 4 });
  expect(types(session.takeFrames())).toBe("push call");
});

test("while changes come too fast, what is made after them waits for their answers, and is sent one at a time", () => {
  let now = 0;
  const session = joined(() => now);
  const passed = () => types(session.takeFrames());
  /** Goes on to when something is due. */
  const wait = () => {
    now = session.due as number;
    session.tick();
    return passed();
  };
  increase(session, 2);
  expect(passed()).toBe("push push");
  for (const ref of [1, 2]) {
    session.receive({ type: "nack", ref, code: "rate_limited", message: "slow", version: 1, retry_after: 3 });
  }
  session.call("late");
  session.send(messageOf("later"));
  session.push([{ op: "add", path: "/after", value: true }]);
  session.call("last");
  expect([passed(), wait()]).toEqual(["", "push push"]);
  session.receive({ type: "ack", ref: 1, version: 2 });
  session.receive({ type: "ack", ref: 2, version: 3 });
  expect([passed(), wait(), wait()]).toEqual(["", "call", "message push"]);
  session.receive({ type: "nack", ref: 3, code: "rate_limited", message: "slow", version: 3, retry_after: 1 });
  expect([passed(), wait()]).toEqual(["", "push"]);
  session.receive({ type: "ack", ref: 3, version: 4 });
  expect([passed(), wait()]).toEqual(["", "call"]);
  increase(session, 2);
  session.call("as ever");
  session.call("as ever");
  expect([passed(), wait()]).toEqual(["push push", "call call"]);
});

test("a frame that is read when the time of a message has come does not put it off", () => {
  let now = 0;
  const session = joined(() => now);
  increase(session, 1);
  session.receive({ type: "nack", ref: 1, code: "rate_limited", message: "slow", version: 1, retry_after: 0.5 });
  session.send(messageOf("text"));
  now = session.due as number;
  session.tick();
  session.receive({ type: "ack", ref: 1, version: 2 });
  session.takeFrames();
  now += 0.51;
  session.receive({ type: "message", data: "of another" });
  expect(session.due).toBeLessThanOrEqual(now);
  session.tick();
  expect(types(session.takeFrames())).toBe("message");
});

test("once changes that came too fast are answered, those after them wait for nothing", () => {
  let now = 0;
  const session = joined(() => now);
  increase(session, 1);
  session.receive({ type: "nack", ref: 1, code: "rate_limited", message: "slow", version: 1, retry_after: 3 });
  now = session.due as number;
  session.tick();
  for (let ref = 1; ref < 5; ref++) {
    session.receive({ type: "ack", ref, version: ref + 1 });
    session.takeFrames();
    increase(session, 1);
    expect(types(session.takeFrames())).toBe("push");
  }
});

test("what is after a call that is cancelled before it was sent goes out at once", () => {
  let now = 0;
  const session = joined(() => now);
  increase(session, 1);
  session.takeFrames();
  session.receive({ type: "nack", ref: 1, code: "rate_limited", message: "slow", version: 1, retry_after: 1 });
  const ref = session.call("slow");
  increase(session, 1);
  now = 1;
  session.tick();
  session.takeFrames();
  session.receive({ type: "ack", ref: 1, version: 2 });
  expect(types(session.takeFrames())).toBe("");
  session.cancel(ref);
  expect(types(session.takeFrames())).toBe("push");
});

test("a call whose changes were refused or are lost with the socket still goes out", () => {
  const session = joined();
  increase(session, UNANSWERED + 1);
  session.call("late");
  session.lost(1006);
  session.open();
  session.receive({ ...JOINED, version: 9, last_ref: UNANSWERED + 1, state: { n: 9 } });
  expect(types(session.takeFrames()).split(" ").slice(-2)).toEqual(["push", "push"]);
  session.receive({ type: "nack", ref: 1, code: "rejected", message: "no", version: 9 });
  expect(types(session.takeFrames())).toBe("push call");
});

test("a call that waits for changes is cancelled without a word", () => {
  const session = joined();
  increase(session, UNANSWERED + 1);
  session.cancel(session.call("late"));
  session.receive({ type: "ack", ref: 1, version: 2 });
  expect(types(session.takeFrames())).toBe(
    Array(UNANSWERED + 1)
      .fill("push")
      .join(" "),
  );
});

test("what was called and said before the first join comes after the changes before it", async () => {
  const client = open();
  const before = client.call("before");
  void client.update("/n", 1);
  const controller = new AbortController();
  const cancelled = client.callWith("cancelled", { signal: controller.signal });
  const args = ["as it was"];
  const call = client.call("after", args);
  args[0] = "changed";
  client.send("said");
  void client.update("/n", 2);
  expect(client.pending).toBe(2);
  controller.abort(new Error("enough"));
  await expect(cancelled).rejects.toThrow("enough");
  const peer = await server.peer();
  await peer.join({ state: { n: 0 } });
  const first = await peer.take("call");
  expect((await peer.take("push")).ops).toMatchObject([{ value: 1 }]);
  const second = await peer.take("call");
  expect(second).toMatchObject({ method: "after", args: [["as it was"]] });
  expect((await peer.take("message")).data).toBe("said");
  expect((await peer.take("push")).ops).toMatchObject([{ value: 2 }]);
  for (const { ref, method } of [first, second]) peer.send({ type: "result", ref, value: method, done: true });
  expect([await before, await call]).toEqual(["before", "after"]);
});

test("what a subscriber asks for when early changes are made comes after all of them", async () => {
  const client = open();
  for (const n of [1, 2, 3]) void client.update("/n", n);
  const unsubscribe = client.subscribe(() => {
    if (client.state?.n === undefined) return;
    unsubscribe();
    void client.update("/n", 4);
    void client.call("after");
  });
  const peer = await server.peer();
  await peer.join({ state: {} });
  for (const n of [1, 2, 3, 4]) expect((await peer.take("push")).ops).toMatchObject([{ value: n }]);
  await peer.take("call");
  expect(client.state).toEqual({ n: 4 });
});

test("bytes keep their place among the changes and messages before and after them, and their content", async () => {
  const client = open();
  const bytes = new Uint8Array([0, 1, 2]);
  void client.update("/n", 1);
  client.send(bytes.buffer);
  const peer = await server.peer();
  await peer.join({ state: { n: 0 } });
  await client.ready;
  for (let n = 0; n < UNANSWERED; n++) void client.update("/n", n);
  client.send("text");
  client.send(bytes.subarray(1));
  bytes.fill(9);
  client.send("more text");
  expect([...(await peer.bytes.take())]).toEqual([0, 1, 2]);
  peer.send({ type: "ack", ref: 1, version: 2 });
  expect([...(await peer.bytes.take())]).toEqual([1, 2]);
  while ((await peer.frames.take()).type !== "message") continue;
  await peer.take("message");
  expect(peer.types.join(" ")).toBe(`join push bytes${" push".repeat(UNANSWERED)} message bytes message`);
});

test("a call made after early changes fails when the client is closed before it has joined", async () => {
  const client = open();
  void client.update("/n", 1);
  const call = client.call("after");
  client.close();
  await expect(call).rejects.toMatchObject({ code: "closed" });
});
