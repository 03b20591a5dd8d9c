import { expect, test } from "vitest";

import type { Document, Json } from "../src/json.js";
import { takingBack } from "../src/inverse.js";
import { apply } from "../src/patch.js";
import type { Op } from "../src/protocol.js";
import { UNKNOWN } from "../src/text.js";
import { Random } from "./random.js";
import { rebase } from "./whole.js";

const SEEDS = Array.from({ length: 600 }, (_, seed) => seed);

test("operations in two parts of a document do the same in either order", () => {
  for (const seed of SEEDS) {
    const random = new Random(seed);
    const before = { left: random.object(), right: random.object() };
    const within = (part: "left" | "right") =>
      random.ops(before[part]).map((op) => ({ ...op, path: `/${part}${op.path}` }));
    const [mine, theirs] = [within("left"), within("right")];
    const after = apply(before, theirs);
    const { ops, conflicts, isLost, over } = rebase(mine, theirs, after);
    expect({ ops, conflicts, isLost }).toEqual({ ops: mine, conflicts: [], isLost: false });
    expect(over.map((op) => op.op)).toEqual(theirs.map((op) => op.op));
    expect(apply(after, ops)).toEqual(apply(apply(before, mine), over));
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
    expect(apply(apply(before, theirs), ops)).toEqual(apply(apply(before, mine), over));
    met++;
  }
  expect(met).toBeGreaterThan(500);
});

test("operations that are not lost fit, and lead to the same document from either side", () => {
  let contested = 0;
  for (const seed of SEEDS) {
    const random = new Random(seed);
    const before = random.object();
    const [mine, theirs] = [random.ops(before), random.ops(before)];
    const after = apply(before, theirs);
    const { ops, conflicts, isLost, over } = rebase(mine, theirs, after);
    if (isLost) continue;
    expect(apply(after, ops)).toEqual(apply(apply(before, mine), over));
    contested += Number(conflicts.length > 0);
  }
  expect(contested).toBeGreaterThan(50);
});

test("over nothing, operations stay the very same objects", () => {
  const ops: Op[] = [{ op: "replace", path: "/a~1b/0", value: 1 }];
  expect(rebase(ops, [], { "a/b": [0] }).ops[0]).toBe(ops[0]);
});

