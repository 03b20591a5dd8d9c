import { expect, test } from "vitest";

import { restore, takeBacklog } from "../src/backlog.js";
import type { Backlog } from "../src/backlog.js";
import { PlaitError } from "../src/errors.js";
import type { Json } from "../src/json.js";
import { PatchError } from "../src/patch.js";
import { UNANSWERED } from "../src/protocol.js";
import type { Joined, Op, ServerMessage } from "../src/protocol.js";
import { CALLS_AT_ONCE } from "../src/sending.js";
import { Session, diff } from "./whole.js";

const JOINED: Joined = { type: "joined", connection: "s1", thread: "note/a", epoch: "e", version: 1 };
const STATE = { n: 1, list: [{ t: "a" }, { t: "b" }], other: { deep: [1] } };

function replace(path: string, value: Json): Op {
  return { op: "replace", path, value };
}

/** A session that has joined with a state, and whose join was taken. */
function joined(state: Json = STATE, options: { lastRef?: number } = {}): Session {
  const session = new Session({ client: "c1", now: () => 0 });
  session.open();
  session.receive({ ...JOINED, state, last_ref: options.lastRef ?? 0 });
  session.takeFrames();
  session.takeEvents();
  return session;
}

function change(version: number, ...ops: Op[]): ServerMessage {
  return { type: "change", version, ops, source: "s2" };
}

test("an ack of what is shown changes the identity of nothing that is shown", () => {
  const session = joined();
  session.push([replace("/n", 2)]);
  session.push([replace("/list/0/t", "A")]);
  const { shown } = session;
  session.receive({ type: "ack", ref: 1, version: 2 });
  expect(session.shown).toBe(shown);
  session.receive({ type: "ack", ref: 2, version: 3 });
  expect(session.shown).toBe(shown);
  expect(session.confirmed).toBe(shown);
});

test("a change of others leaves what it does not lead through as it was, under pending pushes too", () => {
  const session = joined();
  session.push([replace("/list/0/t", "A")]);
  const before = session.shown as typeof STATE;
  session.receive(change(2, replace("/n", 5)));
  const after = session.shown as typeof STATE;
  expect(after.n).toBe(5);
  expect(after.list).toBe(before.list);
  expect(after.other).toBe(before.other);
});

test("a whole state that is the same as what is known changes the identity of nothing", () => {
  const session = joined();
  const { shown } = session;
  session.receive({ type: "snapshot", epoch: "e", version: 9, state: structuredClone(STATE) });
  expect(session.shown).toBe(shown);
  expect([session.epoch, session.version]).toEqual(["e", 9]);
});

test("an own change that others overtake shows all the while", () => {
  const session = joined();
  session.push([replace("/list/1/t", "B")]);
  session.receive(change(2, { op: "add", path: "/list/0", value: { t: "new" } }));
  expect((session.shown as typeof STATE).list).toEqual([{ t: "new" }, { t: "a" }, { t: "B" }]);
  const { shown } = session;
  session.receive({ type: "ack", ref: 1, version: 3, rebased: true, ops: [replace("/list/2/t", "B")] });
  expect(session.shown).toBe(shown);
});

test("after a whole state, an own change stays at its element or is left out, and hits no other", () => {
  const cards = (...ids: string[]) => ({ cards: ids.map((id) => ({ id, t: "" })), tags: ["a", "b"] });
  const session = joined(cards("a", "b"));
  session.push([replace("/cards/1/t", "B")]);
  session.push([replace("/cards/0/t", "A")]);
  session.push([{ op: "remove", path: "/tags/1" }]);
  session.receive({ type: "snapshot", epoch: "e", version: 9, state: { ...cards("x", "y", "b"), tags: ["a", "z"] } });
  const shown = session.shown as ReturnType<typeof cards>;
  expect(shown.cards.map(({ id, t }) => id + t)).toEqual(["x", "y", "bB"]);
  expect(shown.tags).toEqual(["a", "z"]);
});

test("more pushes than may be without an answer wait until one has its", () => {
  const session = joined();
  for (let n = 0; n < UNANSWERED + 3; n++) session.push([replace("/n", n + 100)]);
  expect(session.takeFrames().map((frame) => "ref" in frame && frame.ref)).toEqual(
    Array.from({ length: UNANSWERED }, (_, index) => index + 1),
  );
  session.receive({ type: "ack", ref: 1, version: 2 });
  expect(session.takeFrames()).toEqual([
    { type: "push", ref: 65, base: ["e", 2], made: ["e", 1], answered: 1, ops: [replace("/n", 164)] },
  ]);
});

test("operations that do not fit are refused, and nothing is pushed", () => {
  const session = joined();
  expect(() => session.push([replace("/n", 7), replace("/nowhere/x", 1)])).toThrow(PatchError);
  expect(session.shown).toEqual(STATE);
  expect(session.takeFrames()).toEqual([]);
  session.push([replace("/n", 2)]);
  expect(session.takeFrames()).toMatchObject([{ ref: 1 }]);
});

test("setting what is shown already pushes nothing", () => {
  const session = joined();
  expect(session.push(diff(session.shown, structuredClone(STATE)))).toBeUndefined();
  expect(session.takeFrames()).toEqual([]);
});

