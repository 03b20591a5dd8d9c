import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { expect, test } from "vitest";

import { splices } from "../src/patch.js";
import type { Joined } from "../src/protocol.js";
import { Fold } from "./whole.js";

test("a long text in which much is typed offline is not kept once for each letter", () => {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc") as () => void;
  const heapUsed = () => (collect(), process.memoryUsage().heapUsed);
  const fold = new Fold(() => undefined);
  const note = "All work and no play. ".repeat(50_000);
  fold.join({ type: "joined", epoch: "e", version: 0, state: { note } } as unknown as Joined);
  const before = heapUsed();
  for (let at = 0; at < 200; at++) fold.add(at + 1, splices("/note", [{ at, remove: 0, insert: "x" }]));
  expect((fold.shown as { note: string }).note).toBe("x".repeat(200) + note);
  expect((heapUsed() - before) / note.length).toBeLessThan(20);
  fold.pushes.slice().forEach((push, index) => fold.answered(["e", index + 1], push, push.ops));
  expect(fold.confirmed).toBe(fold.shown);
});

// What was made offline in a text that others have changed

const OLD = "Im Anfang war das Wort, und die Leute sprachen jeden Tag davon, weil niemand sie daran hinderte. ".repeat(
  8,
);
const NEW = "At first there was one word, and people talked about it every day, as no one kept them from it. ".repeat(
  8,
);

/** Returns what is shown of a removal, and what is put in its place, once others have made another text of the whole. */
function shownAfter(text: string, remove: number, insert: string, theirs: string, at = 0): string {
  const fold = new Fold(() => undefined);
  const joined = { type: "joined", epoch: "e", readonly: false, texts: ["/note"] };
  fold.join({ ...joined, version: 0, state: { note: text } } as unknown as Joined);
  fold.add(1, splices("/note", [{ at, remove, insert }]));
  fold.join({ ...joined, version: 9, state: { note: theirs } } as unknown as Joined);
  return (fold.shown as { note: string }).note;
}

test("of a text that others rewrote, no letters are removed for being in what was removed here", () => {
  expect(shownAfter(OLD, 120, "", NEW)).toBe(NEW);
});

test("what was written in the place of a text stays, wherever others have typed in that or whatever they made of it", () => {
  expect(shownAfter(OLD, OLD.length, "mine", NEW)).toContain("mine");
  const [few, many] = [OLD.slice(0, 200), OLD.slice(0, 400)];
  expect(shownAfter(few, 200, "mine", [...few].join("-"))).toBe(`mine${"-".repeat(199)}`);
  expect(shownAfter(many, 400, "mine", [...many].join("-"))).toContain("mine");
});

test("a letter that is there once is removed, and not one of many accents", () => {
  const [old, theirs] = ["9\u0301A\u0301B\u0301C\u0301f", "9\u0301Ae\u0301xe\u0301yz\u0301C🔑fe\u0301"];
  expect(shownAfter(old, 3, "", theirs, old.indexOf("C"))).not.toContain("C");
});

test("an own correction stays where it is, in however many places others have changed the text", () => {
  const text = (color: string, isFixed = false) =>
    Array.from(
      { length: 400 },
      (_, at) => `The ${color} of item ${at}\nis ${isFixed && at === 300 ? "the" : "teh"} same.\n`,
    );
  const place = text("color").join("").indexOf("teh", text("color").slice(0, 300).join("").length);
  const shown = shownAfter(text("color").join(""), 2, "he", text("colour").join(""), place + 1);
  expect(shown).toBe(text("colour", true).join(""));
});
