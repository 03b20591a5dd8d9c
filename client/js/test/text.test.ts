import { type as oracle } from "ot-text-unicode";
import type { TextOp } from "ot-text-unicode";
import { expect, test } from "vitest";

import { Keys } from "../src/elements.js";
import { apply } from "../src/patch.js";
import { countPoints, pointAt, slicePoints, unitAt } from "../src/points.js";
import { TextComparison } from "../src/text-diff.js";
import { compose, inOrder, invert, spliced, transform } from "../src/text.js";
import type { Region } from "../src/text.js";
import { Random } from "./random.js";
import { PARTS, diff } from "./whole.js";

const SEEDS = Array.from({ length: 3000 }, (_, seed) => seed);

function diffTexts(old: string, next: string, byLetters = false): Region[] {
  return new TextComparison({ byLetters }).compare(old, next);
}

/** Runs a test with many texts, and what two sides do to each. */
function eachCase(run: (text: string, first: Region[], second: Region[]) => void): void {
  for (const seed of SEEDS) {
    const random = new Random(seed);
    const text = random.text();
    run(text, random.change(text), random.change(text));
  }
}

/** Runs a test with many texts, what is done to each, and what is then done to the result. */
function eachChain(run: (text: string, first: Region[], second: Region[]) => void): void {
  for (const seed of SEEDS) {
    const random = new Random(seed);
    const text = random.text();
    const first = random.change(text);
    run(text, first, random.change(spliced(text, first)));
  }
}

// Another implementation

/** A change as `ot-text-unicode` has it. */
function toOracle(regions: readonly Region[]): TextOp {
  let end = 0;
  const parts = regions.flatMap(({ at, remove, insert }) => {
    const skipped = at - end;
    end = at + remove;
    return [skipped, insert, { d: remove }];
  });
  return oracle.normalize(parts);
}

test("a change does what the same change does in another implementation", () => {
  eachCase((text, change) => expect(spliced(text, change)).toBe(oracle.apply(text, toOracle(change))));
});

test("two changes of one text are transformed as another implementation does it", () => {
  eachCase((_, first, second) => {
    expect(toOracle(transform(second, first, true))).toEqual(
      oracle.transform(toOracle(second), toOracle(first), "right"),
    );
    expect(toOracle(transform(first, second, false))).toEqual(
      oracle.transform(toOracle(first), toOracle(second), "left"),
    );
  });
});

test("two changes of one text lead both ways to the same text", () => {
  eachCase((text, first, second) => {
    const later = spliced(spliced(text, first), transform(second, first, true));
    expect(spliced(spliced(text, second), transform(first, second, false))).toBe(later);
  });
});

test("a composed change does what both do, as in another implementation", () => {
  eachChain((text, first, second) => {
    const both = compose(first, second);
    expect(spliced(text, both)).toBe(spliced(spliced(text, first), second));
    expect(oracle.apply(text, oracle.compose(toOracle(first), toOracle(second)))).toBe(spliced(text, both));
  });
});

// Laws

test("regions in order do the same one after the other", () => {
  eachCase((text, change) => {
    const found = inOrder(change).reduce((before, region) => spliced(before, [region]), text);
    expect(found).toBe(spliced(text, change));
  });
});

test("an inverted change leads back", () => {
  eachCase((text, change) => expect(spliced(spliced(text, change), invert(text, change))).toBe(text));
});

test("nothing is left of what is inserted and removed again", () => {
  eachCase((text, change) => {
    const insertions = change.filter(({ insert }) => insert !== "").map((region) => ({ ...region, remove: 0 }));
    expect(compose(insertions, invert(text, insertions))).toEqual([]);
  });
});

test("a transformed change is in order, and has no two regions that are one", () => {
  eachCase((_, first, second) => {
    const found = transform(first, second, true);
    found.forEach(({ at, remove, insert }, index) => {
      expect(remove > 0 || insert !== "").toBe(true);
      const next = found[index + 1];
      if (next)
        expect(next.at > at + remove || (next.at === at + remove && remove > 0 && next.insert !== "")).toBe(true);
    });
  });
});

