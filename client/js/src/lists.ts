/** The edits that turn one list into another, found by the identity of the elements, not by their positions. */

import { namesOf, numberRepeated } from "./elements.js";
import { isEqual } from "./json.js";
import type { Json } from "./json.js";
import type { Edit } from "./parts.js";

/** Up to this many edits are made however few elements stay; more moves than this replace the whole list. */
export const MOST_EDITS = 64;

export type Pair = readonly [number, number];

export interface Names {
  old: readonly string[];
  next: readonly string[];
}

export interface Common {
  /** Elements that stay. */
  pairs: readonly Pair[];
  /** Elements that have moved. */
  moved: readonly Pair[];
}

/** How the element in a place becomes the one that comes there; undefined if it is removed, and the other one added. */
export type InPlace = (old: number, next: number) => "change" | "replace" | undefined;

/**
 * The elements between those that stay: which of them change in their places, which are removed, and which are added.
 */
interface Gaps {
  places: { kind: "change" | "replace"; old: number; next: number }[];
  removed: number[];
  added: number[];
}

/**
 * Returns the edits between two lists in order; undefined if the list must be replaced whole. Elements are the same if
 * they have the same id, the same origin, or without both the same JSON. Other elements in the same place are replaced.
 */
export function compareLists(old: readonly Json[], next: readonly Json[], key?: string): Edit[] | undefined {
  return withoutEnds(old, next, (some, others, around) => {
    const [before, after] = namesOf(some, others, key);
    const common = findCommon(numberRepeated(before), numberRepeated(after));
    if (common.moved.length > MOST_EDITS) return undefined;
    const found = align(some, others, { old: before, next: after }, common, () => "replace");
    return isWorthIt(found, common.pairs.length + around) ? found : undefined;
  });
}

/** Returns the result of `compare` for two lists without their common start and end, which have `around` elements. */
export function withoutEnds(
  old: readonly Json[],
  next: readonly Json[],
  compare: (old: readonly Json[], next: readonly Json[], around: number) => Edit[] | undefined,
): Edit[] | undefined {
  const shorter = Math.min(old.length, next.length);
  let start = 0;
  while (start < shorter && isEqual(old[start], next[start])) start++;
  let tail = 0;
  while (tail < shorter - start && isEqual(old.at(-1 - tail), next.at(-1 - tail))) tail++;
  const found = compare(old.slice(start, old.length - tail), next.slice(start, next.length - tail), start + tail);
  return found?.map(({ kind, index, old: before, next: after }) => {
    return { kind, index: start + index, old: start + before, next: start + after };
  });
}

/** Tells whether edits are few, compared with the elements that stay. */
export function isWorthIt(edits: readonly Edit[], kept: number): boolean {
  const count = edits.reduce((sum, { kind }) => sum + Number(kind !== "change"), 0);
  return count <= MOST_EDITS || count <= 4 * kept;
}

export function remove(old: number): Edit {
  return { kind: "remove", index: old, old, next: -1 };
}

export function add(next: number): Edit {
  return { kind: "add", index: next, old: -1, next };
}

/** Returns edits that remove elements, then move others, then add others and change those that differ inside. */
export function align(
  old: readonly Json[],
  next: readonly Json[],
  names: Names,
  { pairs, moved }: Common,
  inPlace: InPlace,
): Edit[] {
  const { places, removed, added } = findGaps({ pairs, moved }, names, inPlace);
  const kept = [...pairs, ...moved];
  const later: Edit[] = [
    ...added.map(add),
    ...places.map((place) => ({ ...place, index: place.next })),
    ...kept
      .filter(([before, after]) => !isEqual(old[before], next[after]))
      .map(([before, after]) => ({ kind: "change" as const, index: after, old: before, next: after })),
  ];
  const staying = places.map((place): Pair => [place.old, place.next]);
  return [
    ...removed.reverse().map(remove),
    ...(moved.length > 0 ? moveEdits([...kept, ...staying], new Set(moved)) : []),
    ...later.sort((a, b) => a.index - b.index),
  ];
}

/** In a gap with equally many elements on both sides, those without ids that have not moved stay in their places. */
function findGaps({ pairs, moved }: Common, names: Names, inPlace: InPlace): Gaps {
  const movedOld = new Set(moved.map(([old]) => old));
  const movedNext = new Set(moved.map(([, next]) => next));
  const gaps: Gaps = { places: [], removed: [], added: [] };
  let [old, next] = [0, 0];
  for (const [end, nextEnd] of [...pairs, [names.old.length, names.next.length] as const]) {
    const hasPlaces = end - old === nextEnd - next;
    for (; old < end || next < nextEnd; old++, next++) {
      const isRemoved = old < end && !movedOld.has(old);
      const isAdded = next < nextEnd && !movedNext.has(next);
      const hasId = names.old[old]?.startsWith("i") || names.next[next]?.startsWith("i");
      const kind = hasPlaces && isRemoved && isAdded && !hasId ? inPlace(old, next) : undefined;
      if (kind) gaps.places.push({ kind, old, next });
      else {
        if (isRemoved) gaps.removed.push(old);
        if (isAdded) gaps.added.push(next);
      }
    }
    [old, next] = [end + 1, nextEnd + 1];
  }
  return gaps;
}

/** Returns edits that move each moved element to the place right after its predecessor in the next list. */
function moveEdits(pairs: readonly Pair[], moved: ReadonlySet<Pair>): Edit[] {
  const found: Edit[] = [];
  const there = pairs.map(([old]) => old).sort((a, b) => a - b);
  const inOrder = [...pairs].sort(([, a], [, b]) => a - b);
  inOrder.forEach((pair, at) => {
    if (!moved.has(pair)) return;
    const [old, next] = pair;
    const start = there.indexOf(old);
    there.splice(start, 1);
    const end = at > 0 ? there.indexOf((inOrder[at - 1] as Pair)[0]) + 1 : 0;
    there.splice(end, 0, old);
    if (start !== end) found.push({ kind: "out", index: start, old, next: -1 }, { kind: "in", index: end, old, next });
  });
  return found;
}

// Common elements

/** Returns the pairs of elements that stay, and those that have moved. */
export function findCommon(old: readonly string[], next: readonly string[]): Common {
  const places = new Map(next.map((name, at) => [name, at]));
  const found: Pair[] = [];
  old.forEach((name, at) => {
    const place = places.get(name);
    if (place !== undefined) found.push([at, place]);
  });
  const pairs = longestIncreasing(found);
  const kept = new Set(pairs);
  return { pairs, moved: found.filter((pair) => !kept.has(pair)) };
}

/** Returns a longest subsequence of pairs, which are in order of their first index, that is in order of both. */
export function longestIncreasing(pairs: readonly Pair[]): Pair[] {
  // For each length, the least place at which a sequence can end, and the pair that ends it.
  const ends: number[] = [];
  const last: number[] = [];
  const before = pairs.map(([, place], at) => {
    const length = firstNotBelow(ends, place);
    ends[length] = place;
    last[length] = at;
    return last[length - 1] ?? -1;
  });
  const found: Pair[] = [];
  for (let at = last.at(-1) ?? -1; at >= 0; at = before[at] as number) found.push(pairs[at] as Pair);
  return found.reverse();
}

function firstNotBelow(ends: readonly number[], place: number): number {
  let [low, high] = [0, ends.length];
  if (high === 0 || place > (ends[high - 1] as number)) return high;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((ends[middle] as number) < place) low = middle + 1;
    else high = middle;
  }
  return low;
}
