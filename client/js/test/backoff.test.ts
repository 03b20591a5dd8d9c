import { expect, test } from "vitest";

import { Backoff } from "../src/backoff.js";

/** The next delays, the longest that they may be. */
function delays(backoff: Backoff, count: number, now = 0): number[] {
  return Array.from({ length: count }, () => backoff.delay(now, 1));
}

test("the delay grows from a tenth of a second to ten, each time a random half to whole of it", () => {
  expect(delays(new Backoff(), 9)).toEqual([100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000]);
  const least = new Backoff();
  expect([least.delay(0, 0), least.delay(0, 0)]).toEqual([50, 100]);
});

test("a join that is lost soon makes the delay no shorter, one that has lasted does", () => {
  const backoff = new Backoff();
  delays(backoff, 3);
  backoff.joined(1_000);
  expect(backoff.delay(10_999, 1)).toBe(800);
  expect(backoff.delay(90_000, 1)).toBe(1600);
  backoff.joined(100_000);
  expect(delays(backoff, 2, 110_000)).toEqual([100, 200]);
});

test("after an answer the delay is the shortest again", () => {
  const backoff = new Backoff();
  delays(backoff, 5);
  backoff.joined(0);
  backoff.reset();
  expect(delays(backoff, 2)).toEqual([100, 200]);
});

test("a server that goes away is returned to at once, once for each time that it was of use", () => {
  const backoff = new Backoff();
  const goneAway = (now: number) => {
    backoff.joined(now);
    return backoff.delay(now + 1, 1, true);
  };
  expect([0, 1, 2].map(goneAway)).toEqual([0, 100, 200]);
  backoff.reset();
  expect([3, 4].map(goneAway)).toEqual([0, 100]);
  backoff.joined(5);
  expect(backoff.delay(10_005, 1, true)).toBe(0);
});
