/** The change that turns one text into another. */

import { longestIncreasing } from "./align.js";
import type { Pair } from "./align.js";
import { countPoints, pointAt, slicePoints } from "./points.js";
import type { Region } from "./text.js";

/** By what parts texts are compared: how long one is that stays, and how much text is worth the time. */
const LEVELS = [
  { pattern: /[^\n]*\n|[^\n]+/g, least: 1, most: 1_000_000 },
  {
    pattern: /[^.!?\u3002\uff01\uff1f]*[.!?\u3002\uff01\uff1f]+\s*|[^.!?\u3002\uff01\uff1f]+/g,
    least: 8,
    most: 200_000,
  },
  { pattern: /\S+\s*|\s+/g, least: 4, most: 30_000 },
] as const;

type Level = (typeof LEVELS)[number];

/** A text of more parts is not compared by them. */
const MOST_PARTS = 10_000;
/** Where so little is left on one side, it is replaced whole. */
const SMALL = 8;
/** A gap of more characters, the one side's times the other's, is a long one. */
const FEW_COMPARED = 10_000;
/** So many are compared of all short gaps, and of all long ones. */
const MOST_COMPARED = 1_000_000;
/** In a long gap, so much stays at least of a text that others have typed in, and did not write anew. */
const STAYS = 0.95;
/**
 * And it is no more than so many times as long now for each of its frequent letters: a longer text has those of any
 * short one, and the sooner, the fewer there are.
 */
const GROWTH_PER_LETTER = 0.25;
/** So much of a text its frequent letters make up: others, which are in it once or twice, tell nothing. */
const FREQUENT = 0.9;
/** And others have typed in no more than so many places of it: an own change around all of them can be rebased. */
const MOST_PLACES = 250;
/** What a character of a gap costs at least, however few there are on its other side. */
const COST_PER_CHARACTER = 10;

/** How much more may be compared by characters, in one or several texts. */
export class Budget {
  #short = MOST_COMPARED;
  #long = MOST_COMPARED;

