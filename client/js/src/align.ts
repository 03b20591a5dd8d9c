/** The edits that turn one list into another, found by the identity of the elements, not by their positions. */

import { countUnknown, idOf, isSameElement, namesOf, numberRepeated, outlineOf, sharesIds } from "./elements.js";
import { canonical, isEqual, originOf } from "./json.js";
import type { Json } from "./json.js";

/** Up to this many edits are made however few elements stay; more moves than this replace the whole list. */
const MOST_EDITS = 64;

/** The elements that one diff compares; one without an id counts as `WITHOUT_ID`. */
const MOST_COMPARED = 24_000;
const WITHOUT_ID = 3;
/** Two lists that have more elements together are not compared: the new one replaces the old one. */
const MOST_ELEMENTS = 200_000;

/** What one diff may still spend on aligning lists, in elements that have an id. */
export class ListBudget {
  left = MOST_COMPARED;

  /** Spends so much and returns true, or nothing if less is left. */
  spend(count: number): boolean {
    if (count > this.left) return false;
    this.left -= count;
    return true;
  }
}

/**
 * An edit at `index` of the list as the edits before it have left it; `old` and `next` are the element's indices in the
 * two lists, or -1. "change" is for an element that differs inside; "in" adds, unchanged, the element that the "out"
 * right before it has removed.
 */
export interface Edit {
  kind: "change" | "replace" | "remove" | "add" | "out" | "in";
  index: number;
  old: number;
  next: number;
}

export type Pair = readonly [number, number];

interface Names {
  old: readonly string[];
  next: readonly string[];
}

interface Common {
  /** Elements that stay. */
  pairs: readonly Pair[];
  /** Elements that have moved. */
  moved: readonly Pair[];
}

/** The elements between those that stay: which change in their places, which are removed, and which are added. */
interface Gaps {
  places: { kind: "change" | "replace"; old: number; next: number }[];
  removed: number[];
  added: number[];
}

/**
 * Returns the edits between two lists in order; undefined where the list is to be replaced whole.
 *
 * The same as `edits` of `align.py`: elements are the same if they have the same id, or without ids the same JSON; a
 * repeated id does not count. A longest sequence that is in order in both lists stays. In a gap with equally many
 * elements on both sides, elements without ids that have not moved are changed in their places: inside where they are
 * certainly the same, else replaced whole; only a text that is not repeated is removed and added instead. `key` is the
 * member that holds the ids, where one is declared. Lists that are too large for the budget are not aligned: only a few
 * elements that have changed are found in them.
 */
export function edits(
  old: readonly Json[],
  next: readonly Json[],
  key?: string,
  budget = new ListBudget(),
): Edit[] | undefined {
  if (old.length + next.length > MOST_ELEMENTS) return undefined;
  const shorter = Math.min(old.length, next.length);
  let start = 0;
  while (start < shorter && isEqual(old[start], next[start])) start++;
  let tail = 0;
  while (tail < shorter - start && isEqual(old.at(-1 - tail), next.at(-1 - tail))) tail++;
  const lists = new Lists(old.slice(start, old.length - tail), next.slice(start, next.length - tail), [old, next], key);
  const found = lists.edits(start + tail, budget);
  return found?.map(({ kind, index, old: before, next: after }) => {
    return { kind, index: start + index, old: start + before, next: start + after };
  });
}

/** Two lists without their common start and end; `whole` are the lists with them. */
class Lists {
  readonly #old: readonly Json[];
  readonly #next: readonly Json[];
  readonly #whole: readonly (readonly Json[])[];
  readonly #key: string | undefined;
  #hasRepeated: boolean | undefined = undefined;

  constructor(
    old: readonly Json[],
    next: readonly Json[],
    whole: readonly (readonly Json[])[],
    key: string | undefined,
  ) {
    this.#key = key;
    this.#old = old;
    this.#next = next;
    this.#whole = whole;
  }

