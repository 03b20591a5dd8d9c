import { expect, test } from "vitest";

import { messageOf } from "../src/messages.js";
import type { Outgoing } from "../src/messages.js";
import type { Joined, Message, ServerMessage } from "../src/protocol.js";
import { Random } from "./random.js";
import { Session } from "./whole.js";

const JOINED: Joined = { type: "joined", connection: "s1", thread: "note/a", epoch: "e", version: 1, state: { n: 0 } };

let now = 0;

function joined(): Session {
  now = 0;
  const session = new Session({ client: "c1", now: () => now });
  session.open();
  session.receive(JOINED);
  session.takeFrames();
  return session;
}

/** Goes on to when something is due. */
function wait(session: Session): Outgoing[] {
  now = session.due as number;
  session.tick();
  return session.takeFrames();
}

function refusal(refused: string, more: object = {}): ServerMessage {
  return { type: "error", code: "rate_limited", message: "slow", refused, retry_after: 3, ...more };
}

/** Answers all pings that are sent, as the server does that has taken so many messages. */
function answer(session: Session, taken: number): Outgoing[] {
  const frames = session.takeFrames();
  for (const { type } of frames) if (type === "ping") session.receive({ type: "pong", messages: taken });
  return frames;
}

function data(frames: readonly Outgoing[]): unknown[] {
  return frames.map((frame) => (frame.type === "message" || frame.type === "presence" ? frame.data : frame));
}

/** Takes messages as a server does, and refuses some. */
class Taker {
  readonly heard: unknown[] = [];
  readonly answers: ServerMessage[] = [];
  readonly #random: Random;
  #next = 1;

  constructor(random: Random) {
    this.#random = random;
  }

  receive(frame: Outgoing): void {
    if (frame.type === "ping" && typeof frame.messages === "number") {
      this.#next = frame.messages + 1;
      this.answers.push({ type: "pong", messages: this.heard.length });
    } else if (frame.type === "message" || frame.type === "bytes") {
      const isNext = this.#next++ === this.heard.length + 1;
      if (this.#random.chance(0.2)) {
        this.answers.push(refusal("message", { messages: this.heard.length, retry_after: 0.1 }));
      } else if (isNext) this.heard.push(frame.type === "message" ? frame.data : frame.data[0]);
    }
  }
}

test("whatever is refused, all messages arrive once and in order", () => {
  for (let seed = 0; seed < 100; seed++) {
    const random = new Random(seed);
    const session = joined();
    const taker = new Taker(random);
    const sent: number[] = [];
    const carried: Outgoing[] = [];
    const expected = Array.from({ length: 200 }, (_, n) => n % 250);
    for (let steps = 0; taker.heard.length < expected.length; steps++) {
      expect(steps).toBeLessThan(20_000);
      if (sent.length < expected.length && random.chance(0.5)) {
        session.send(messageOf(random.chance(0.2) ? new Uint8Array([sent.length]) : sent.length));
        sent.push(sent.length);
      }
      carried.push(...session.takeFrames());
      // Frames and answers are on their way for a while.
      if (random.chance(0.6)) for (const frame of carried.splice(0, random.below(20) + 1)) taker.receive(frame);
      if (random.chance(0.4))
        for (const answer of taker.answers.splice(0, random.below(20) + 1)) session.receive(answer);
      now += 0.02;
      session.tick();
    }
    expect(taker.heard).toEqual(expected);
  }
});

test("whatever is refused, however late that is heard of, and whenever sockets are lost, no message arrives twice", () => {
  for (let seed = 0; seed < 150; seed++) {
    const random = new Random(seed);
    const session = joined();
    const heard: unknown[] = [];
    let [taker, carried] = [new Taker(random), [] as Outgoing[]];
    for (let step = 0; step < 300; step++) {
      if (random.chance(0.5)) session.send(messageOf(step));
      carried.push(...session.takeFrames());
      if (random.chance(0.6)) for (const frame of carried.splice(0, random.below(20) + 1)) taker.receive(frame);
      const { answers } = taker;
      if (random.chance(0.3)) for (const answer of answers.splice(0, random.below(20) + 1)) session.receive(answer);
      if (random.chance(0.05)) {
        heard.push(...taker.heard);
        [taker, carried] = [new Taker(random), []];
        session.lost(1006);
        session.open();
        session.receive(JOINED);
      }
      now += 0.02;
      session.tick();
    }
    heard.push(...taker.heard);
    expect(heard).toEqual([...new Set(heard)].sort((a, b) => (a as number) - (b as number)));
  }
});