  /** Tells whether the comparison of a gap can be paid. */
  allows(cost: number, isLong: boolean): boolean {
    return cost <= (isLong ? this.#long : this.#short);
  }

  pay(cost: number, isLong: boolean): void {
    if (isLong) this.#long -= cost;
    else this.#short -= cost;
  }
}

/**
 * Returns the change that turns `old` into `next`: one that makes sense to a reader, who writes words anew. With a
 * budget it is the smallest one, but for the letters that both texts have once, which stay first: that has most likely
 * been made where it is not known.
 *
 * What both begin and end with stays. In what is between, so do the lines that either has once, in the gaps that are
 * left the sentences, and in the gaps of these, where they are short, the words.
 */
export function diffTexts(old: string, next: string, budget?: Budget): Region[] {
  const found: Region[] = [];
  addRegions(found, old, next, 0, 0);
  const regions = found.map(({ at, remove, insert }) => {
    const start = pointAt(old, at) as number;
    return { at: start, remove: (pointAt(old, at + remove) as number) - start, insert };
  });
  if (!budget) return regions;
  return found.flatMap(({ at, remove }, index) => finer(old.slice(at, at + remove), regions[index] as Region, budget));
}

/** Returns a change of a text without the characters that it removes and inserts again. */
export function smaller(text: string, regions: readonly Region[]): Region[] {
  const budget = new Budget();
  return regions.flatMap(({ at, remove, insert }) =>
    diffTexts(slicePoints(text, at, at + remove), insert, budget).map((each) => ({ ...each, at: at + each.at })),
  );
}

/** Adds the regions between two parts of the texts, in UTF-16 units; that of the old one is at `at`. */
function addRegions(found: Region[], old: string, next: string, at: number, depth: number): void {
  const start = commonStart(old, next);
  const end = commonEnd(old.slice(start), next.slice(start));
  [old, next, at] = [old.slice(start, old.length - end), next.slice(start, next.length - end), at + start];
  const level = LEVELS[depth];
  if (!isLonger(old, SMALL) || !isLonger(next, SMALL) || !level) {
    if (old !== "" || next !== "") found.push({ at, remove: old.length, insert: next });
    return;
  }
  let [last, lastNext] = [0, 0];
  const stay = [...commonParts(old, next, level), { length: 0, place: old.length, nextPlace: next.length }];
  for (const { length, place, nextPlace } of stay) {
    addRegions(found, old.slice(last, place), next.slice(lastNext, nextPlace), at + last, depth + 1);
    [last, lastNext] = [place + length, nextPlace + length];
  }
}

/** Returns what a region changes without the characters that stay, if it is known that they are the same ones. */
function finer(removed: string, region: Region, budget: Budget): Region[] {
  const { at, remove, insert } = region;
  const length = countPoints(insert);
  const isLong = remove * length > FEW_COMPARED;
  const cost = Math.max(remove * length, COST_PER_CHARACTER * (remove + length));
  if (remove === 0 || length === 0 || !budget.allows(cost, isLong) || (isLong && !mayStay(region))) return [region];
  budget.pay(cost, isLong);
  const found = smallest([...removed], [...insert], at);
  const gone = found.reduce((sum, each) => sum + each.remove, 0);
  const isAnew = gone > (1 - STAYS) * remove || found.length > MOST_PLACES;
  return isLong && isAnew ? [region] : found;
}

/** Tells whether a text has the length of one that others have typed in. */
function mayStay({ remove, insert }: Region): boolean {
  const length = countPoints(insert);
  if (length < STAYS * remove) return false;
  const counts = new Map<string, number>();
  for (const letter of insert) counts.set(letter, (counts.get(letter) ?? 0) + 1);
  let [letters, made] = [0, 0];
  for (const count of [...counts.values()].sort((a, b) => b - a)) {
    if (made >= FREQUENT * length) break;
    made += count;
    letters++;
  }
  return length <= GROWTH_PER_LETTER * letters * remove;
}

/**
 * Returns what turns one text, which begins at `start`, into another if as many characters stay as can. Those that each
 * has once do so first: they are the same ones, which others, such as accents, only may be.
 */
function smallest(old: readonly string[], next: readonly string[], start: number): Region[] {
  let [last, lastNext] = [0, 0];
  const stay = commonOnce(
    placesOfOnce(old, () => 1),
    placesOfOnce(next, () => 1),
  );
  return [...stay, [old.length, next.length] as const].flatMap(([place, nextPlace]) => {
    const found = smallestBetween(old.slice(last, place), next.slice(lastNext, nextPlace), start + last);
    [last, lastNext] = [place + 1, nextPlace + 1];
    return found;
  });
}

function smallestBetween(old: readonly string[], next: readonly string[], start: number): Region[] {
  if (old.length === 0 && next.length === 0) return [];
  if (old.length === 0 || next.length === 0) return [{ at: start, remove: old.length, insert: next.join("") }];
  const width = next.length + 1;
  // How long a longest common subsequence is, from each pair of places on.
  const lengths = new Uint16Array((old.length + 1) * width);
  const lengthAt = (at: number, to: number) => lengths[at * width + to] as number;
  for (let at = old.length - 1; at >= 0; at--) {
    for (let to = next.length - 1; to >= 0; to--) {
      const isSame = old[at] === next[to];
      lengths[at * width + to] = isSame
        ? lengthAt(at + 1, to + 1) + 1
        : Math.max(lengthAt(at + 1, to), lengthAt(at, to + 1));
    }
  }
  const found: Region[] = [];
  let [at, to] = [0, 0];
  let [last, lastTo] = [0, 0];
  const end = () => {
    if (at > last || to > lastTo) {
      found.push({ at: start + last, remove: at - last, insert: next.slice(lastTo, to).join("") });
    }
  };
  while (at < old.length || to < next.length) {
    if (at < old.length && old[at] === next[to]) {
      end();
      [last, lastTo] = [++at, ++to];
    } else if (to === next.length || (at < old.length && lengthAt(at + 1, to) >= lengthAt(at, to + 1))) at++;
    else to++;
  }
  end();
  return found;
}

// What is the same

/** Returns how long what both begin with is; no surrogate pair is parted. */
function commonStart(old: string, next: string): number {
  const length = longest(old, next, (text, from, to) => text.slice(from, to));
  return isLead(old, length - 1) ? length - 1 : length;
}

/** Returns how long what both end with is; no surrogate pair is parted. */
function commonEnd(old: string, next: string): number {
  const length = longest(old, next, (text, from, to) => text.slice(text.length - to, text.length - from));
  return isTrail(old, old.length - length) ? length - 1 : length;
}

function isLead(text: string, unit: number): boolean {
  const code = text.charCodeAt(unit);
  return code >= 0xd800 && code < 0xdc00;
}

function isTrail(text: string, unit: number): boolean {
  const code = text.charCodeAt(unit);
  return code >= 0xdc00 && code < 0xe000;
}

/** Tells whether a text has more than so many characters, each of which is one or two units. */
function isLonger(text: string, count: number): boolean {
  return text.length > count && (text.length > 2 * count || countPoints(text) > count);
}

/** Returns the greatest length at which two texts have the same part; slices are compared faster than units. */
function longest(old: string, next: string, cut: (text: string, from: number, to: number) => string): number {
  let [low, high] = [0, Math.min(old.length, next.length)];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (cut(old, low, middle) === cut(next, low, middle)) low = middle;
    else high = middle - 1;
  }
  return low;
}

interface Part {
  readonly length: number;
  readonly place: number;
  readonly nextPlace: number;
}

/** Returns the parts that stay, in order, and where they are in the two texts. */
function commonParts(old: string, next: string, level: Level): Part[] {
  if (isLonger(old, level.most - countPoints(next))) return [];
  const [places, nextPlaces] = [placesOf(old, level), placesOf(next, level)];
  const lengths = new Map([...places].map(([part, place]) => [place, part.length]));
  return commonOnce(places, nextPlaces).map(([place, nextPlace]) => {
    return { length: lengths.get(place) as number, place, nextPlace };
  });
}

/** Returns where those parts of a text are, in units, that it has once, in order. */
function placesOf(text: string, { pattern, least }: Level): Map<string, number> {
  const parts = text.match(pattern) ?? [];
  return parts.length > MOST_PARTS ? new Map() : placesOfOnce(parts, (part) => part.length, least);
}

/** Returns where those parts are that are there once, in order, and no shorter than `least` characters. */
function placesOfOnce(parts: readonly string[], sizeOf: (part: string) => number, least = 1): Map<string, number> {
  const found = new Map<string, number>();
  const repeated = new Set<string>();
  let at = 0;
  for (const part of parts) {
    if (found.has(part)) repeated.add(part);
    else if (isLonger(part, least - 1)) found.set(part, at);
    at += sizeOf(part);
  }
  for (const part of repeated) found.delete(part);
  return found;
}

/** Returns the places, in both texts, of as many as can stay of the parts that both have once. */
function commonOnce(places: ReadonlyMap<string, number>, nextPlaces: ReadonlyMap<string, number>): Pair[] {
  const pairs = [...places].flatMap(([part, place]): Pair[] => {
    const nextPlace = nextPlaces.get(part);
    return nextPlace === undefined ? [] : [[place, nextPlace]];
  });
  return longestIncreasing(pairs);
}
