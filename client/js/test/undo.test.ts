import { expect, test } from "vitest";

import type { Pending } from "../src/pending.js";
import { invert } from "../src/inverse.js";
import { plain } from "../src/json.js";
import { regionsOf } from "../src/over.js";
import { apply, parse, regionOf, splices } from "../src/patch.js";
import { spliceUnits } from "../src/splicing.js";
import type { Splice } from "../src/patch.js";
import type { Document } from "../src/json.js";
import { countPoints } from "../src/points.js";
import type { Joined, Op } from "../src/protocol.js";
import { UNKNOWN, compose } from "../src/text.js";
import type { Region } from "../src/text.js";
import { Random } from "./random.js";
import { Fold, UndoHistory, diff } from "./whole.js";

/** A page whose history is told of its own changes and of those of others. */
class Page {
  shown: Document;
  now = 0;
  readonly history = new UndoHistory(() => this.now);

  constructor(state: unknown) {
    this.shown = plain(state);
  }

  push(ops: readonly Op[]): Pending {
    const push = { ops } as Pending;
    this.#show(ops, push);
    return push;
  }

  hear(ops: readonly Op[], after?: Document): void {
    this.#show(ops, undefined, after);
  }

  set(next: unknown): Pending {
    return this.push(diff(this.shown, plain(next)));
  }

  type(at: number, insert: string, remove = 0): Pending {
    return this.push(spliceUnits(this.shown, "/note", [{ at, remove, insert }]));
  }

  hearTyping(at: number, insert: string, remove = 0): void {
    this.hear(spliceUnits(this.shown, "/note", [{ at, remove, insert }]));
  }

  undo(pointer = ""): boolean {
    return this.history.run("undo", parse(pointer), this.shown, (ops) => this.push(ops)) !== undefined;
  }

  redo(pointer = ""): boolean {
    return this.history.run("redo", parse(pointer), this.shown, (ops) => this.push(ops)) !== undefined;
  }

  get note(): string {
    return (this.shown as { note: string }).note;
  }

  #show(ops: readonly Op[], push: Pending | undefined, after?: Document): void {
    const before = this.shown;
    this.shown = after ?? apply(before, ops);
    this.history.handle({ before, after: this.shown, ops, push });
  }
}

test("a burst of typing is undone and redone at once, with the letters that were corrected in it", () => {
  const page = new Page({ note: "" });
  [..."Helo"].forEach((letter, at) => page.type(at, letter));
  page.type(3, "", 1);
  page.type(3, "lo");
  expect(page.note).toBe("Hello");
  expect(page.undo()).toBe(true);
  expect(page.note).toBe("");
  expect(page.undo()).toBe(false);
  expect(page.redo()).toBe(true);
  expect(page.note).toBe("Hello");
  expect(page.redo()).toBe(false);
});

test.each([
  ["a second without typing", (page: Page) => void ((page.now += 1001), page.type(3, "def")), "abcdef--"],
  ["another place", (page: Page) => page.type(5, "def"), "abc--def"],
  ["a new line", (page: Page) => page.type(3, "\ndef"), "abc\ndef--"],
  ["what is pasted", (page: Page) => page.type(3, "d".repeat(21)), `abc${"d".repeat(21)}--`],
  ["the removal of a word", (page: Page) => page.type(0, "", 2), "c--"],
])("a burst ends with %s", (_, go, expected) => {
  const page = new Page({ note: "--" });
  page.type(0, "abc");
  go(page);
  expect(page.note).toBe(expected);
  page.undo();
  expect(page.note).toBe("abc--");
  page.undo();
  expect(page.note).toBe("--");
});

