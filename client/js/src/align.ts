/** The edits that turn one list into another, found by the identity of the elements, never by their positions. */

import { canonical, isEqual, isObject, originOf } from "./json.js";
import type { Json, JsonObject } from "./json.js";

/** The members that may hold what an element is known by; the first one that holds a text or an integer counts. */
const ID_KEYS: readonly string[] = ["id", "key", "_id"];

/** So many edits are made however little stays of a list, and so many elements move at most. */
const MOST_EDITS = 64;

/**
 * What is done at `index` of the list as it is by then, of elements by their indices in the two lists.
 * "change" means one element, which is different inside; "in" puts in, as it was, the element that the "out" right before
 * it has taken out. Without an old element -1 stands for its index, and so without a new one.
 */
export interface Edit {
  kind: "change" | "replace" | "remove" | "add" | "out" | "in";
  index: number;
  old: number;
  next: number;
}

type Id = string | number | bigint | undefined;
type Pair = readonly [number, number];

interface Names {
  old: readonly string[];
  next: readonly string[];
}

interface Common {
  /** Elements that stay. */
  pairs: readonly Pair[];
  /** Elements that are elsewhere in the other list. */
  moved: readonly Pair[];
}

/** What is between elements that stay: those that change in their places, and which others go and come. */
interface Gaps {
  places: { kind: "change" | "replace"; old: number; next: number }[];
  removed: number[];
  added: number[];
}

/**
 * Returns the edits between two lists in order; undefined where the list is to be replaced whole.
 *
 * The same as `edits` of `align.py`: elements are the same if they have the same id, or without ids are the same JSON;
 * those that several have identify none of them. What stays is a longest sequence of them that is in order in both
 * lists. In a gap of as many elements on both sides, elements without ids are changed in their places if they have not
 * moved: inside where they are certainly the same, else by replacing them whole, but for texts of which each is there
 * once. `key` is the member that holds the ids, where that is known.
 */
export function edits(old: readonly Json[], next: readonly Json[], key?: string): Edit[] | undefined {
  const shorter = Math.min(old.length, next.length);
  let start = 0;
  while (start < shorter && isEqual(old[start], next[start])) start++;
  let tail = 0;
  while (tail < shorter - start && isEqual(old.at(-1 - tail), next.at(-1 - tail))) tail++;
  const lists = new Lists(old.slice(start, old.length - tail), next.slice(start, next.length - tail), [old, next], key);
  const found = lists.edits(start + tail);
  return found?.map(({ kind, index, old: before, next: after }) => {
    return { kind, index: start + index, old: start + before, next: start + after };
  });
}

