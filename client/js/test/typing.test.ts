import { expect, test } from "vitest";

import type { TextEdit } from "../src/patch.js";
import { endOf, follow, toEdits, toRegions, typed } from "../src/typing.js";
import { spliced } from "../src/text.js";
import { Random } from "./random.js";

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
  expect(typed(before, after, caret)).toEqual(edits);
});

test("what is typed is found, wherever the caret is said to be, and where it is at the caret", () => {
  const random = new Random(21);
  for (let round = 0; round < 2000; round++) {
    const before = random.text();
    const edits = toEdits(before, random.change(before));
    const after = applied(before, edits);
    expect(applied(before, typed(before, after, random.below(after.length + 1)))).toBe(after);
    const [edit] = edits;
    if (edits.length !== 1 || !edit || edit.remove > 0) continue;
    expect(typed(before, after, edit.at + edit.insert.length)).toEqual(edits);
  }
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