test("all that is done in a pause of the history is one entry, however long it takes and wherever it is", () => {
  const page = new Page({ note: "()", x: 1 });
  page.type(1, "before");
  page.now += 1001;
  page.history.pause();
  page.type(7, "k");
  page.now += 1001;
  page.type(7, "か", 1);
  page.hearTyping(8, "!");
  page.now += 1001;
  page.type(8, "n");
  page.now += 1001;
  page.type(7, "感", 2);
  page.set({ note: page.note, x: 2 });
  page.now += 1001;
  page.set({ note: page.note, x: 3 });
  page.history.resume();
  page.now += 1001;
  page.type(0, "after");
  expect(page.shown).toEqual({ note: "after(before感!)", x: 3 });
  page.undo();
  expect(page.shown).toEqual({ note: "(before感!)", x: 3 });
  page.undo();
  expect(page.shown).toEqual({ note: "(before!)", x: 1 });
  page.undo();
  expect(page.note).toBe("(!)");
  page.redo();
  page.redo();
  expect(page.shown).toEqual({ note: "(before感!)", x: 3 });
});

test("what is set in a pause is apart from what was set just before and just after it", () => {
  const page = new Page({ x: 40 });
  const set = (...values: number[]) => values.forEach((x) => page.set({ x }));
  set(45, 50);
  page.history.pause();
  set(60, 70);
  page.history.pause();
  page.history.resume();
  set(75);
  page.history.resume();
  page.history.pause();
  set(78, 80);
  page.history.resume();
  set(81, 82);
  for (const x of [80, 75, 50, 40]) {
    page.undo();
    expect(page.shown).toEqual({ x });
  }
});

test("what is done in a pause after an undo in it is another entry", () => {
  const page = new Page({ note: "" });
  page.history.pause();
  page.type(0, "a");
  page.undo();
  page.type(0, "b");
  page.now += 1001;
  page.type(1, "c");
  page.undo();
  expect(page.note).toBe("");
});

test("what is set in a pause after an undo in it does not go on with what was set before it", () => {
  const page = new Page({ x: 40 });
  page.set({ x: 50 });
  page.history.pause();
  page.set({ x: 60 });
  page.undo();
  page.set({ x: 70 });
  page.history.resume();
  page.undo();
  expect(page.shown).toEqual({ x: 50 });
});

test("what is typed after an undo is undone by itself, and leaves nothing to redo", () => {
  const page = new Page({ note: "" });
  page.type(0, "a");
  page.type(1, "\n");
  page.undo();
  page.type(1, "b");
  expect(page.redo()).toBe(false);
  page.undo();
  expect(page.note).toBe("");
});

test("what others type stays, also in the middle of what is undone, and comes back around by redo", () => {
  const page = new Page({ note: "()" });
  page.type(1, "one");
  page.hearTyping(2, "X");
  page.hearTyping(0, "Y");
  page.undo();
  expect(page.note).toBe("Y(X)");
  page.hearTyping(0, "Z");
  page.redo();
  expect(page.note).toBe("ZY(oXne)");
});

test("a value that others have set since is not taken back, and what was done before that is", () => {
  const page = new Page({ note: "", color: "red" });
  page.type(0, "abc");
  page.set({ note: "abc", color: "blue" });
  page.hear([{ op: "replace", path: "/color", value: "green" }]);
  page.undo();
  expect(page.shown).toEqual({ note: "", color: "green" });
});

test("an element that is removed comes back between the others, where these are now", () => {
  const page = new Page({ list: [{ id: "a" }, { id: "b" }, { id: "c" }] });
  page.push([{ op: "remove", path: "/list/1" }]);
  page.hear([{ op: "add", path: "/list/0", value: { id: "new" } }]);
  page.undo();
  expect(page.shown).toEqual({ list: [{ id: "new" }, { id: "a" }, { id: "b" }, { id: "c" }] });
});

test("one place can be undone while later changes elsewhere stay, and these can be undone after that", () => {
  const page = new Page({ note: "", list: [1] });
  page.type(0, "abc");
  page.push([{ op: "add", path: "/list/0", value: 0 }]);
  page.hearTyping(0, "X");
  page.push([{ op: "add", path: "/list/2", value: 2 }]);
  expect(page.undo("/note")).toBe(true);
  expect(page.shown).toEqual({ note: "X", list: [0, 1, 2] });
  expect(page.undo("/note")).toBe(false);
  page.undo();
  page.undo();
  expect(page.shown).toEqual({ note: "X", list: [1] });
  page.redo("/note");
  expect(page.shown).toEqual({ note: "Xabc", list: [1] });
});