test.each<[string, Region, Region, string]>([
  ["", insertion(0, "a"), insertion(0, "b"), "ab"],
  ["one word", { at: 4, remove: 4, insert: "cat" }, { at: 4, remove: 4, insert: "dog" }, "one catdog"],
  ["one word!", { at: 4, remove: 4, insert: "cat" }, insertion(6, "-"), "one cat-!"],
  ["one word!", { at: 4, remove: 4, insert: "cat" }, insertion(8, "s"), "one cats!"],
  ["abcdef", { at: 1, remove: 4, insert: "" }, { at: 2, remove: 2, insert: "x" }, "axf"],
  ["🔑🔑", insertion(1, "a"), { at: 1, remove: 1, insert: "b" }, "🔑ab"],
])("of %j two make %j and %j, which is %j", (text, first, second, both) => {
  expect(spliced(spliced(text, [first]), transform([second], [first], true))).toBe(both);
  expect(spliced(spliced(text, [second]), transform([first], [second], false))).toBe(both);
});

function insertion(at: number, insert: string): Region {
  return { at, remove: 0, insert };
}

// Positions

test("positions are those of the text's code points, also of a long one that is changed here and there", () => {
  const random = new Random(1);
  let text = "";
  for (let count = 0; count < 600; count++) {
    const points = [...text];
    const at = random.below(points.length + 1);
    expect(countPoints(text)).toBe(points.length);
    expect(unitAt(text, at)).toBe(points.slice(0, at).join("").length);
    expect(pointAt(text, points.slice(0, at).join("").length)).toBe(at);
    expect(slicePoints(text, at, at + 2)).toBe(points.slice(at, at + 2).join(""));
    text = spliced(text, [{ at, remove: random.below(Math.min(4, points.length - at) + 1), insert: random.text(40) }]);
  }
  expect(text.length).toBeGreaterThan(5000);
});

test("a text is counted as it is, also after a change that does not fit it", () => {
  const text = "a".repeat(2500);
  expect(spliced(text, [{ at: 4000, remove: 10, insert: "" }])).toBe(text);
  expect(countPoints(text)).toBe(2500);
});

test("there is no position within a surrogate pair", () => {
  expect([0, 1, 2, 3, 4].map((unit) => pointAt("a🔑b", unit))).toEqual([0, 1, undefined, 2, 3]);
});

// Diff

test("the difference of two texts leads from the one to the other", () => {
  for (const seed of SEEDS) {
    const random = new Random(seed);
    const old = random.text(40);
    const next = random.chance(0.5) ? random.text(40) : spliced(old, random.change(old));
    for (const byLetters of [false, true]) expect(spliced(old, diffTexts(old, next, byLetters))).toBe(next);
  }
});

test("no difference parts a surrogate pair", () => {
  expect(diffTexts("a🔑b", "a🔒b")).toEqual([{ at: 1, remove: 1, insert: "🔒" }]);
  expect(diffTexts("a🔑b", "a\u{1F911}b")).toEqual([{ at: 1, remove: 1, insert: "\u{1F911}" }]);
  expect(diffTexts("🔑🔑", "🔑🔑🔑")).toEqual([insertion(2, "🔑")]);
  expect(diffTexts("a", "a")).toEqual([]);
});

test("a word that is rewritten is replaced; where it is to be known what was done, what stays is left", () => {
  expect(diffTexts("a note", "a coded")).toEqual([{ at: 2, remove: 4, insert: "coded" }]);
  expect(diffTexts("a note", "a coded", true)).toEqual([
    { at: 2, remove: 1, insert: "c" },
    { at: 4, remove: 1, insert: "d" },
    insertion(6, "d"),
  ]);
});

const LETTERS = "abcdefghijklmnopqrstuvwxyz";

test.each([
  ["in which others have typed, and deleted a little, stays as far as it is there", LETTERS, 220, 10, "-", true],
  ["that others have cut more was rewritten", LETTERS, 220, 20, "-", false],
  ["in which others have typed much stays", LETTERS, 220, 0, "---", true],
  ["may be in a much longer one by chance", LETTERS, 220, 0, "--------", false],
  ["of few different letters may be so in a longer one", "0123456789", 220, 0, "---", false],
  ["in which others have typed in very many places was rewritten", LETTERS, 320, 0, "-", false],
])("a long text %s", (_, letters, length, deleted, between, stays) => {
  const text = letters.repeat(length).slice(0, length);
  const next = text.slice(0, 100) + text.slice(100 + deleted);
  const regions = diffTexts(`<${text}>`, `<${[...next].join(between)}>`, true);
  expect(regions.length > 1).toBe(stays);
});

