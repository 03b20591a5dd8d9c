import { expect, test } from "vitest";

import type { TextEdit } from "../src/parts.js";
import { endOf, follow, toEdits, toRegions, typed } from "../src/typing.js";
import { TextComparison } from "../src/text-diff.js";
import { spliced } from "../src/text.js";
import { Random } from "./random.js";

function typedBy(before: string, after: string, caret?: number): TextEdit[] {
  return typed(before, after, caret, (old, next) => toEdits(old, new TextComparison().compare(old, next)));
}

function applied(text: string, edits: readonly TextEdit[]): string {
  return spliced(text, toRegions(text, edits));
}

test.each<[string, string, number, TextEdit[]]>([
  ["aaa", "aaaa", 2, [{ at: 1, remove: 0, insert: "a" }]],
  ["aaa", "aaaa", 4, [{ at: 3, remove: 0, insert: "a" }]],
  ["aaa", "aa", 0, [{ at: 0, remove: 1, insert: "" }]],
  ["aaa", "aa", 2, [{ at: 2, remove: 1, insert: "" }]],
  ["one two", "one 2", 5, [{ at: 4, remove: 3, insert: "2" }]],
  ["🔑", "🔒", 2, [{ at: 0, remove: 2, insert: "🔒" }]],
  ["same", "same", 4, []],
])("typing makes of %j with the caret after it %j, %i", (before, after, caret, edits) => {
  expect(typedBy(before, after, caret)).toEqual(edits);
});

test("what is typed is found, wherever the caret is said to be, and where it is at the caret", () => {
  const random = new Random(21);
  for (let round = 0; round < 2000; round++) {
    const before = random.text();
    const edits = toEdits(before, random.change(before));
    const after = applied(before, edits);
    expect(applied(before, typedBy(before, after, random.below(after.length + 1)))).toBe(after);
    const [edit] = edits;
    if (edits.length !== 1 || !edit || edit.remove > 0) continue;
    expect(typedBy(before, after, edit.at + edit.insert.length)).toEqual(edits);
  }
});

test("it is found in the same place of a long text, also where that repeats itself", () => {
  const random = new Random(22);
  for (let round = 0; round < 500; round++) {
    const before = random.text();
    const after = applied(before, toEdits(before, random.change(before)));
    const caret = random.below(after.length + 1);
    const [head, tail] = [".".repeat(random.below(10_000)), ".".repeat(random.below(10_000))];
    const found = typedBy(head + before + tail, head + after + tail, head.length + caret);
    expect(found).toEqual(typedBy(before, after, caret).map((edit) => ({ ...edit, at: edit.at + head.length })));
  }
});

test("a change of a long text that is applied again, or as another one, gives what it makes", () => {
  const long = "ab🔑".repeat(2000);
  const regions = [{ at: 3, remove: 1, insert: "x" }];
  const expected = `ab🔑x${long.slice(5)}`;
  for (const text of [long, ["ab🔑".repeat(1999), "ab🔑"].join("")]) expect(spliced(text, regions)).toBe(expected);
  expect(spliced(long, [{ at: 3, remove: 1, insert: "y" }])).toBe(`ab🔑y${long.slice(5)}`);
  expect(spliced(long, [])).toBe(long);
  expect(spliced(`${long}b`, regions)).toBe(`${expected}b`);
  expect(spliced(long, [...regions, { at: 5, remove: 0, insert: "z" }])).toBe(`ab🔑xbz${long.slice(6)}`);
});

test("a position stays with the text around it", () => {
  const edits = [
    { at: 1, remove: 2, insert: "xyz" },
    { at: 6, remove: 0, insert: "!" },
  ];
  expect(applied("abcdefgh", edits)).toBe("axyzdef!gh");
  expect([0, 1, 2, 3, 4, 6, 7].map((position) => follow(position, edits))).toEqual([0, 1, 1, 4, 5, 7, 9]);
  expect(endOf(edits)).toBe(8);
  expect(endOf([])).toBe(0);
});