test("a place in a list is where it is now", () => {
  const page = new Page({ list: [{ n: 0 }, { n: 1 }, { n: 2 }] });
  page.push([{ op: "replace", path: "/list/2/n", value: "mine" }]);
  page.push([{ op: "remove", path: "/list/0" }]);
  page.push([{ op: "replace", path: "/list/0/n", value: "last" }]);
  expect(page.undo("/list/2")).toBe(false);
  expect(page.undo("/list/1")).toBe(true);
  expect(page.shown).toEqual({ list: [{ n: "last" }, { n: 2 }] });
});

test("later changes are undone where they are after the undo of one before them", () => {
  const page = new Page({ list: ["a", "b", "c"] });
  page.push([{ op: "remove", path: "/list/0" }]);
  page.push([{ op: "replace", path: "/list/1", value: "C" }]);
  expect(page.undo("/list/0")).toBe(true);
  expect(page.shown).toEqual({ list: ["a", "b", "C"] });
  page.undo();
  expect(page.shown).toEqual({ list: ["a", "b", "c"] });
});

test("a value that is set many times in a row, as by a slider, is undone at once", () => {
  const page = new Page({ size: 1 });
  for (const size of [2, 3, 4]) page.set({ size });
  page.undo();
  expect(page.shown).toEqual({ size: 1 });
  page.redo();
  expect(page.shown).toEqual({ size: 4 });
});

test("what was refused is not taken back again", () => {
  const page = new Page({ note: "abc" });
  page.type(3, "!");
  page.now += 2000;
  const refused = page.type(0, "", 3);
  // What takes it back has no characters.
  page.hear([{ op: "splice", path: "/note", at: 0, insert: UNKNOWN.repeat(3) }], { note: "abc!" });
  page.history.settle(refused, true);
  page.undo();
  expect(page.note).toBe("abc");
  expect(page.undo()).toBe(false);
});

test("without others, undo leads back through all changes and redo forth again", () => {
  const random = new Random(11);
  for (let round = 0; round < 150; round++) {
    const page = new Page(random.object());
    const start = page.shown;
    for (let index = 0; index < 8; index++) {
      page.now += random.below(2) * 2000;
      page.push(random.ops(page.shown, 1));
    }
    const end = page.shown;
    while (page.undo());
    expect(page.shown).toEqual(start);
    while (page.redo());
    expect(page.shown).toEqual(end);
    while (page.undo());
    expect(page.shown).toEqual(start);
  }
});

test("an inverse leads back from what operations make of any document", () => {
  const random = new Random(12);
  for (let round = 0; round < 500; round++) {
    const document = random.object();
    const ops = random.ops(document);
    expect(apply(apply(document, ops), invert(document, ops))).toEqual(document);
  }
});

test("whatever others do, undo takes back all that was typed here and nothing of theirs", () => {
  const random = new Random(13);
  for (let round = 0; round < 400; round++) {
    const page = new Page({ note: "----------", other: [] });
    let theirs = 0;
    const act = () => {
      const at = random.below(countPoints(page.note) + 1);
      page.now += random.below(2) * 2000;
      const kind = random.below(10);
      if (kind === 0) page.undo();
      else if (kind === 1) page.redo();
      else if (kind < 5) {
        page.hear(splices("/note", [{ at, remove: 0, insert: "T" }]));
        theirs++;
      } else if (kind < 8) page.push(splices("/note", [{ at, remove: 0, insert: random.pick(["m", "🔑", "mm"]) }]));
      else page.push(splices("/note", [{ at: Math.min(at, countPoints(page.note) - 1), remove: 1, insert: "" }]));
    };
    for (let index = 0; index < 25; index++) act();
    while (page.undo("/note"));
    const count = (letter: string) => page.note.split(letter).length - 1;
    expect([count("m"), count("🔑"), count("-"), count("T")]).toEqual([0, 0, 10, theirs]);
  }
});

