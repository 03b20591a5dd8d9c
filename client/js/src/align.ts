/** Which elements two arrays have in common, so that a change of one element is not taken for one of its neighbours. */

import { isEqual, isObject } from "./json.js";
import type { Json } from "./json.js";

/** What is between two elements that both arrays have, or before the first, or behind the last. */
export interface Gap {
  /** The index in the old array. */
  at: number;
  removed: readonly Json[];
  added: readonly Json[];
}

/** Arrays that would take more steps than this to compare have nothing in common. */
const MOST_STEPS = 1_000_000;

/**
 * Returns the gaps around the longest common subsequence of two arrays, from the first to the last.
 * Objects are known by their `id` where they have one; such that is different inside is a gap of its own.
 */
export function gapsBetween(old: readonly Json[], next: readonly Json[]): Gap[] {
  const gaps: Gap[] = [];
  let [at, from] = [0, 0];
  for (const [index, other] of [...commonElements(old, next), [old.length, next.length] as const]) {
    const gap = { at, removed: old.slice(at, index), added: next.slice(from, other) };
    if (gap.removed.length > 0 || gap.added.length > 0) gaps.push(gap);
    if (index < old.length && !isEqual(old[index], next[other])) {
      gaps.push({ at: index, removed: old.slice(index, index + 1), added: next.slice(other, other + 1) });
    }
    [at, from] = [index + 1, other + 1];
  }
  return gaps;
}

/** Returns the indices, in either array, of the elements that are in both. */
function commonElements(old: readonly Json[], next: readonly Json[]): (readonly [number, number])[] {
  const steps = old.length * next.length;
  if (steps <= 1 || steps > MOST_STEPS) return [];
  const numbers = new Map<string, number>();
  const [a, b] = [old, next].map((items) => items.map((item) => numberOf(nameOf(item), numbers))) as [
    number[],
    number[],
  ];
  const lengths = commonLengths(a, b);
  const width = b.length + 1;
  const pairs: (readonly [number, number])[] = [];
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) pairs.push([i++, j++]);
    else if ((lengths[(i + 1) * width + j] as number) >= (lengths[i * width + j + 1] as number)) i++;
    else j++;
  }
  return pairs;
}

/** Returns what an element is known by: its id, or all that it is. */
function nameOf(item: Json): string {
  const id = isObject(item) && Object.hasOwn(item, "id") ? item["id"] : undefined;
  return typeof id === "string" || typeof id === "number" ? `id ${JSON.stringify(id)}` : JSON.stringify(item);
}

function numberOf(text: string, numbers: Map<string, number>): number {
  const number = numbers.get(text) ?? numbers.size;
  numbers.set(text, number);
  return number;
}

/** Returns, for each pair of indices, how many elements what is behind them has in common; row by row. */
function commonLengths(a: readonly number[], b: readonly number[]): Uint16Array {
  const width = b.length + 1;
  const lengths = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      const here = i * width + j;
      lengths[here] =
        a[i] === b[j]
          ? (lengths[here + width + 1] as number) + 1
          : Math.max(lengths[here + width] as number, lengths[here + 1] as number);
    }
  }
  return lengths;
}