test("a long text of few different letters may be so in a longer one, whatever few others are in that", () => {
  const [text, head] = ["0123456789".repeat(22), `${LETTERS}${LETTERS.toUpperCase()}`];
  expect(diffTexts(`<${text}>`, `<${head}${[...text].join("---")}>`, true).length).toBe(1);
});

test("characters are counted where texts are compared, and not units", () => {
  expect(diffTexts("aaaaaaaaaa 🔑🔑 bbbbbbbbbb", "cccccccccc 🔑🔑 dddddddddd").length).toBe(1);
  const text = [..."🔑🔒🔓🔔".repeat(15)];
  const next = ["<", ...text.slice(10)].join("-");
  expect(diffTexts(text.join(""), next, true).length).toBeGreaterThan(40);
});

test("what would take too long is not compared by characters", () => {
  const [old, next] = [LETTERS.repeat(800), LETTERS.repeat(800).replaceAll("a", "A")];
  expect(diffTexts(old, next, true).length).toBe(1);
  expect(diffTexts(old.slice(0, 900), next.slice(0, 900), true).length).toBe(35);
});

test("what is much shorter than it was need not be compared by characters", () => {
  const [old, next] = [LETTERS.repeat(200), LETTERS.repeat(34)];
  const [long, changed] = [next, next.replaceAll("a", "A")];
  const keys = new Keys({}, ["/*"], PARTS);
  expect(
    diff({ first: `<${old}>`, note: long }, { first: `(${long.slice(0, 150)})`, note: changed }, keys, {
      byLetters: true,
    }),
  ).toHaveLength(35);
});

test("of many texts only the first are compared by characters, however many long ones were rewritten", () => {
  const made = (long: string, short: string) => ({
    long: Object.fromEntries(Array.from({ length: 120 }, (_, at) => [at, long.repeat(13)])),
    short: Object.fromEntries(Array.from({ length: 200 }, (_, at) => [at, short.repeat(13)])),
  });
  const [old, next] = [made("abcdefghi", "abcde"), made("ABCDEFGHI", "a-b-c-d-e-")];
  const ops = diff(old, next, new Keys({}, ["/long/*", "/short/*"], PARTS), { byLetters: true });
  expect(apply(old, ops)).toEqual(next);
  const whole = ops.filter((op) => op.op === "splice" && op.path.startsWith("/short") && op.remove);
  expect(whole.length).toBe(200 - Math.floor(1_000_000 / (64 * 129)));
});

test("two who rewrite different paragraphs of one text keep each other's", () => {
  const paragraphs = Array.from({ length: 9 }, (_, at) => `The ${at}th paragraph, of some words. It says little.\n`);
  const write = (at: number, by: string) => paragraphs.with(at, `${by} has written this one again!\n`).join("");
  const text = paragraphs.join("");
  const [first, second] = [diffTexts(text, write(2, "Ada")), diffTexts(text, write(7, "Bob"))];
  const both = spliced(spliced(text, first), transform(second, first, true));
  expect(both).toBe(
    paragraphs.with(2, "Ada has written this one again!\n").with(7, "Bob has written this one again!\n").join(""),
  );
});

test("in a text that is changed in several places, what is between them stays", () => {
  const line = (at: number) => `line ${at} with a few words, and a second half\n`;
  const lines = Array.from({ length: 200 }, (_, at) => line(at));
  const next = lines
    .with(3, line(3).toUpperCase())
    .with(100, "")
    .with(150, `${line(150)}one more\n`);
  const change = diffTexts(lines.join(""), next.join(""));
  expect(change.length).toBe(3);
  expect(change.reduce((sum, { remove, insert }) => sum + remove + insert.length, 0)).toBeLessThan(160);
});