test("splices of one text are the one change that they are when composed one by one", () => {
  const random = new Random(14);
  for (let round = 0; round < 1000; round++) {
    let text = random.text(12);
    const ops = Array.from({ length: random.below(9) }, (): Splice => {
      const length = countPoints(text);
      const at = random.below(length + 1);
      const remove = random.below(length - at + 1);
      const op: Splice = { op: "splice", path: "", at, remove, insert: random.text(4) };
      text = apply(text, [op]) as string;
      return op;
    });
    const expected = ops.reduce((found: Region[], op) => compose(found, [regionOf(op)]), []);
    expect(regionsOf(ops)).toEqual(expected);
  }
});

test("what others do in several texts, and elsewhere, leaves what was typed to be undone", () => {
  const page = new Page({ note: "abc", other: "", size: 0 });
  page.type(1, "mine");
  page.hearTyping(0, "X");
  page.hearTyping(3, "Y");
  page.hear([{ op: "splice", path: "/other", at: 0, insert: "Z" }]);
  page.hear([{ op: "replace", path: "/size", value: 1 }]);
  page.hearTyping(0, "W");
  expect(page.undo()).toBe(true);
  expect(page.shown).toEqual({ note: "WXaYbc", other: "Z", size: 1 });
});

/** A page that is offline until `answer` tells it which of its pushes are refused. */
class Offline extends Page {
  #version = 0;
  readonly #fold: Fold;