test("calls wait for the join and are answered by their refs", () => {
  const session = new Session({ client: "c1", now: () => 0 });
  const ref = session.call("add", [1, 2], { deep: true });
  session.open("secret");
  expect(session.takeFrames()).toEqual([{ type: "join", client: "c1", token: "secret" }]);
  session.receive({ ...JOINED, state: STATE });
  expect(session.takeFrames()).toEqual([{ type: "call", ref, method: "add", args: [1, 2], kwargs: { deep: true } }]);
  session.receive({ type: "result", ref, value: 1, done: false });
  session.receive({ type: "result", ref, value: 3, done: true });
  session.receive({ type: "result", ref, value: 4, done: true });
  expect(session.takeEvents().filter((event) => event.type === "result")).toEqual([
    { type: "result", ref, value: 1, done: false },
    { type: "result", ref, value: 3, done: true },
  ]);
});

test("a call that fails says with which code, and where", () => {
  const session = joined();
  const ref = session.call("add");
  session.receive({ type: "error", ref, code: "invalid_arguments", message: "no", path: "/name" });
  const [event] = session.takeEvents();
  expect(event).toMatchObject({ type: "failed", ref, error: { code: "invalid_arguments", path: "/name" } });
});

test("calls under way are failed when the socket goes, and not sent again", () => {
  const session = joined();
  const ref = session.call("add");
  session.lost(1006);
  expect(session.takeEvents()).toMatchObject([{ type: "failed", ref, error: { code: "disconnected" } }]);
  session.open();
  session.receive({ ...JOINED });
  expect(session.takeFrames().map((frame) => frame.type)).not.toContain("call");
});

test("a call is cancelled on the wire only when it was sent", () => {
  const session = joined();
  session.cancel(session.call("add"));
  expect(session.takeFrames().map((frame) => frame.type)).toEqual(["call", "cancel"]);
  session.lost(1006);
  session.cancel(session.call("add"));
  session.open();
  session.receive({ ...JOINED });
  expect(session.takeFrames().map((frame) => frame.type)).toEqual(["join"]);
});

test("presence is what was joined and updated, less what left, and comes again after each join", () => {
  const session = joined();
  session.setPresence({ name: "me" });
  session.tick();
  expect(session.takeFrames()).toEqual([{ type: "presence", data: { name: "me" } }]);
  session.receive({ type: "presence", snapshot: { a: { x: 1 }, b: { x: 2 } } });
  const before = session.presence;
  session.receive({ type: "presence", joined: { c: { x: 3 } }, updated: { a: { x: 9 } }, left: [] });
  expect(session.presence).toEqual({ a: { x: 9 }, b: { x: 2 }, c: { x: 3 } });
  expect(session.presence["b"]).toBe(before["b"]);
  session.receive({ type: "presence", left: ["a"] });
  const { presence } = session;
  session.receive({ type: "presence", snapshot: { c: { x: 3 }, b: { x: 2 } } });
  expect(session.presence).toBe(presence);
  session.lost(1001);
  session.open();
  session.receive({ ...JOINED });
  expect(session.takeFrames().at(-1)).toEqual({ type: "presence", data: { name: "me" } });
});

test("messages and events are handed on as they come", () => {
  const session = joined();
  session.receive({ type: "message", data: "hello" });
  session.receive({ type: "event", name: "goal", data: { by: "Ada" } });
  session.receive({ type: "auth_expiring", in: 30 });
  expect(session.takeEvents()).toEqual([
    { type: "message", data: "hello" },
    { type: "event", name: "goal", data: { by: "Ada" } },
    { type: "auth_expiring", in: 30 },
  ]);
});

test("frames of a type that is not known are ignored", () => {
  const session = joined();
  session.receive({ type: "weather", sunny: true } as unknown as ServerMessage);
  expect([session.takeEvents(), session.takeFrames(), session.phase]).toEqual([[], [], "joined"]);
});

test("a session that was stopped says what the server complained of", () => {
  const session = joined();
  session.receive({ type: "error", code: "bad_frame", message: "Invalid value 'pushy'" });
  session.lost(4400);
  const [event] = session.takeEvents();
  expect(event).toMatchObject({
    type: "stopped",
    code: 4400,
    error: { code: "bad_frame", message: "Invalid value 'pushy'" },
  });
  expect(event?.type === "stopped" && event.error).toBeInstanceOf(PlaitError);
  session.open();
  expect(session.takeFrames()).toEqual([]);
});

test("what comes while a new socket is asked for is not looked at", () => {
  const session = joined();
  session.receive(change(5, replace("/n", 9)));
  session.receive(change(2, replace("/n", 8)));
  expect(session.takeEvents()).toEqual([{ type: "rejoin" }]);
  expect(session.shown).toEqual(STATE);
});

/** What a session keeps, as it is read by another. */
function kept(session: Session): Backlog {
  return JSON.parse(JSON.stringify(takeBacklog(session))) as Backlog;
}