  edits(around: number, budget: ListBudget): Edit[] | undefined {
    if (this.#old.length === 0 || this.#next.length === 0) return this.#ends();
    if (this.#old.length === 1 && this.#next.length === 1) return this.#one();
    if (!this.#spend(budget)) return this.#inTheirPlaces();
    const [old, next] = namesOf(this.#old, this.#next, this.#key);
    const places = this.#havePlaces(old, next) ? [...old.keys()].filter((at) => old[at] !== next[at]) : undefined;
    const common = commonOf(numberRepeated(old), numberRepeated(next));
    let kept = common.pairs.length;
    let found: Edit[];
    if (places && places.length <= old.length + next.length - 2 * kept) {
      found = places.map((at) => ({ kind: this.#isSame(at, at) ? "change" : "replace", index: at, old: at, next: at }));
      kept = old.length - places.length;
    } else if (common.moved.length > MOST_EDITS) {
      return undefined;
    } else {
      found = this.#align(common, { old, next });
    }
    const count = found.reduce((sum, { kind }) => sum + Number(kind !== "change"), 0);
    return count > MOST_EDITS && count > 4 * (kept + around) ? undefined : found;
  }

  #spend(budget: ListBudget): boolean {
    const count = this.#old.length + this.#next.length;
    if (count > budget.left) return false;
    return budget.spend(count + (WITHOUT_ID - 1) * countUnknown(this.#old, this.#next, this.#key));
  }

  /** Returns the edits if the lists have the same length and ids, and few elements are different. */
  #inTheirPlaces(): Edit[] | undefined {
    if (this.#old.length !== this.#next.length) return undefined;
    const places: number[] = [];
    for (let at = 0; at < this.#old.length; at++) {
      if (!isEqual(this.#old[at], this.#next[at]) && places.push(at) > MOST_EDITS) return undefined;
    }
    const found: Edit[] = [];
    for (const at of places) {
      const [old, next] = [this.#old[at] as Json, this.#next[at] as Json];
      const id = idOf(old, this.#key);
      if (id !== idOf(next, this.#key)) return undefined;
      const isSame = id !== undefined || originOf(next) === old || this.#isSame(at, at);
      found.push({ kind: isSame ? "change" : "replace", index: at, old: at, next: at });
    }
    return found;
  }

  /** Tells whether only places tell elements apart, as on a board: scalars or rows, some of them repeated. */
  #havePlaces(old: readonly string[], next: readonly string[]): boolean {
    if (old.length !== next.length || [...old, ...next].some((name) => /^[{i]/.test(name))) return false;
    return this.#repeats();
  }

  /** Tells whether either whole list has equal elements. */
  #repeats(): boolean {
    return (this.#hasRepeated ??= this.#whole.some((list) => new Set(list.map(canonical)).size < list.length));
  }

  /** Returns the edits where one of the lists is empty. */
  #ends(): Edit[] {
    return [...this.#old.map((_, at) => remove(this.#old.length - 1 - at)), ...this.#next.map((_, at) => add(at))];
  }

  /** Returns the edits where each list has one element. */
  #one(): Edit[] {
    const [old, next] = [this.#old[0] as Json, this.#next[0] as Json];
    const id = idOf(old, this.#key);
    const isSame = id !== undefined || originOf(next) === old || isEqual(old, next);
    const kind = id !== idOf(next, this.#key) ? undefined : isSame ? "change" : this.#inPlace(0, 0);
    return kind ? [{ kind, index: 0, old: 0, next: 0 }] : [remove(0), add(0)];
  }

  /** Returns edits that remove elements, then move others, then add others and change those that differ inside. */
  #align({ pairs, moved }: Common, names: Names): Edit[] {
    const { places, removed, added } = this.#gaps({ pairs, moved }, names);
    const inPlace = places.map(({ old, next }): Pair => [old, next]);
    const staying = inPlace.length > 0 ? [...pairs, ...inPlace].sort(([a], [b]) => a - b) : pairs;
    const changed = [...pairs, ...moved].filter(([old, next]) => !isEqual(this.#old[old], this.#next[next]));
    const later: Edit[] = [
      ...added.map(add),
      ...places.map(({ kind, old, next }) => ({ kind, index: next, old, next })),
      ...changed.map(([old, next]) => ({ kind: "change" as const, index: next, old, next })),
    ];
    return [
      ...removed.reverse().map(remove),
      ...(moved.length > 0 ? moveEdits(this.#old.length, removed, staying, moved) : []),
      ...later.sort((a, b) => a.index - b.index),
    ];
  }

  #gaps({ pairs, moved }: Common, names: Names): Gaps {
    const movedOld = new Set(moved.map(([old]) => old));
    const movedNext = new Set(moved.map(([, next]) => next));
    const gaps: Gaps = { places: [], removed: [], added: [] };
    let twins: ReadonlySet<number> | undefined = undefined;
    let [at, to] = [0, 0];
    for (const [end, nextEnd] of [...pairs, [this.#old.length, this.#next.length] as const]) {
      const hasPlaces = end - at === nextEnd - to;
      for (let index = 0; hasPlaces && index < end - at; index++) {
        const [old, next] = [at + index, to + index];
        const hasId = names.old[old]?.startsWith("i") || names.next[next]?.startsWith("i");
        let kind = hasId || movedOld.has(old) || movedNext.has(next) ? undefined : this.#inPlace(old, next);
        if (kind === "change") {
          twins ??= this.#twins([...pairs, ...moved]);
          if (twins.has(old) && !sharesIds(this.#old[old] as Json, this.#next[next] as Json)) kind = "replace";
        }
        if (kind) gaps.places.push({ kind, old, next });
        else {
          if (!movedOld.has(old)) gaps.removed.push(old);
          if (!movedNext.has(next)) gaps.added.push(next);
        }
      }
      for (let old = at; !hasPlaces && old < end; old++) if (!movedOld.has(old)) gaps.removed.push(old);
      for (let next = to; !hasPlaces && next < nextEnd; next++) if (!movedNext.has(next)) gaps.added.push(next);
      [at, to] = [end + 1, nextEnd + 1];
    }
    return gaps;
  }

  /** Returns the edit of an element into the one in its place, both without ids; undefined where it is removed. */
  #inPlace(old: number, next: number): "change" | "replace" | undefined {
    if (this.#isSame(old, next)) return "change";
    // A text that is not repeated is an element of its own, such as a tag; a number has a place, as in a point.
    const hasText = typeof this.#old[old] === "string" || typeof this.#next[next] === "string";
    return hasText && !this.#repeats() ? undefined : "replace";
  }

  /** Returns the old elements that look like another one, old or new, that is not known to stay. */
  #twins(known: readonly Pair[]): ReadonlySet<number> {
    const [olds, nexts] = [new Set(known.map(([old]) => old)), new Set(known.map(([, next]) => next))];
    const outlines = this.#old.map((element, at) => (olds.has(at) ? undefined : outlineOf(element)));
    const others = this.#next.map((element, at) => (nexts.has(at) ? undefined : outlineOf(element)));
    const counts = [count(outlines), count(others)] as const;
    const isTwin = (outline: string | undefined) =>
      outline !== undefined && counts.some((each) => (each.get(outline) ?? 0) > 1);
    return new Set([...outlines.keys()].filter((at) => isTwin(outlines[at])));
  }

  #isSame(old: number, next: number): boolean {
    return isSameElement(this.#old[old] as Json, this.#next[next] as Json);
  }
}

function count<T>(items: readonly T[]): Map<T, number> {
  const counts = new Map<T, number>();
  for (const item of items) counts.set(item, (counts.get(item) ?? 0) + 1);
  return counts;
}

function remove(old: number): Edit {
  return { kind: "remove", index: old, old, next: -1 };
}

function add(next: number): Edit {
  return { kind: "add", index: next, old: -1, next };
}

/** Returns edits that move each moved element to right after the one that is before it in the next list. */
function moveEdits(
  count: number,
  removed: readonly number[],
  staying: readonly Pair[],
  moved: readonly Pair[],
): Edit[] {
  const found: Edit[] = [];
  const dropped = new Set(removed);
  const there = Array.from({ length: count }, (_, old) => old).filter((old) => !dropped.has(old));
  const places = staying.map(([, next]) => next);
  let last: Pair | undefined = undefined;
  for (const pair of [...moved].sort(([, a], [, b]) => a - b)) {
    const [old, next] = pair;
    let previous: Pair | undefined = staying[firstNotBelow(places, next) - 1];
    if (last && (!previous || last[1] > previous[1])) previous = last;
    const start = there.indexOf(old);
    let end = previous ? there.indexOf(previous[0]) + 1 : 0;
    end -= Number(start < end);
    if (start !== end) {
      there.splice(start, 1);
      there.splice(end, 0, old);
      found.push({ kind: "out", index: start, old, next: -1 }, { kind: "in", index: end, old, next });
    }
    last = pair;
  }
  return found;
}

// Common elements

/** Returns the pairs of elements that stay, and those that have moved. */
function commonOf(old: readonly string[], next: readonly string[]): Common {
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
  // By length, the least place at which a sequence can end, and the pair that ends it.
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
