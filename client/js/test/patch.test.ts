import { expect, test } from "vitest";

import type { Document, Json } from "../src/json.js";
import { PatchError, apply, escape, find, parse } from "../src/patch.js";
import type { Op } from "../src/protocol.js";
import { Random } from "./random.js";
import { diff } from "./whole.js";

const SEEDS = Array.from({ length: 400 }, (_, seed) => seed);

test("applying the difference of two documents to the one gives the other", () => {
  for (const seed of SEEDS) {
    const random = new Random(seed);
    const [a, b] = [random.json(4), random.json(4)];
    expect(apply(a, diff(a, b))).toEqual(b);
  }
});

test("the difference to an edited document leads to it and leaves the rest as it was", () => {
  for (const seed of SEEDS) {
    const random = new Random(seed);
    const before = random.object(4);
    const text = JSON.stringify(before);
    const after = apply(before, random.ops(before)) as Json;
    expect(apply(before, diff(before, after))).toEqual(after);
    expect(JSON.stringify(before)).toBe(text);
  }
});

test("parts that operations do not lead through keep their identity", () => {
  for (const seed of SEEDS) {
    const random = new Random(seed);
    const before = { left: random.object(), right: random.object() };
    const ops = random.ops(before.right).map((op) => ({ ...op, path: `/right${op.path}` }));
    const after = apply(before, ops) as typeof before;
    expect(after.left).toBe(before.left);
    expect(after).not.toBe(before);
  }
});

test("the same object on both sides is not walked", () => {
  const shared = new Proxy({ a: 1 }, { ownKeys: () => expect.fail("it was walked") });
  expect(diff({ shared, n: 1 }, { shared, n: 2 })).toEqual([{ op: "replace", path: "/n", value: 2 }]);
});

test("arrays are compared by what they begin and end with", () => {
  expect(diff([1, 2, 3, 4], [1, 3, 4])).toEqual([{ op: "remove", path: "/1" }]);
  expect(diff([1, 4], [1, 2, 3, 4])).toEqual([
    { op: "add", path: "/1", value: 2 },
    { op: "add", path: "/2", value: 3 },
  ]);
  expect(diff([1, { id: 1, a: 1 }, 3], [1, { id: 1, a: 2 }, 3])).toEqual([{ op: "replace", path: "/1/a", value: 2 }]);
});

test("elements that stay are not touched by what is done between them", () => {
  const [a, b, c, d] = [{ id: "a" }, { id: "b" }, { id: "c" }, { id: "d" }];
  expect(diff([a, b, c, d], [b, d])).toEqual([
    { op: "remove", path: "/2" },
    { op: "remove", path: "/0" },
  ]);
  expect(diff([a, b], [{ id: "x" }, a, { id: "y" }, b, { id: "z" }])).toEqual([
    { op: "add", path: "/0", value: { id: "x" } },
    { op: "add", path: "/2", value: { id: "y" } },
    { op: "add", path: "/4", value: { id: "z" } },
  ]);
});

test.each<[string, Document, Op]>([
  ["a missing key", {}, { op: "replace", path: "/a", value: 1 }],
  ["a missing element", [1], { op: "remove", path: "/1" }],
  ["an index past the end", [1], { op: "add", path: "/2", value: 1 }],
  ["an index with a leading zero", [1, 2], { op: "remove", path: "/01" }],
  ["an element past all, but to add", [1], { op: "replace", path: "/-", value: 1 }],
  ["a value without members", { a: 1 }, { op: "add", path: "/a/b", value: 1 }],
  ["a key that objects inherit", {}, { op: "replace", path: "/toString/x", value: 1 }],
  ["the whole document, to remove", { a: 1 }, { op: "remove", path: "" }],
  ["a pointer without a slash", { a: 1 }, { op: "remove", path: "a" }],
  ["an operation without its value", {}, { op: "add", path: "/a" } as Op],
])("an operation on %s does not fit", (_, document, op) => {
  expect(() => apply(document, [op])).toThrow(PatchError);
});