test("another life of a client goes on with the pushes that it kept, and shows them before it has joined", () => {
  const first = joined();
  first.push([{ op: "add", path: "/list/0", value: { t: "mine" } }]);
  first.lost(1006);
  first.push([replace("/list/0/t", "MINE")]);
  const second = new Session({ client: "c2", now: () => 0 });
  restore(second, kept(first));
  expect(second.shown).toEqual(first.shown);
  second.open();
  expect(second.takeFrames()).toEqual([{ type: "join", client: "c1", have: ["e", 1] }]);
  const theirs: Op = { op: "add", path: "/list/0", value: { t: "theirs" } };
  const own: Op = { op: "add", path: "/list/1", value: { t: "mine" } };
  second.receive({ ...JOINED, version: 3, ops: [theirs, own], last_ref: 1 });
  expect(second.takeFrames()).toMatchObject([
    { type: "push", ref: 1 },
    { type: "push", ref: 2, base: ["e", 3], made: ["e", 1], ops: [replace("/list/1/t", "MINE")] },
  ]);
  second.push([replace("/n", 2)]);
  expect(second.takeFrames()).toMatchObject([{ ref: 3 }]);
});

test("what another life has made before it could join is sent, whatever numbers the server has seen before", () => {
  const first = joined();
  first.lost(1006);
  first.push([replace("/list/0/t", "A")]);
  const second = new Session({ client: "c2", now: () => 0 });
  restore(second, kept(first));
  second.push([replace("/n", 2)]);
  const third = new Session({ client: "c3", now: () => 0 });
  restore(third, kept(second));
  third.open();
  third.takeFrames();
  // A copy of the first life has sent its push, and two more.
  third.receive({ ...JOINED, version: 4, state: { ...STATE, list: [{ t: "A" }, { t: "C" }] }, last_ref: 3 });
  expect(third.takeFrames()).toMatchObject([
    { type: "push", ref: 1, ops: [] },
    { type: "push", ref: 4, ops: [replace("/n", 2)] },
  ]);
});

test("what is to be kept is said once, and without a state when nothing is pending", () => {
  const session = joined();
  expect(takeBacklog(session)).toEqual({ client: "c1", next: 1, fold: undefined });
  expect(takeBacklog(session)).toBeUndefined();
  session.push([replace("/n", 2)]);
  expect(takeBacklog(session)).toMatchObject({
    next: 2,
    fold: { at: ["e", 1], confirmed: STATE, pushes: [{ ref: 1 }] },
  });
  session.receive(change(2, replace("/other", 1)));
  expect(takeBacklog(session)).toMatchObject({ fold: { at: ["e", 2], confirmed: { other: 1 } } });
  session.receive({ type: "ack", ref: 1, version: 3 });
  expect(takeBacklog(session)).toEqual({ client: "c1", next: 2, fold: undefined });
  session.receive(change(4, replace("/other", 2)));
  expect(takeBacklog(session)).toBeUndefined();
});

test("refs continue after those that the server has seen of this client", () => {
  const session = joined(STATE, { lastRef: 41 });
  session.push([replace("/n", 2)]);
  expect(session.takeFrames()).toMatchObject([{ type: "push", ref: 42 }]);
});

test("the answer to a push that a join has settled takes it away, and changes nothing else", () => {
  const session = joined({ list: [] });
  const push = session.push([{ op: "add", path: "/list/-", value: "x" }]);
  session.takeFrames();
  session.lost(1006);
  session.open();
  session.receive({ ...JOINED, version: 2, ops: [{ op: "add", path: "/list/-", value: "x" }], last_ref: 1 });
  session.takeEvents();
  session.receive({ type: "ack", ref: 1, version: 3 });
  expect(session.takeEvents()).toEqual([{ type: "applied", push, version: 3 }]);
  expect([session.confirmed, session.shown, session.version, session.pushes]).toEqual([
    { list: ["x"] },
    { list: ["x"] },
    2,
    [],
  ]);
});

function sent(session: Session): (number | string)[] {
  return session.takeFrames().flatMap((frame) => {
    if (frame.type === "ping") return [];
    return [frame.type === "call" ? frame.ref : frame.type];
  });
}

test("calls above those that may wait in the server are sent in order as others end", () => {
  const session = joined();
  const refs = Array.from({ length: CALLS_AT_ONCE + 3 }, () => session.call("count"));
  session.send({ type: "message", data: "after them" });
  session.push([replace("/n", 2)]);
  expect(sent(session)).toEqual(refs.slice(0, CALLS_AT_ONCE));
  session.receive({ type: "result", ref: refs[7] as number, done: true, value: 1 });
  expect(sent(session)).toEqual([refs[CALLS_AT_ONCE]]);
  session.receive({ type: "result", ref: refs[8] as number, done: false, value: 1 });
  expect(sent(session)).toEqual([]);
  session.receive({ type: "error", ref: refs[8] as number, code: "call_failed", message: "no" });
  expect(sent(session)).toEqual([refs[CALLS_AT_ONCE + 1]]);
  session.cancel(refs[0] as number);
  expect(sent(session)).toEqual(["cancel", refs[CALLS_AT_ONCE + 2], "message", "push"]);
});