  constructor(state: unknown) {
    super(state);
    this.#fold = new Fold((change) => {
      this.shown = change.after;
      this.history.handle(change);
    });
    this.#fold.join({ type: "joined", epoch: "e", version: 0, state, readonly: false } as Joined);
  }

  override push(ops: readonly Op[]): Pending {
    return this.#fold.add(this.#fold.pushes.length + 1, ops);
  }

  override hear(ops: readonly Op[]): void {
    this.#fold.advance(["e", ++this.#version], ops);
  }

  answer(push: Pending, isRefused: boolean): void {
    if (isRefused) this.#fold.refuse(push);
    else this.#fold.answered(["e", ++this.#version], push, push.ops);
    this.history.settle(push, isRefused);
  }

  /** Answers all pushes; those with the indexes are refused. */
  answerAll(...refused: number[]): void {
    this.#fold.pushes.slice().forEach((push, index) => this.answer(push, refused.includes(index)));
  }

  /** Comes back to a state in which all its pushes are, which is all it is told of them. */
  rejoin(state: unknown): void {
    for (const push of this.#fold.pushes) push.sent = push.ops;
    const answer = { type: "joined", epoch: "e", version: ++this.#version, readonly: false, last_ref: Infinity };
    this.#fold.join({ ...answer, state } as unknown as Joined);
    this.#fold.pushes.slice().forEach((push) => this.#fold.drop(push));
  }

  /** Undoes all that can be. */
  undoAll(): void {
    while (this.undo()) this.answerAll();
  }
}

test.each([
  ["an insertion", (page: Page) => (page.type(1, "a"), page.type(2, "!"), page.type(3, "b")), [1], "xab"],
  ["a removal", (page: Page) => (page.type(0, "", 1), page.type(0, "y")), [0], "xy"],
  ["the removal of a letter of the burst", (page: Page) => (page.type(1, "a"), page.type(1, "", 1)), [1], "xa"],
  ["removals", (page: Page) => (page.type(1, "ab"), page.type(2, "", 1), page.type(1, "", 1)), [1, 2], "xab"],
  ["all", (page: Page) => (page.type(1, "ab"), page.type(2, "", 1)), [0, 1], "x"],
])("of a burst that is refused in part, %s, the rest is undone at once", (_, go, refused, expected) => {
  const page = new Offline({ note: "x" });
  go(page);
  page.answerAll(...refused);
  expect(page.note).toBe(expected);
  expect(page.undo()).toBe(expected !== "x");
  expect(page.note).toBe("x");
  expect(page.undo()).toBe(false);
  expect(page.redo()).toBe(expected !== "x");
  expect(page.note).toBe(expected);
});

test("a letter whose removal was refused does not come back by undo after others have removed it", () => {
  const page = new Offline({ note: "x" });
  page.type(0, "", 1);
  page.type(0, "y");
  page.answerAll(0);
  page.hear(splices("/note", [{ at: 0, remove: 1, insert: "" }]));
  expect(page.note).toBe("y");
  page.undoAll();
  expect(page.note).toBe("");
});

test("whatever is refused, undo takes back the rest of what was typed here and nothing of what others did", () => {
  const random = new Random(15);
  for (let round = 0; round < 400; round++) {
    const page = new Offline({ note: "----------" });
    let theirs = 0;
    for (let index = 0; index < 12; index++) {
      const at = random.below(page.note.length + 1);
      page.now += random.below(3) === 0 ? 2000 : 0;
      const kind = random.below(4);
      if (kind === 0) page.hear(splices("/note", [{ at: 0, remove: 0, insert: "T" }]));
      else if (kind === 1) page.push(splices("/note", [{ at, remove: 0, insert: "m" }]));
      else page.push(splices("/note", [{ at: Math.min(at, page.note.length - 1), remove: 1, insert: "" }]));
      theirs += Number(kind === 0);
    }
    page.answerAll(...Array.from({ length: 6 }, () => random.below(12)));
    page.undoAll();
    const count = (letter: string) => page.note.split(letter).length - 1;
    expect([count("m"), count("-"), count("T")]).toEqual([0, 10, theirs]);
  }
});

test.each([
  ["alone", {}, {}],
  ["with another value", { x: 1 }, { x: 2 }],
  ["with another text", { title: "a" }, { title: "ab" }],
])("what came through before an outage unanswered is undone around what others typed %s", (_, rest, theirs) => {
  const page = new Offline({ note: "start  end", ...rest });
  const letters = (between: string) => Array.from({ length: 200 }, (_, at) => `${at % 10}${between}`).join("");
  [...letters("")].forEach((letter, at) => page.type(6 + at, letter));
  page.rejoin({ note: `start ${letters("t")} end`, ...theirs });
  page.undoAll();
  expect(page.shown).toEqual({ note: `start ${"t".repeat(200)} end`, ...theirs });
});

test("what cannot be undone before a later change is not said to be", () => {
  const page = new Page({ x: 0, y: 0 });
  page.set({ x: 1, y: 0 });
  page.now += 5000;
  page.set({ x: 2, y: 2 });
  const can = () => page.history.can("undo", ["x"], page.shown);
  expect([can(), page.undo("/x"), can()]).toEqual([false, false, false]);
  expect(page.undo()).toBe(true);
  expect([can(), page.undo("/x"), can()]).toEqual([true, true, false]);
});

test("a burst that has taken itself back leaves those around it as they were", () => {
  for (const at of [0, 4]) {
    const page = new Page({ a: "", b: "", note: "good" });
    const write = (path: string, insert: string, remove = 0, from = 0): void => {
      page.push(spliceUnits(page.shown, path, [{ at: from, remove, insert }]));
    };
    write("/a", "x");
    page.now += 2000;
    write("/b", "y");
    write("/b", "", 1);
    page.now += 2000;
    write("/note", "Z", 0, at);
    expect(page.undo("/a")).toBe(true);
    expect(page.shown).toEqual({ a: "", b: "", note: at === 0 ? "Zgood" : "goodZ" });
    while (page.undo());
    expect(page.shown).toEqual({ a: "", b: "", note: "good" });
    while (page.redo());
    expect(page.shown).toEqual({ a: "x", b: "", note: at === 0 ? "Zgood" : "goodZ" });
  }
});
