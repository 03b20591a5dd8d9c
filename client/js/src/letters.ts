/** The smallest change of a text: the most likely one if only its result is known. */

import { longestIncreasing } from "./lists.js";
import type { Pair } from "./lists.js";
import { longestCommon } from "./subsequence.js";
import type { Region } from "./text.js";

/** A region is long if the characters that it removes, times those that it inserts, are more than this. */
const FEW_COMPARED = 10_000;
/** The maximum number of comparisons for all short regions, and for all long ones. */
const MOST_COMPARED = 1_000_000;
/** A long region counts as typing only if this part of the text stays; otherwise it was rewritten. */
const STAYS = 0.95;
/**
 * It must also not be more than this many times as long now for each of its frequent letters: a longer text contains
 * the letters of any short one, and the sooner, the fewer there are.
 */
const GROWTH_PER_LETTER = 0.25;
/** The frequent letters make up this part of a text; the other letters, which are in it once or twice, say nothing. */
const FREQUENT = 0.9;
/** It must also be typed in no more than this many places: an own change around all of them can be rebased. */
const MOST_PLACES = 250;
/** The minimum cost of a region's character, however few the region removes or inserts. */
const COST_PER_CHARACTER = 10;

/** Compares regions by characters, with a budget for all of them. */
export class Letters {
  #short = MOST_COMPARED;
  #long = MOST_COMPARED;

  /** Tells whether all of a region is compared by characters, whatever words it has. */
  takesAll(remove: number, insert: number): boolean {
    return remove * insert <= FEW_COMPARED && this.#short > 0;
  }

  /** Returns the changes of a region without the characters that stay, if these are known to be the same ones. */
  refine(removed: string, region: Region): Region[] {
    const { at, remove } = region;
    const next = [...region.insert];
    const isLong = remove * next.length > FEW_COMPARED;
    const cost = Math.max(remove * next.length, COST_PER_CHARACTER * (remove + next.length));
    const isDear = cost > (isLong ? this.#long : this.#short);
    if (remove === 0 || next.length === 0 || isDear || (isLong && !mayStay(remove, next))) return [region];
    if (isLong) this.#long -= cost;
    else this.#short -= cost;
    const found = smallest([...removed], next, at);
    const gone = found.reduce((sum, each) => sum + each.remove, 0);
    const isAnew = gone > (1 - STAYS) * remove || found.length > MOST_PLACES;
    return isLong && isAnew ? [region] : found;
  }
}

/** Tells whether the length of a text is such that others may have typed in it. */
function mayStay(remove: number, next: readonly string[]): boolean {
  if (next.length < STAYS * remove) return false;
  let [letters, made] = [0, 0];
  for (const count of [...countsOf(next).values()].sort((a, b) => b - a)) {
    if (made >= FREQUENT * next.length) break;
    made += count;
    letters++;
  }
  return next.length <= GROWTH_PER_LETTER * letters * remove;
}

function countsOf(letters: readonly string[]): Map<string, number> {
  const counts = new Map<string, number>();
  for (const letter of letters) counts.set(letter, (counts.get(letter) ?? 0) + 1);
  return counts;
}

/**
 * Returns the smallest change from one text, which begins at `start`, to another, in which as many characters stay as
 * possible. Characters that each text has once stay first: they are the same ones, while others, such as accents, only
 * may be.
 */
function smallest(old: readonly string[], next: readonly string[], start: number): Region[] {
  const found: Region[] = [];
  let [last, lastNext] = [0, 0];
  for (const [place, nextPlace] of [...findSame(old, next), [old.length, next.length] as const]) {
    if (place > last || nextPlace > lastNext) {
      found.push({ at: start + last, remove: place - last, insert: next.slice(lastNext, nextPlace).join("") });
    }
    [last, lastNext] = [place + 1, nextPlace + 1];
  }
  return found;
}

/** Returns the places of the characters that stay, in both texts. */
function findSame(old: readonly string[], next: readonly string[]): Pair[] {
  let [at, to] = [0, 0];
  return [...commonOnce(old, next), [old.length, next.length] as const].flatMap(([end, nextEnd]) => {
    const [start, nextStart] = [at, to];
    const same = longestCommon(old.slice(at, end), next.slice(to, nextEnd));
    [at, to] = [end + 1, nextEnd + 1];
    const found = same.map(([place, nextPlace]): Pair => [start + place, nextStart + nextPlace]);
    return end < old.length ? [...found, [end, nextEnd] as const] : found;
  });
}

/** Returns the places of the characters that two texts have once each, as many as can stay. */
function commonOnce(old: readonly string[], next: readonly string[]): Pair[] {
  const [counts, nextCounts] = [countsOf(old), countsOf(next)];
  return longestIncreasing(
    [...old.entries()].flatMap(([place, letter]): Pair[] =>
      counts.get(letter) === 1 && nextCounts.get(letter) === 1 ? [[place, next.indexOf(letter)]] : [],
    ),
  );
}
