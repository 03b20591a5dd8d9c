/** Compares lists closely: elements without ids, too, and within bounds. */

import { idOf, namesOf, numberRepeated } from "./elements.js";
import { canonical, isEqual, originOf } from "./json.js";
import type { Json } from "./json.js";
import { MOST_EDITS, add, align, findCommon, isWorthIt, remove, withoutEnds } from "./lists.js";
import type { Common, InPlace, Pair } from "./lists.js";
import { countUnknown, isSameElement, outlineOf, sharesIds } from "./outlines.js";
import type { Edit } from "./parts.js";

/** The elements that one diff compares; one without an id counts as `WITHOUT_ID`. */
const MOST_COMPARED = 24_000;
const WITHOUT_ID = 3;
/** Two lists that have more elements together are not compared: the new one replaces the old one. */
const MOST_ELEMENTS = 200_000;

/** The rest of one diff's budget for aligning lists, in elements that have an id. */
export class ListBudget {
  left = MOST_COMPARED;

  /** Spends `count` and returns true, or nothing if less is left. */
  spend(count: number): boolean {
    if (count > this.left) return false;
    this.left -= count;
    return true;
  }
}

/**
 * Returns the edits between two lists in order; undefined if the list must be replaced whole.
 *
 * The same as `edits` of `align.py`: elements are the same if they have the same id, or without ids the same JSON; a
 * repeated id does not count. A longest sequence that is in order in both lists stays. In a gap with equally many
 * elements on both sides, elements without ids that have not moved are changed in their places: inside if they are
 * certainly the same, else replaced whole; only a text that is not repeated is removed and added instead. `key` is the
 * member that holds the ids, if one is declared. Lists that are too large for the budget are not aligned: only a few
 * elements that have changed are found in them.
 */
export function edits(
  old: readonly Json[],
  next: readonly Json[],
  key?: string,
  budget = new ListBudget(),
): Edit[] | undefined {
  if (old.length + next.length > MOST_ELEMENTS) return undefined;
  return withoutEnds(old, next, (some, others, around) => {
    return new Lists(some, others, [old, next], key).edits(around, budget);
  });
}

/** Two lists without their common start and end; `whole` are the lists with them. */
class Lists {
  readonly #old: readonly Json[];
  readonly #next: readonly Json[];
  readonly #whole: readonly (readonly Json[])[];
  readonly #key: string | undefined;
  #hasRepeated: boolean | undefined;

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
    const common = findCommon(numberRepeated(old), numberRepeated(next));
    let kept = common.pairs.length;
    let found: Edit[];
    if (places && places.length <= old.length + next.length - 2 * kept) {
      found = places.map((at) => ({ kind: this.#isSame(at, at) ? "change" : "replace", index: at, old: at, next: at }));
      kept = old.length - places.length;
    } else if (common.moved.length > MOST_EDITS) {
      return undefined;
    } else {
      found = align(this.#old, this.#next, { old, next }, common, this.#placesBeside(common));
    }
    return isWorthIt(found, kept + around) ? found : undefined;
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

  /** Returns the edits if one of the lists is empty. */
  #ends(): Edit[] {
    return [...this.#old.map((_, at) => remove(this.#old.length - 1 - at)), ...this.#next.map((_, at) => add(at))];
  }

  /** Returns the edits if each list has one element. */
  #one(): Edit[] {
    const [old, next] = [this.#old[0] as Json, this.#next[0] as Json];
    const id = idOf(old, this.#key);
    const isSame = id !== undefined || originOf(next) === old || isEqual(old, next);
    const kind = id !== idOf(next, this.#key) ? undefined : isSame ? "change" : this.#inPlace(0, 0);
    return kind ? [{ kind, index: 0, old: 0, next: 0 }] : [remove(0), add(0)];
  }

  /** Returns how elements change in their places; if an element looks like others, its content is not compared. */
  #placesBeside({ pairs, moved }: Common): InPlace {
    let twins: ReadonlySet<number> | undefined = undefined;
    return (old, next) => {
      const kind = this.#inPlace(old, next);
      if (kind !== "change") return kind;
      twins ??= this.#twins([...pairs, ...moved]);
      return twins.has(old) && !sharesIds(this.#old[old] as Json, this.#next[next] as Json) ? "replace" : kind;
    };
  }

  /** Returns the edit of an element into the one in its place, both without ids; undefined if it is removed. */
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
