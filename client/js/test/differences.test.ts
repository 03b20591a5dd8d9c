import { readFileSync } from "node:fs";
import { expect, test } from "vitest";

import { countPoints } from "../src/points.js";
import { TextComparison } from "../src/text-diff.js";
import { spliced } from "../src/text.js";

type Piece = string | { $repeat: [string, number] } | { $count: [string, number, number] };
type Texts = string | Piece[];
type Told = [at: number, remove: number, insert: string | { $length: number }][];

const FILE = new URL("../../../schemas/vectors/texts/differences.json", import.meta.url);
const CASES = JSON.parse(readFileSync(FILE, "utf8")) as { old: Texts; new: Texts; words: Told; letters: Told }[];

function expanded(texts: Texts): string {
  return typeof texts === "string" ? texts : texts.map(expandPiece).join("");
}

function expandPiece(piece: Piece): string {
  if (typeof piece === "string") return piece;
  if ("$repeat" in piece) return piece.$repeat[0].repeat(piece.$repeat[1]);
  const [template, start, end] = piece.$count;
  const step = start < end ? 1 : -1;
  return Array.from({ length: Math.abs(end - start) }, (_, at) =>
    template.replaceAll("{}", `${start + at * step}`),
  ).join("");
}

test.each(["words", "letters"] as const)("the differences are those that Python finds: %s", (name) => {
  for (const each of CASES) {
    const [old, next] = [expanded(each.old), expanded(each.new)];
    const found = new TextComparison({ byLetters: name === "letters" }).compare(old, next);
    expect(spliced(old, found)).toBe(next);
    const told = found.map(({ at, remove, insert }, index) => {
      const isLong = typeof each[name][index]?.[2] === "object";
      return [at, remove, isLong ? { $length: countPoints(insert) } : insert];
    });
    expect(told).toEqual(each[name]);
  }
});
