/** Queries that are followed for components that wait for them, which have no effects. */

import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { PlaitError } from "../src/errors.js";
import { LiveQueries } from "../src/queries-part.js";
import { keyOf } from "../src/queries.js";
import { Session } from "../src/session.js";

const KEY = keyOf("open_orders", ["c1"]);
const FAILED = { at: 1, error: { code: "sql_error", message: "no such table" } };

beforeEach(() => void vi.useFakeTimers());

afterEach(() => void vi.useRealTimers());

/** The queries of a session that has joined, and functions for what is sent and what comes. */
function joined(status = "online") {
  const session = new Session({ client: "c1", now: () => 0 });
  const closedError = new PlaitError("closed", "the client is closed");
  const live = new LiveQueries({ session, status, closedError, pump: () => undefined });
  session.open();
  session.receive({ type: "joined", connection: "s1", thread: "shop/a", epoch: "e", version: 0 });
  session.takeFrames();
  const sent = () => session.takeFrames().map(({ type }) => type);
  const receive = (ref: number, value: object) => {
    session.receive({ type: "result", ref, done: false, value: value as never });
    session.takeEvents();
  };
  return { live, sent, receive };
}

test("a query for which no component comes is followed for a minute after it was last asked for", async () => {
  const { live, sent } = joined();
  const first = live.wait(KEY);
  expect(sent()).toEqual(["call"]);
  vi.advanceTimersByTime(59_999);
  expect(live.wait(KEY)).toBe(first);
  vi.advanceTimersByTime(59_999);
  expect(sent()).toEqual([]);
  vi.advanceTimersByTime(1);
  expect(sent()).toEqual(["cancel"]);
  // A component that still waits asks again.
  await first;
  void live.wait(KEY);
  expect(sent()).toEqual(["call"]);
});

test("the result of a query is kept for the component that waits", async () => {
  const { live, sent, receive } = joined();
  const waited = live.wait(KEY);
  receive(1, { at: 1, tag: "t", rows: ["tea"] });
  await waited;
  vi.advanceTimersByTime(59_999);
  expect(live.read(KEY).data).toEqual(["tea"]);
  const stop = live.subscribe(KEY, () => undefined);
  vi.advanceTimersByTime(120_000);
  expect(sent()).toEqual(["call"]);
  stop();
  await Promise.resolve();
  expect(sent()).toEqual(["cancel"]);
});

test("an error without a result is kept for a second, so that another attempt calls again", async () => {
  const { live, sent, receive } = joined();
  const waited = live.wait(KEY);
  receive(1, FAILED);
  await waited;
  vi.advanceTimersByTime(999);
  expect(live.read(KEY).error).toMatchObject({ code: "sql_error" });
  vi.advanceTimersByTime(1);
  expect(live.read(KEY).error).toBeUndefined();
  expect(sent()).toEqual(["call", "cancel"]);
});

test("a component of a closed client does not wait", async () => {
  const { live, sent } = joined("closed");
  await live.wait(KEY);
  expect(live.read(KEY).error).toMatchObject({ code: "closed" });
  expect(sent()).toEqual([]);
});