/** Two lists that differ at both ends, where `whole` are the lists with what they have in common there. */
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

  edits(around: number): Edit[] | undefined {
    if (this.#old.length === 0 || this.#next.length === 0) return this.#ends();
    if (this.#old.length === 1 && this.#next.length === 1) return this.#one();
    const [old, next] = namesOf(this.#old, this.#next, this.#key);
    const places = this.#havePlaces(old, next) ? [...old.keys()].filter((at) => old[at] !== next[at]) : undefined;
    const common = commonOf(numbered(old), numbered(next));
    let kept = common.pairs.length;
    let found: Edit[];
    if (places && places.length <= old.length + next.length - 2 * kept) {
      found = places.map((at) => ({ kind: this.#isSame(at, at) ? "change" : "replace", index: at, old: at, next: at }));
      kept = old.length - places.length;
    } else if (common.moved.length > MOST_EDITS) {
      return undefined;
    } else {
      found = this.#filled(common, { old, next });
    }
    const count = found.reduce((sum, { kind }) => sum + Number(kind !== "change"), 0);
    return count > MOST_EDITS && count > 4 * (kept + around) ? undefined : found;
  }

  /** Tells whether only places tell elements apart, as on a board: they are values or rows, of which some repeat. */
  #havePlaces(old: readonly string[], next: readonly string[]): boolean {
    if (old.length !== next.length || [...old, ...next].some((name) => /^[{i]/.test(name))) return false;
    return this.#repeats();
  }

  /** Tells whether several elements of the old or the new list, with its ends, are alike. */
  #repeats(): boolean {
    return (this.#hasRepeated ??= this.#whole.some((list) => new Set(list.map(canonical)).size < list.length));
  }

  /** Returns the edits where only one of the lists has anything between the ends. */
  #ends(): Edit[] {
    return [
      ...this.#old.map((_, at) => removal(this.#old.length - 1 - at)),
      ...this.#next.map((_, at) => insertion(at)),
    ];
  }

  /** Returns the edits where one element is between the ends of either list. */
  #one(): Edit[] {
    const [old, next] = [this.#old[0] as Json, this.#next[0] as Json];
    const id = idOf(old, this.#key);
    const isSame = id !== undefined || originOf(next) === old || isEqual(old, next);
    const kind = id !== idOf(next, this.#key) ? undefined : isSame ? "change" : this.#inPlace(0, 0);
    return kind ? [{ kind, index: 0, old: 0, next: 0 }] : [removal(0), insertion(0)];
  }

  /** Returns what takes elements out, moves others, and then puts in others and changes what is different inside. */
  #filled({ pairs, moved }: Common, names: Names): Edit[] {
    const { places, removed, added } = this.#gaps({ pairs, moved }, names);
    const inPlace = places.map(({ old, next }): Pair => [old, next]);
    const staying = inPlace.length > 0 ? [...pairs, ...inPlace].sort(([a], [b]) => a - b) : pairs;
    const changed = [...pairs, ...moved].filter(([old, next]) => !isEqual(this.#old[old], this.#next[next]));
    const later: Edit[] = [
      ...added.map(insertion),
      ...places.map(({ kind, old, next }) => ({ kind, index: next, old, next })),
      ...changed.map(([old, next]) => ({ kind: "change" as const, index: next, old, next })),
    ];
    return [
      ...removed.reverse().map(removal),
      ...(moved.length > 0 ? moves(this.#old.length, removed, staying, moved) : []),
      ...later.sort((a, b) => a.index - b.index),
    ];
  }

  #gaps({ pairs, moved }: Common, names: Names): Gaps {
    const goes = new Set(moved.map(([old]) => old));
    const comes = new Set(moved.map(([, next]) => next));
    const gaps: Gaps = { places: [], removed: [], added: [] };
    let twins: ReadonlySet<number> | undefined = undefined;
    let [at, to] = [0, 0];
    for (const [end, nextEnd] of [...pairs, [this.#old.length, this.#next.length] as const]) {
      const hasPlaces = end - at === nextEnd - to;
      for (let index = 0; hasPlaces && index < end - at; index++) {
        const [old, next] = [at + index, to + index];
        const hasId = names.old[old]?.startsWith("i") || names.next[next]?.startsWith("i");
        let kind = hasId || goes.has(old) || comes.has(next) ? undefined : this.#inPlace(old, next);
        if (kind === "change") {
          twins ??= this.#twins([...pairs, ...moved]);
          if (twins.has(old) && !sharesIds(this.#old[old] as Json, this.#next[next] as Json)) kind = "replace";
        }
        if (kind) gaps.places.push({ kind, old, next });
        else {
          if (!goes.has(old)) gaps.removed.push(old);
          if (!comes.has(next)) gaps.added.push(next);
        }
      }
      for (let old = at; !hasPlaces && old < end; old++) if (!goes.has(old)) gaps.removed.push(old);
      for (let next = to; !hasPlaces && next < nextEnd; next++) if (!comes.has(next)) gaps.added.push(next);
      [at, to] = [end + 1, nextEnd + 1];
    }
    return gaps;
  }

  /** Returns what becomes of an element in whose place is another, both without ids; undefined if it goes. */
  #inPlace(old: number, next: number): "change" | "replace" | undefined {
    if (this.#isSame(old, next)) return "change";
    // A text of which there is one is an element of its own, as a tag is; a number has a place, as in a point.
    const hasText = typeof this.#old[old] === "string" || typeof this.#next[next] === "string";
    return hasText && !this.#repeats() ? undefined : "replace";
  }

  /** Returns those old elements that look as another does, old or new, of which it is not known either if it stays. */
  #twins(known: readonly Pair[]): ReadonlySet<number> {
    const [olds, nexts] = [new Set(known.map(([old]) => old)), new Set(known.map(([, next]) => next))];
    const outlines = this.#old.map((element, at) => (olds.has(at) ? undefined : outlineOf(element)));
    const others = this.#next.map((element, at) => (nexts.has(at) ? undefined : outlineOf(element)));
    const counts = [counted(outlines), counted(others)] as const;
    const isTwin = (outline: string | undefined) =>
      outline !== undefined && counts.some((count) => (count.get(outline) ?? 0) > 1);
    return new Set([...outlines.keys()].filter((at) => isTwin(outlines[at])));
  }

  #isSame(old: number, next: number): boolean {
    return isSameElement(this.#old[old] as Json, this.#next[next] as Json);
  }
}

function counted<T>(items: readonly T[]): Map<T, number> {
  const counts = new Map<T, number>();
  for (const item of items) counts.set(item, (counts.get(item) ?? 0) + 1);
  return counts;
}

function removal(old: number): Edit {
  return { kind: "remove", index: old, old, next: -1 };
}

function insertion(next: number): Edit {
  return { kind: "add", index: next, old: -1, next };
}

/** Returns what brings each element that has moved to where it comes right after the one before it. */
function moves(count: number, removed: readonly number[], staying: readonly Pair[], moved: readonly Pair[]): Edit[] {
  const found: Edit[] = [];
  const gone = new Set(removed);
  const there = Array.from({ length: count }, (_, old) => old).filter((old) => !gone.has(old));
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

// Names

/** Returns what the elements of two lists are known by: their ids, or without one their JSON. */
function namesOf(old: readonly Json[], next: readonly Json[], key: string | undefined): [string[], string[]] {
  const ids = idsOf(old, next, key);
  const repeated = new Set([...repeatedIn(ids[0]), ...repeatedIn(ids[1])]);
  const name = (element: Json, id: Id) => {
    if (id === undefined || repeated.has(id)) return canonical(element);
    return typeof id === "string" ? `is${id}` : `in${id}`;
  };
  return [old.map((element, at) => name(element, ids[0][at])), next.map((element, at) => name(element, ids[1][at]))];
}

/** Returns the ids of the elements of two lists; those without one that were edited have the one that they share. */
function idsOf(old: readonly Json[], next: readonly Json[], key: string | undefined): readonly [Id[], Id[]] {
  const ids = [old.map((element) => idOf(element, key)), next.map((element) => idOf(element, key))] as const;
  const origins = next.map(originOf);
  if (origins.every((origin) => origin === undefined)) return ids;
  const places = new Map<unknown, number>();
  old.forEach((element, at) => {
    if (ids[0][at] === undefined && typeof element === "object") places.set(element, at);
  });
  origins.forEach((origin, at) => {
    const place = ids[1][at] === undefined ? places.get(origin) : undefined;
    if (place !== undefined) ids[0][place] = ids[1][at] = `\0${place}`;
  });
  return ids;
}

/** Returns the id of an element, undefined where it has none; `key` is the member that holds it, where that is known. */
export function idOf(element: Json, key?: string): Id {
  if (!isObject(element)) return undefined;
  for (const each of key === undefined ? ID_KEYS : [key]) {
    const id = Object.hasOwn(element, each) ? element[each] : undefined;
    if (typeof id === "string" || typeof id === "bigint" || Number.isInteger(id)) return id as Id;
  }
  return undefined;
}

/** Which member identifies the elements of a list, by the JSON pointer of the list; `*` is any part of it. */
export class Keys {
  readonly #keys: readonly (readonly [readonly string[], string])[];

  constructor(keys: Readonly<Record<string, string>>) {
    this.#keys = Object.entries(keys).map(([pointer, key]) => [pointer.split("/"), key]);
  }

  /** Returns the member for the list at a JSON pointer, undefined where it has one of the usual names. */
  at(path: string): string | undefined {
    const parts = path.split("/");
    const isOf = (pattern: readonly string[]) =>
      pattern.length === parts.length && pattern.every((part, depth) => part === "*" || part === parts[depth]);
    return this.#keys.find(([pattern]) => isOf(pattern))?.[1];
  }
}

function repeatedIn(ids: readonly Id[]): Set<Id> {
  const seen = new Set<Id>();
  const found = new Set<Id>();
  for (const id of ids) (seen.has(id) ? found : seen).add(id);
  return found;
}

/** Returns the names with the first, second and so on of those that are alike told apart. */
function numbered(names: readonly string[]): readonly string[] {
  if (new Set(names).size === names.length) return names;
  const counts = new Map<string, number>();
  return names.map((name) => {
    const count = counts.get(name) ?? 0;
    counts.set(name, count + 1);
    return count > 0 ? `${name}#${count}` : name;
  });
}

// What stays

/** Returns the pairs of elements that stay, and which others have moved. */
function commonOf(old: readonly string[], next: readonly string[]): Common {
  const places = new Map(next.map((name, at) => [name, at]));
  const found: Pair[] = [];
  old.forEach((name, at) => {
    const place = places.get(name);
    if (place !== undefined) found.push([at, place]);
  });
  const pairs = increasing(found);
  const kept = new Set(pairs);
  return { pairs, moved: found.filter((pair) => !kept.has(pair)) };
}

/** Returns a longest part of pairs in the order of their first that is in the order of their second, too. */
function increasing(pairs: readonly Pair[]): Pair[] {
  // For each length, the least place at which a sequence so long can end, and the pair that is there.
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

// Elements without an id

/**
 * Tells whether two elements without ids in one place of a list look as one that was changed: objects whose own values
 * are the same, and rows that have most of their values in common, or an element with an id.
 */
function isSameElement(old: Json, next: Json): boolean {
  if (isEqual(old, next)) return true;
  if (Array.isArray(old) && Array.isArray(next)) return isSameRow(old, next);
  const outline = outlineOf(old);
  return outline !== undefined && outline === outlineOf(next);
}

function isSameRow(old: readonly Json[], next: readonly Json[]): boolean {
  const alike = old.filter((value, at) => isEqual(value, next[at]));
  if (old.length === next.length && 2 * alike.length > old.length) return true;
  return hasCommonId(old, next);
}

/**
 * Returns the JSON of an object without what is in its lists and, if it has a text, in its objects; undefined for what is
 * no object.
 */
function outlineOf(element: Json): string | undefined {
  if (!isObject(element)) return undefined;
  const hasText = Object.values(element).some((value) => typeof value === "string" && value !== "");
  return canonical(withoutLists(element, hasText));
}

function withoutLists(object: JsonObject, hasText: boolean): JsonObject {
  const outline = (value: Json): Json => {
    if (Array.isArray(value)) return [];
    return isObject(value) ? (hasText ? {} : withoutLists(value, false)) : value;
  };
  return Object.fromEntries(Object.entries(object).map(([key, value]) => [key, outline(value)]));
}

/** Tells whether a list in an object, and the one at the same key of another, have elements of one id. */
function sharesIds(old: Json, next: Json): boolean {
  if (!isObject(old) || !isObject(next)) return false;
  return Object.entries(old).some(([key, list]) => {
    const other = Object.hasOwn(next, key) ? next[key] : undefined;
    return Array.isArray(list) && Array.isArray(other) && hasCommonId(list, other);
  });
}

function hasCommonId(old: readonly Json[], next: readonly Json[]): boolean {
  const ids = new Set(old.map((element) => idOf(element)));
  return next.some((element) => idOf(element) !== undefined && ids.has(idOf(element)));
}
