import { expect, test } from "vitest";

import { isEqual, plain, share } from "../src/json.js";
import { Random } from "./random.js";

function copy<T>(value: T): T {
  return JSON.parse(JSON.stringify(value)) as T;
}

test("what is shared equals what it was made of, and is the old one where both are equal", () => {
  for (let seed = 0; seed < 400; seed++) {
    const random = new Random(seed);
    const old = random.json(4);
    const next = random.chance(0.3) ? copy(old) : random.json(4);
    const shared = share(old, next);
    expect(shared).toEqual(next);
    expect(isEqual(old, next)).toBe(shared === old);
  }
});

test("equal parts of different documents become the old ones", () => {
  const old = { a: { x: 1 }, list: [{ n: 1 }, { n: 2 }] };
  const next = share(old, { a: { x: 1 }, list: [{ n: 1 }, { n: 3 }] });
  expect(next.a).toBe(old.a);
  expect(next.list[0]).toBe(old.list[0]);
  expect(next.list[1]).toEqual({ n: 3 });
});

class Point {
  x = 1;
}

test("parts that are known are returned as they are, and all others are copied", () => {
  const part = { list: [1, "a", null, true] };
  const copied = plain({ part });
  expect(copied).toEqual({ part });
  expect((copied as { part: unknown }).part).not.toBe(part);
  expect(plain(part, part)).toBe(part);
  const value = plain({ part, at: new Date(0), missing: undefined, own: new Point(), list: [undefined] }, { part }) as {
    part: unknown;
  };
  expect(value).toEqual({ part, at: "1970-01-01T00:00:00.000Z", own: { x: 1 }, list: [null] });
  expect(Object.keys(value)).not.toContain("missing");
  expect(value.part).toBe(part);
});

/** An array in an array, so many times. */
function nested(depth: number): unknown {
  return depth === 0 ? 1 : [nested(depth - 1)];
}

test("what JSON cannot say is refused", () => {
  const texts = [() => 1, 2n ** 64n, Symbol("s"), undefined, NaN, -Infinity];
  const objects = [new Map(), new Set(), /x/, new Error("x"), Promise.resolve(), new Uint8Array(1), new ArrayBuffer(1)];
  for (const value of [...texts, ...objects]) {
    expect(() => plain(value)).toThrow(TypeError);
    if (value !== undefined) expect(() => plain({ value: [value] })).toThrow(TypeError);
  }
});

test("half of a surrogate pair is refused, in a text and in a key", () => {
  expect(plain("\u{1f600}")).toBe("\u{1f600}");
  for (const half of ["\ud83d", "a\ude00", "\ude00\ud83d"]) {
    expect(() => plain([half])).toThrow(TypeError);
    expect(() => plain({ [half]: 1 })).toThrow(TypeError);
  }
});

test("what nests deeper than any server takes, or holds itself, is refused", () => {
  expect(plain(nested(200))).toEqual(nested(200));
  const circle: unknown[] = [];
  circle.push({ circle });
  const own = { toJSON: () => own };
  for (const value of [nested(201), circle, own]) expect(() => plain(value)).toThrow(TypeError);
});
