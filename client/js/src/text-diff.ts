/** The change that turns one text into another. */

import { longestIncreasing } from "./lists.js";
import type { Pair } from "./lists.js";
import { Letters } from "./letters.js";
import { countAll, countPoints, pointAt } from "./points.js";
import { findBetween, join, joinNearest, shift, trim } from "./spans.js";
import type { Same, Span } from "./spans.js";
import { longestCommon } from "./subsequence.js";
import type { Region } from "./text.js";

/** Characters that are words of their own: of scripts without spaces, and symbols. */
const SINGLE =
  "\\u0e00-\\u0fff\\u1000-\\u109f\\u1780-\\u17ff\\u2190-\\u2bff\\u2e80-\\ua4cf\\uf900-\\ufaff\\ufe30-\\ufe4f" +
  "\\uff00-\\uffef\\u{1f000}-\\u{3ffff}";
/** Characters between words. Both lists are the same ones in all versions of Unicode, and in the Python package. */
const BETWEEN =
  "\\u0000-/:-@\\[-^`\\{-\\u00a9\\u00ab-\\u00b4\\u00b6-\\u00b9\\u00bb-\\u00bf" +
  "\\u060c\\u061b\\u061f\\u06d4\\u0964\\u0965\\u2000-\\u200b\\u200e-\\u206f\\ufeff";
const WORD = `[^${SINGLE}${BETWEEN}]+`;
const WORDS = new RegExp(`([${SINGLE}]|${WORD})`, "u");
const ONE_WORD = new RegExp(`^${WORD}$`, "u");
const WORD_AT_START = new RegExp(`^${WORD}`, "u");
const WORD_AT_END = new RegExp(`${WORD}$`, "u");

/** Longer words are compared by characters. */
const LONG_WORD = 16;
/** The number of characters in which the start or end of a cut word is searched. */
const LONGEST_CUT = 64;
/** Texts that are longer together, or have more pairs of words, are first divided at the parts that each has once. */
const SHORT = 20_000;
const MOST_PAIRS = 30_000_000;
/** The places where texts are divided: after lines, sentences, words. */
const SEPARATORS = ["\n", ". ", "\u3002", " "];
/** A shorter part is too likely to be another one of the same letters. */
const LEAST_PART = 4;
/** If both texts have more parts together, a longer separator is chosen: one with the characters seen before it. */
const MOST_PARTS = 20_000;
const MOST_ENDINGS = 200;
const LONGEST_ENDING = 48;

// Work is counted, so that it is bounded: the result is the same on every machine. A unit is about 0.5 µs of the Python
// package, which finds the same changes.
const MOST_WORK = 50_000;
const PER_SPAN = 20;
const PER_PART = 2;
const PER_LONG_TEXT = 500;
const CHARACTERS_PER_UNIT = 250;
const PAIRS_PER_UNIT = 1_500;
/** The maximum number of characters that are copied to carry out the changes: each region copies its text. */
const MOST_COPIED = 400_000_000;

/**
 * Finds the changes that turn texts into others, with a budget for all texts of two states.
 *
 * The common start and end stay, and between them as many words as possible; in a script without spaces each character
 * is a word. Long texts are first divided at the lines, sentences and words that each has once. Changes with less
 * between them than either changes are joined. When the budget ends, the rest is replaced whole.
 *
 * With `byLetters`, it finds the smallest change, for the most likely edit if only its result is known.
 */
export class TextComparison {
  #left = MOST_WORK;
  #copied = MOST_COPIED;
  readonly #letters: Letters | undefined;

  constructor({ byLetters = false } = {}) {
    this.#letters = byLetters ? new Letters() : undefined;
  }

