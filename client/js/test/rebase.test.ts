import { expect, test } from "vitest";

import { PatchError, apply } from "../src/patch.js";
import type { Document, Op } from "../src/patch.js";
import { rebase } from "../src/rebase.js";
import { Random } from "./random.js";

const SEEDS = Array.from({ length: 600 }, (_, seed) => seed);

function carriedOut(document: Document, ops: readonly Op[]): Document | PatchError {
  try {
    return apply(document, ops);
  } catch (error) {
    if (error instanceof PatchError) return error;
    throw error;
  }
}

test("operations in two parts of a document do the same in either order", () => {
  for (const seed of SEEDS) {
    const random = new Random(seed);
    const before = { left: random.object(), right: random.object() };
    const within = (part: "left" | "right") =>
      random.ops(before[part]).map((op) => ({ ...op, path: `/${part}${op.path}` }) as Op);
    const [mine, theirs] = [within("left"), within("right")];
    const { ops, conflicts, isLost, over } = rebase(mine, theirs, apply(before, theirs));
    expect({ ops, conflicts, isLost, over }).toEqual({ ops: mine, conflicts: [], isLost: false, over: theirs });
    expect(apply(apply(before, theirs), ops)).toEqual(apply(apply(before, mine), theirs));
  }
});

test("insertions and removals in one array meet in the same array from either side", () => {
  let met = 0;
  for (const seed of SEEDS) {
    const random = new Random(seed);
    const before = Array.from({ length: 6 }, (_, index) => index);
    const op = (value: string): Op =>
      random.chance(0.5)
        ? { op: "add", path: `/${random.below(7)}`, value }
        : { op: "remove", path: `/${random.below(6)}` };
    const [mine, theirs] = [[op("mine")], [op("theirs")]];
    const { ops, isLost, over } = rebase(mine, theirs, apply(before, theirs));
    if (isLost) continue;
    const behind = over.filter((each) => each !== undefined);
    expect(apply(apply(before, theirs), ops)).toEqual(apply(apply(before, mine), behind));
    met++;
  }
  expect(met).toBeGreaterThan(500);
});

test("a single operation that is neither contested nor lost fits where it was brought", () => {
  let fitted = 0;
  for (const seed of SEEDS) {
    const random = new Random(seed);
    const before = random.object();
    const [mine, theirs] = [random.ops(before, 1), random.ops(before, 1)];
    const after = apply(before, theirs);
    const { ops, conflicts, isLost } = rebase(mine, theirs, after);
    if (isLost || conflicts.length > 0) continue;
    expect(carriedOut(after, ops)).not.toBeInstanceOf(PatchError);
    fitted++;
  }
  expect(fitted).toBeGreaterThan(200);
});

test("over nothing, operations stay the very same objects", () => {
  const ops: Op[] = [{ op: "replace", path: "/a~1b/0", value: 1 }];
  expect(rebase(ops, [], { "a/b": [0] }).ops[0]).toBe(ops[0]);
});

test.each<[string, Op, Op, Document, Op[], boolean]>([
  [
    "stays at its element when others put one in front of it",
    { op: "replace", path: "/l/1", value: "B" },
    { op: "add", path: "/l/0", value: "x" },
    { l: ["x", "a", "b"] },
    [{ op: "replace", path: "/l/2", value: "B" }],
    false,
  ],
  [
    "goes behind what others put in at the same index",
    { op: "add", path: "/l/0", value: "mine" },
    { op: "add", path: "/l/0", value: "theirs" },
    { l: ["theirs"] },
    [{ op: "add", path: "/l/1", value: "mine" }],
    false,
  ],
  [
    "is lost when others took its element out",
    { op: "replace", path: "/l/0/t", value: 1 },
    { op: "remove", path: "/l/0" },
    { l: [] },
    [{ op: "replace", path: "/l/0/t", value: 1 }],
    true,
  ],
  ["is done when others removed the same", { op: "remove", path: "/a" }, { op: "remove", path: "/a" }, {}, [], false],
  [
    "keeps its index when the parent is an object",
    { op: "replace", path: "/o/1", value: 1 },
    { op: "add", path: "/o/0", value: 1 },
    { o: { 0: 1, 1: 0 } },
    [{ op: "replace", path: "/o/1", value: 1 }],
    false,
  ],
])("an operation %s", (_, mine, theirs, after, ops, isLost) => {
  const rebased = rebase([mine], [theirs], after);
  expect(rebased.ops).toEqual(ops);
  expect(rebased.isLost).toBe(isLost);
});