test.each<[string, Op, Op, Document, Op[], boolean]>([
  [
    "stays at its element when others add one before it",
    { op: "replace", path: "/l/1", value: "B" },
    { op: "add", path: "/l/0", value: "x" },
    { l: ["x", "a", "b"] },
    [{ op: "replace", path: "/l/2", value: "B" }],
    false,
  ],
  [
    "goes after what others add at the same index",
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
  [
    "is lost when others replaced what it leads into by something else",
    { op: "replace", path: "/o/a/b", value: 1 },
    { op: "replace", path: "/o", value: { c: 0 } },
    { o: { c: 0 } },
    [{ op: "replace", path: "/o/a/b", value: 1 }],
    true,
  ],
  [
    "is lost when it leads into what is taken back, as the value is not known",
    { op: "replace", path: "/o/a", value: 1 },
    { op: "replace", path: "/o" } as Op,
    { o: { a: 0 } },
    [{ op: "replace", path: "/o/a", value: 1 }],
    true,
  ],
  [
    "puts in what others have left out of what they replaced",
    { op: "replace", path: "/o/a", value: 1 },
    { op: "replace", path: "/o", value: {} },
    { o: {} },
    [{ op: "add", path: "/o/a", value: 1 }],
    false,
  ],
  [
    "is done when others have left out what it removes",
    { op: "remove", path: "/o/a" },
    { op: "replace", path: "/o", value: {} },
    { o: {} },
    [],
    false,
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

test("what was appended and then changed is found again after what others have appended", () => {
  const append = (value: string): Op => ({ op: "add", path: "/l/-", value });
  const mine: Op[] = [append("m"), { op: "replace", path: "/l/1", value: "M" }];
  const { ops, over } = rebase(mine, [append("o")], { l: ["a", "o"] });
  expect(ops.map((op) => op.path)).toEqual(["/l/-", "/l/2"]);
  expect(over).toEqual([{ op: "add", path: "/l/1", value: "o" }]);
});

test.each<[string, Op, Op[], Document, string]>([
  [
    "at the end goes after what others append",
    { op: "add", path: "/l/1", value: "m" },
    [{ op: "add", path: "/l/-", value: "o" }],
    { l: ["a", "o"] },
    "/l/2",
  ],
  [
    "in what others have replaced by an object keeps its key",
    { op: "add", path: "/o/1", value: "m" },
    [
      { op: "add", path: "/o/0", value: "o" },
      { op: "replace", path: "/o", value: {} },
    ],
    { o: {} },
    "/o/1",
  ],
  [
    "in an object keeps its key when others move the array that the object is in",
    { op: "replace", path: "/l/0/1", value: "m" },
    [
      { op: "add", path: "/l/0/0", value: "o" },
      { op: "add", path: "/l/0", value: [] },
    ],
    { l: [[], { 0: "o", 1: "a" }] },
    "/l/1/1",
  ],
  [
    "is not measured by an array that has replaced the one that it was made on",
    { op: "add", path: "/l/3", value: "m" },
    [
      { op: "add", path: "/l/-", value: "o" },
      { op: "replace", path: "/l", value: ["z", "z", "z"] },
    ],
    { l: ["z", "z", "z"] },
    "/l/3",
  ],
  [
    "at a key with a leading zero stays there",
    { op: "replace", path: "/o/02", value: "m" },
    [
      { op: "add", path: "/o/01", value: "o" },
      { op: "replace", path: "/o", value: 5 },
    ],
    { o: 5 },
    "/o/02",
  ],
])("an operation %s", (_, mine, theirs, after, path) => {
  expect(rebase([mine], theirs, after).ops).toEqual([{ ...mine, path }]);
});

// Texts

const splice = (path: string, at: number, change: { remove?: number; insert?: string }): Op => {
  return { op: "splice", path, at, ...change };
};

const move = (from: number, to: number, value: Json): Op[] => [
  { op: "remove", path: `/${from}` },
  { op: "add", path: `/${to}`, value, moved: true },
];

test("what is written in a text of a list goes with it where others have moved it", () => {
  const rebased = rebase([splice("/0", 1, { insert: "x" })], move(0, 1, "ab"), ["c", "ab"]);
  expect(rebased.ops).toEqual([splice("/1", 1, { insert: "x" })]);
  expect(rebased.over).toEqual(move(0, 1, "axb"));
});

test("who moves a text of a list takes along what others have written in it", () => {
  const rebased = rebase(move(0, 1, "ab"), [splice("/0", 1, { insert: "x" })], ["axb", "c"]);
  expect(rebased.ops).toEqual(move(0, 1, "axb"));
  expect(rebased.over).toEqual([splice("/1", 1, { insert: "x" })]);
});

test("who moves a text in which something was taken back that is not known moves nothing", () => {
  const back = takingBack([splice("/0", 0, { remove: 2 })], ["ab", "c"]);
  expect(rebase(move(0, 1, ""), back, ["ab", "c"])).toMatchObject({ isLost: true, conflicts: ["/0"] });
});

test("what takes back a splice counts its characters, and knows none that it puts back", () => {
  const [back] = takingBack([splice("/t", 1, { remove: 2, insert: "🔑🔒x" })], { t: "abcd" });
  expect(back).toEqual(splice("/t", 1, { remove: 3, insert: UNKNOWN.repeat(2) }));
});

test("who has removed what others have removed, too, does not mind that the text was replaced after that", () => {
  const over: Op[] = [splice("/t", 0, { remove: 2 }), { op: "replace", path: "/t", value: "new" }];
  const rebased = rebase([splice("/t", 0, { remove: 1 })], over, { t: "new" });
  expect(rebased).toMatchObject({ ops: [], conflicts: [], isLost: false });
});

test("what is written in a text that others have replaced, or whose place they have removed, is lost", () => {
  const mine = splice("/o/t", 0, { insert: "x" });
  const replaced: Op[] = [{ op: "replace", path: "/o", value: { t: "new" } }];
  for (const [over, after] of [
    [replaced, { o: { t: "new" } }],
    [[{ op: "replace", path: "/o/t", value: "new" }], { o: { t: "new" } }],
    [[{ op: "remove", path: "/o/t" }], { o: {} }],
  ] as [Op[], Document][]) {
    expect(rebase([mine], over, after)).toMatchObject({ isLost: true, conflicts: ["/o/t"] });
  }
});

test("who replaces a text does away with what others have written in it", () => {
  const mine: Op = { op: "replace", path: "/t", value: "mine" };
  const rebased = rebase([mine], [splice("/t", 0, { insert: "x" })], { t: "xab" });
  expect(rebased).toEqual({ ops: [mine], conflicts: ["/t"], isLost: false, over: [] });
});

test("a splice moves none of the elements beside its text", () => {
  const mine: Op[] = [splice("/0", 0, { insert: "x" }), { op: "add", path: "/1/0", value: "mine" }];
  const { over } = rebase(mine, [{ op: "add", path: "/1/1", value: "theirs" }], ["ab", ["a", "theirs"], {}]);
  expect(over).toEqual([{ op: "add", path: "/1/2", value: "theirs" }]);
});

test("what others have torn to too many pieces is lost, as each costs time for each of theirs", () => {
  const count = 320;
  const over = Array.from({ length: count }, (_, at) => splice("/t", 2 * at + 1, { insert: "," }));
  const after = apply({ t: "a".repeat(2 * count) }, over);
  expect(rebase([splice("/t", 0, { remove: 2 * count })], over, after).isLost).toBe(true);
  expect(rebase([splice("/t", 0, { remove: 2 * count })], over.slice(0, 290), after).ops.length).toBe(291);
});