test.each(["01", "9".repeat(20), "-", "1e0", " 1", "3"])("%j is the index of no element of three", (part) => {
  expect(find(["a", "b", "c"], [part])).toBeUndefined();
  expect(() => apply(["a", "b", "c"], [{ op: "replace", path: `/${part}`, value: 1 }])).toThrow(PatchError);
});

test("a key that leads out of an object in JavaScript is a key like any other", () => {
  const op: Op = { op: "add", path: "/__proto__", value: { evil: true } };
  const after = apply({}, [op]) as object;
  expect(Object.keys(after)).toEqual(["__proto__"]);
  expect(Object.getPrototypeOf(after)).toBe(Object.prototype);
});

test("the parts of a pointer come back as they went in", () => {
  for (const part of ["", "a", "a/b", "~", "~1", "~01", "/", "0"]) expect(parse(`/${escape(part)}`)).toEqual([part]);
});

test("an element is known by an id beyond 2^53, too, and lists of such numbers are compared", () => {
  const [a, b] = [
    { id: 2n ** 60n, text: "tea" },
    { id: 2n ** 60n + 1n, text: "milk" },
  ];
  expect(diff([a, b], [b, { ...a, text: "coffee" }])).toEqual([
    { op: "remove", path: "/0" },
    { op: "add", path: "/1", value: a, moved: true },
    { op: "replace", path: "/1/text", value: "coffee" },
  ]);
  expect(diff([2n ** 60n, 1], [1])).toEqual([{ op: "remove", path: "/0" }]);
});

// Lists that are too large to be aligned; the twin is `test_large_lists.py`.

const numbers = (count: number) => Array.from({ length: count }, (_, at): Json => at);
const rows = (count: number) => Array.from({ length: count }, (_, id): Json => ({ id, n: 0 }));

test("a list is aligned up to a number of elements", () => {
  for (const [make, most] of [
    [rows, 12_000],
    [numbers, 4_000],
  ] as const) {
    for (const count of [most, most + 1]) {
      const old = make(count);
      const next = [...old.slice(1), old[0] as Json];
      const ops = diff(old, next);
      expect(ops[0]?.path !== "").toBe(count === most);
      expect(apply(old, ops)).toEqual(next);
    }
  }
});

test("all lists of a state share what may be compared", () => {
  const names = ["a", "b", "c", "d"];
  const lists = Object.fromEntries(
    names.map((name, at) => [name, numbers(1500).map((n) => (n as number) + at * 1000)]),
  );
  const moved = Object.fromEntries(
    names.map((name) => [name, [...(lists[name] as Json[]).slice(1), lists[name]?.[0] as Json, -1]]),
  );
  const ops = diff(lists, moved);
  expect(apply(lists, ops)).toEqual(moved);
  expect(ops.map(({ path }) => path).filter((path) => path.split("/").length === 2)).toEqual(["/c", "/d"]);
});

test("a large list is changed in few places", () => {
  const old = rows(30_000);
  const changed = (places: readonly number[]) => old.map((each, at) => (places.includes(at) ? { id: at, n: 1 } : each));
  expect(diff(old, changed([0, 29_999]))).toEqual([
    { op: "replace", path: "/0/n", value: 1 },
    { op: "replace", path: "/29999/n", value: 1 },
  ]);
  const places = Array.from({ length: 63 }, (_, at) => at * 100);
  expect(diff(old, changed([...places, 29_999]))).toHaveLength(64);
  expect(diff(old, changed([...places, 9_999, 29_999]))).toHaveLength(1);
  const swapped = [old.at(-1) as Json, ...old.slice(1, -1), old[0] as Json];
  expect(diff(old, swapped)).toEqual([{ op: "replace", path: "", value: swapped }]);
});

test("a large list without ids is changed in few places", () => {
  const old = numbers(30_000);
  const next = ["a", ...old.slice(1, -1), 1];
  expect(diff(old, next)).toEqual([
    { op: "replace", path: "/0", value: "a" },
    { op: "replace", path: "/29999", value: 1 },
  ]);
});

test("lists of more elements are not compared", () => {
  const next = [...numbers(100_000), 5];
  expect(diff(numbers(100_000), next)).toEqual([{ op: "replace", path: "", value: next }]);
});