  /** Returns the change that turns `old` into `next`. */
  compare(old: string, next: string): Region[] {
    let found: Span[] = [];
    this.#compare(old, next, 0, 0, found);
    const letters = this.#letters;
    if (!letters) {
      const length = countPoints(old) + 1;
      found = joinNearest(old, found, Math.max(Math.floor(this.#copied / length), 1));
      this.#copied -= found.length * length;
    }
    return found.flatMap(({ at, end, to, nextEnd }) => {
      const start = pointAt(old, at) as number;
      const region = { at: start, remove: (pointAt(old, end) as number) - start, insert: next.slice(to, nextEnd) };
      return letters ? letters.refine(old.slice(at, end), region) : [region];
    });
  }

  /** Adds the differences between two parts of the texts, which begin at `at` and `to`. */
  #compare(old: string, next: string, at: number, to: number, found: Span[]): void {
    const span = trim(old, next);
    let { at: start, end, nextEnd } = span;
    if (start === end && start === nextEnd) return;
    this.#left -= PER_SPAN;
    const isForLetters = this.#letters?.takesAll(countAll(old.slice(start, end)), countAll(next.slice(start, nextEnd)));
    if (start === end || start === nextEnd || this.#left <= 0 || isForLetters) {
      found.push(shift(span, at, to));
      return;
    }
    // The first and the last word may be cut.
    const before = [...old.slice(Math.max(start - 2 * LONGEST_CUT, 0), start)].slice(-LONGEST_CUT).join("");
    const after = [...old.slice(end, end + 2 * LONGEST_CUT)].slice(0, LONGEST_CUT).join("");
    start -= before.match(WORD_AT_END)?.[0].length ?? 0;
    const tail = after.match(WORD_AT_START)?.[0].length ?? 0;
    [old, next] = [old.slice(start, end + tail), next.slice(start, nextEnd + tail)];
    [at, to] = [at + start, to + start];
    const isShort = countAll(old) + countAll(next) <= SHORT;
    if (!isShort || !this.#compareWords(old, next, at, to, found)) this.#takeApart(old, next, at, to, found);
  }

  // By words

  /** Adds the differences between the words of two parts of the texts; returns false if that would take too long. */
  #compareWords(old: string, next: string, at: number, to: number, found: Span[]): boolean {
    const [parts, nextParts] = [old.split(WORDS), next.split(WORDS)];
    const [ends, nextEnds] = [endsOf(parts, 0), endsOf(nextParts, 0)];
    // The first part and each second one after it are between words.
    const pairs = this.#findCommon(wordsOf(parts), wordsOf(nextParts));
    if (!pairs) return false;
    const same = pairs.map(([word, other]) => ({
      place: ends[2 * word] as number,
      nextPlace: nextEnds[2 * other] as number,
      length: (parts[2 * word + 1] as string).length,
    }));
    const spans = join(old, next, findBetween(old, next, same));
    this.#left -= PER_SPAN * spans.length;
    for (const span of spans) {
      const [gone, come] = [old.slice(span.at, span.end), next.slice(span.to, span.nextEnd)];
      const finer = join(gone, come, findBetween(gone, come, this.#findSameLetters(gone, come)));
      found.push(...finer.map((each) => shift(each, at + span.at, to + span.to)));
    }
    return true;
  }

  /** Returns the parts of a long word that stay, if both texts are one word. */
  #findSameLetters(old: string, next: string): Same[] {
    const isLong = Math.min(countAll(old), countAll(next)) > LONG_WORD;
    if (!isLong || !ONE_WORD.test(old) || !ONE_WORD.test(next)) return [];
    const [letters, nextLetters] = [[...old], [...next]];
    const [ends, nextEnds] = [endsOf(letters, 0), endsOf(nextLetters, 0)];
    return (this.#findCommon(letters, nextLetters) ?? []).map(([place, other]) => {
      const { length } = letters[place] as string;
      return { place: (ends[place] as number) - length, nextPlace: (nextEnds[other] as number) - length, length };
    });
  }

  /** Returns the words that stay; undefined if that would take too long. */
  #findCommon(old: readonly string[], next: readonly string[]): Pair[] | undefined {
    this.#left -= old.length + next.length;
    const pairs = old.length * next.length;
    if (pairs > Math.min(MOST_PAIRS, this.#left * PAIRS_PER_UNIT)) return undefined;
    this.#left -= Math.floor(pairs / PAIRS_PER_UNIT);
    return longestCommon(old, next);
  }

  // Long texts

  #takeApart(old: string, next: string, at: number, to: number, found: Span[]): void {
    this.#left -= PER_LONG_TEXT + Math.floor((countAll(old) + countAll(next)) / CHARACTERS_PER_UNIT);
    let same: Same[] = [];
    for (const separator of SEPARATORS) if (same.length === 0) same = this.#findOnce(old, next, separator);
    let [end, nextEnd] = [0, 0];
    for (const { place, nextPlace, length } of same) {
      if (this.#left <= 0) break;
      this.#compare(old.slice(end, place), next.slice(nextEnd, nextPlace), at + end, to + nextEnd, found);
      [end, nextEnd] = [place + length, nextPlace + length];
    }
    if (end > 0) this.#compare(old.slice(end), next.slice(nextEnd), at + end, to + nextEnd, found);
    else found.push(shift(trim(old, next), at, to));
  }

  /** Returns the parts that each text has once, without those that have moved past others. */
  #findOnce(old: string, next: string, separator: string): Same[] {
    const chosen = chooseSeparator(old, next, separator);
    if (chosen === undefined) return [];
    const [parts, nextParts] = [old.split(chosen), next.split(chosen)];
    const cost = PER_PART * (parts.length + nextParts.length);
    if (Math.min(parts.length, nextParts.length) === 1 || cost > this.#left) return [];
    this.#left -= cost;
    const [places, nextPlaces] = [placesOf(parts), placesOf(nextParts)];
    const both = [...places].flatMap(([part, place]): Pair[] => {
      const nextPlace = nextPlaces.get(part);
      return nextPlace === undefined ? [] : [[place, nextPlace]];
    });
    const [ends, nextEnds] = [endsOf(parts, chosen.length), endsOf(nextParts, chosen.length)];
    const found: Same[] = [];
    let [last, lastNext] = [-2, -2];
    for (const [index, nextIndex] of longestIncreasing(both)) {
      const [end, { length }] = [ends[index] as number, parts[index] as string];
      const run = index === last + 1 && nextIndex === lastNext + 1 ? found.pop() : undefined;
      if (run) found.push({ ...run, length: end - run.place });
      else found.push({ place: end - length, nextPlace: (nextEnds[nextIndex] as number) - length, length });
      [last, lastNext] = [index, nextIndex];
    }
    return found;
  }
}

function wordsOf(parts: readonly string[]): string[] {
  return parts.filter((_, index) => index % 2 === 1);
}

/** Returns the ends of parts that are `distance` apart. */
function endsOf(parts: readonly string[], distance: number): number[] {
  let end = -distance;
  return parts.map(({ length }) => (end += distance + length));
}

/** Returns a separator; if it is there too often, one with the characters before it; undefined if that is, too. */
function chooseSeparator(old: string, next: string, separator: string): string | undefined {
  const count = countOf(old, separator) + countOf(next, separator);
  if (count <= MOST_PARTS) return separator;
  const seen: string[][] = [];
  for (let end = 0; seen.length < MOST_ENDINGS;) {
    const at = old.indexOf(separator, end);
    if (at < 0) break;
    end = at + separator.length;
    seen.push([...old.slice(Math.max(at - 2 * LONGEST_ENDING, 0), end)].slice(-LONGEST_ENDING - separator.length));
  }
  for (let length = 1; length <= LONGEST_ENDING; length++) {
    const times = new Map<string, number>();
    for (const each of seen) {
      const ending = each.slice(-length - separator.length).join("");
      times.set(ending, (times.get(ending) ?? 0) + 1);
    }
    const few = [...times].filter(([, each]) => each * count <= MOST_PARTS * seen.length);
    if (few.length > 0) return few.reduce((most, each) => (each[1] > most[1] ? each : most))[0];
  }
  return undefined;
}

function countOf(text: string, part: string): number {
  let count = 0;
  for (let at = text.indexOf(part); at >= 0; at = text.indexOf(part, at + part.length)) count++;
  return count;
}

/** Returns the indices of the parts that are there once, in order. */
function placesOf(parts: readonly string[]): Map<string, number> {
  const found = new Map<string, number>();
  const repeated = new Set<string>();
  for (const [index, part] of parts.entries()) {
    if (found.has(part)) repeated.add(part);
    else if (part.length >= 2 * LEAST_PART || countAll(part) >= LEAST_PART) found.set(part, index);
  }
  for (const part of repeated) found.delete(part);
  return found;
}