test("messages are asked about now and then, and no more than the server may hold are without an answer", () => {
  const session = joined();
  for (let n = 0; n < 100; n++) session.send(messageOf(n));
  const frames = session.takeFrames();
  expect(frames.filter(({ type }) => type === "message")).toHaveLength(64);
  expect(frames.filter(({ type }) => type === "ping")).toEqual([
    { type: "ping", messages: 0 },
    { type: "ping", messages: 32 },
    { type: "ping", messages: 64 },
  ]);
  session.receive({ type: "pong", messages: 32 });
  expect(session.takeFrames().filter(({ type }) => type === "message")).toHaveLength(32);
  session.receive({ type: "pong", messages: 64 });
  session.receive({ type: "pong", messages: 96 });
  const last = session.takeFrames().filter(({ type }) => type === "message");
  expect(last.map((frame) => (frame as Message).data)).toEqual([96, 97, 98, 99]);
});

test("what is asked for after messages that are sent again waits for them", () => {
  const session = joined();
  for (const text of ["a", "b"]) session.send(messageOf(text));
  answer(session, 0);
  session.receive(refusal("message", { messages: 0 }));
  session.send(messageOf("c"));
  session.call("later");
  session.push([{ op: "replace", path: "/n", value: 1 }]);
  expect(answer(session, 0)).toEqual([{ type: "ping", messages: 2 }]);
  expect(wait(session)).toMatchObject([
    { type: "ping", messages: 0 },
    { data: "a" },
    { data: "b" },
    { type: "ping", messages: 2 },
    { data: "c" },
    { type: "call" },
    { type: "push" },
  ]);
  expect(now).toBe(3);
});

test("a change alone waits for the messages before it that are sent again, too", () => {
  const session = joined();
  session.send(messageOf("a"));
  answer(session, 0);
  session.receive(refusal("message", { messages: 0 }));
  session.push([{ op: "replace", path: "/n", value: 1 }]);
  expect(answer(session, 0)).toEqual([{ type: "ping", messages: 1 }]);
  const frames = wait(session);
  expect(frames).toMatchObject([{ type: "ping" }, { data: "a" }, { type: "ping" }, { type: "push" }]);
});

test("nothing is sent again before all that was on its way is answered", () => {
  const session = joined();
  for (let n = 0; n < 64; n++) session.send(messageOf(n));
  session.takeFrames();
  session.receive({ type: "pong", messages: 0 });
  for (let n = 0; n < 20; n++) session.receive(refusal("message", { messages: 10, retry_after: 0.001 }));
  expect(session.takeFrames()).toEqual([{ type: "ping", messages: 64 }]);
  now = 1;
  session.tick();
  session.receive({ type: "pong", messages: 10 });
  expect([session.takeFrames(), session.due]).toEqual([[], 21]);
  for (let n = 0; n < 34; n++) session.receive(refusal("message", { messages: 10 }));
  for (let n = 0; n < 2; n++) {
    expect(session.takeFrames()).toEqual([]);
    session.receive({ type: "pong", messages: 10 });
  }
  const again = Array.from({ length: 54 }, (_, n) => 10 + n);
  expect(data(wait(session))).toEqual([{ type: "ping", messages: 10 }, ...again, { type: "ping", messages: 64 }]);
  expect(now).toBe(4);
});

test("what is sent again goes out with the last answer where the time has passed", () => {
  const session = joined();
  session.send(messageOf("a"));
  answer(session, 0);
  session.receive(refusal("message", { messages: 0 }));
  now = 5;
  session.tick();
  expect(answer(session, 0)).toEqual([{ type: "ping", messages: 1 }]);
  expect(data(session.takeFrames())).toEqual([{ type: "ping", messages: 0 }, "a", { type: "ping", messages: 1 }]);
});

test("messages that wait when a socket is lost are sent on the next, and those on their way are not sent twice", () => {
  const session = joined();
  session.send(messageOf("on its way"));
  session.lost(1006);
  session.open();
  session.receive(JOINED);
  for (const text of ["a", "b"]) session.send(messageOf(text));
  session.receive(refusal("message", { messages: 1 }));
  session.lost(1006);
  session.takeFrames();
  session.open();
  expect(session.due).toBe(20);
  session.receive(JOINED);
  expect(data(session.takeFrames())).toMatchObject([
    { type: "join" },
    { type: "ping", messages: 0 },
    "b",
    { type: "ping", messages: 1 },
  ]);
});

test("what was sent again is sent on the next socket only where it was refused again", () => {
  const session = joined();
  for (const text of ["a", "b"]) session.send(messageOf(text));
  session.receive(refusal("message", { messages: 0 }));
  answer(session, 0);
  expect(data(wait(session))).toContain("b");
  session.lost(1006);
  session.open();
  session.receive(JOINED);
  expect(session.takeFrames()).toMatchObject([{ type: "join" }]);
  for (const text of ["c", "d"]) session.send(messageOf(text));
  session.receive(refusal("message", { messages: 0 }));
  answer(session, 0);
  wait(session);
  session.receive(refusal("message", { messages: 1 }));
  session.lost(1006);
  session.open();
  session.receive(JOINED);
  const again = [{ type: "ping", messages: 0 }, "d", { type: "ping", messages: 1 }];
  expect(data(session.takeFrames()).slice(1)).toEqual(again);
});

test("messages that are sent while a lost connection is joined again are counted, too", () => {
  const session = joined();
  session.lost(1006);
  session.open();
  for (const text of ["a", "b"]) session.send(messageOf(text));
  session.receive(JOINED);
  expect(data(session.takeFrames())).toMatchObject([{ type: "join" }, { type: "ping", messages: 0 }, "a", "b"]);
});

test("a client that closes asks whether its messages were taken, and waits for that", () => {
  const session = joined();
  session.send(messageOf("a"));
  answer(session, 0);
  session.finish();
  expect([session.takeFrames(), session.isBusy]).toEqual([[{ type: "ping", messages: 1 }], true]);
  session.receive(refusal("message", { messages: 0 }));
  session.receive({ type: "pong", messages: 0 });
  answer(session, 0);
  expect(data(wait(session))).toContain("a");
  session.receive({ type: "pong", messages: 1 });
  expect(session.isBusy).toBe(false);
});

test("a client that closes while messages are to be sent again on the next socket waits for them", () => {
  const session = joined();
  session.send(messageOf("a"));
  session.receive(refusal("message", { messages: 0 }));
  session.lost(1006);
  session.open();
  session.finish();
  session.receive(JOINED);
  expect(data(answer(session, 1))).toContain("a");
  expect(session.isBusy).toBe(false);
});

test("of presences that are set in a row the last one is sent, and the next one 25 ms later", () => {
  const session = joined();
  for (const n of [1, 2, 3]) session.setPresence(n);
  expect([session.takeFrames(), data(wait(session)), now]).toEqual([[], [3], 0]);
  for (const n of [4, 5]) session.setPresence(n);
  session.tick();
  expect([session.takeFrames(), data(wait(session)), now]).toEqual([[], [5], 0.025]);
  now = 1;
  session.setPresence(6);
  session.send(messageOf("a"));
  expect(data(answer(session, 1)).filter((frame) => typeof frame !== "object")).toEqual([6, "a"]);
});

test("of presences that come too fast the last one is sent, and from then on they are gathered", () => {
  const session = joined();
  session.setPresence(3);
  expect(data(wait(session))).toEqual([3]);
  for (const retry_after of [1, 2]) session.receive(refusal("presence", { retry_after }));
  for (const n of [4, 5]) session.setPresence(n);
  expect([session.takeFrames(), data(wait(session)), now]).toEqual([[], [5], 2]);
  for (const n of [6, 7]) session.setPresence(n);
  session.setPresence(null);
  expect([session.takeFrames(), data(wait(session)), now]).toEqual([[], [null], 2.05]);
  session.receive(refusal("presence"));
  expect(data(wait(session))).toEqual([null]);
});

test("a fresh token that came too fast is sent again", () => {
  const session = joined();
  session.auth("fresh");
  session.takeFrames();
  session.receive(refusal("auth"));
  expect([session.takeFrames(), wait(session), now]).toEqual([[], [{ type: "auth", token: "fresh" }], 3]);
});
