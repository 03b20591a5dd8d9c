/**
 * Operations that were made on an older state, as they are to be carried out on a newer one.
 *
 * The same as `rebase.py` of the server: places are compared by JSON pointer; the indices of arrays move with what
 * others put in and took out, and of two insertions at one index the earlier stays in front.
 */

import { PatchError, apply, escape, find, isIndex, parse } from "./patch.js";
import type { Document } from "./patch.js";
import { isObject } from "./json.js";
import type { Op } from "./protocol.js";

export interface Rebased {
  ops: Op[];
  /** The places, in the newer state, where others have changed the same. */
  conflicts: string[];
  /** Whether a place that the operations lead into is gone, so that they cannot be carried out. */
  isLost: boolean;
  /** What they were rebased over, as it would be behind them: each operation, or undefined where nothing is left. */
  over: (Op | undefined)[];
}

/** Returns `ops` as they are on `document`, which is what `over` made of the state that both were made on. */
export function rebase(ops: readonly Op[], over: readonly Op[], document: Document): Rebased {
  if (over.length === 0) return { ops: [...ops], conflicts: [], isLost: false, over: [] };
  const others: Step[] = [];
  for (const op of [...over].reverse()) {
    const other = new Step(op, others, document);
    other.fixEnd();
    others.unshift(other);
  }
  const steps: Step[] = [];
  for (const op of ops) {
    const step = new Step(op, others, document);
    steps.push(step);
    for (const other of others) {
      if (!other.isGone && !step.isGone) pass(step, other);
    }
    document = carriedOut(step, document);
  }
  return {
    ops: steps.filter((step) => !step.isDone).map((step) => step.toOp()),
    conflicts: steps.filter((step) => step.isContested).map((step) => step.pointer),
    isLost: steps.some((step) => step.isGone && !step.isDone),
    over: others.map((other) => (other.isGone ? undefined : other.toOp())),
  };
}

/** One operation on its way, with its place taken apart. */
class Step {
  name: Op["op"];
  parts: readonly string[];
  /**
   * Whether it puts an element into an array or takes one out, so that the elements behind it move. Where nothing is
   * known of the array, the look of an index decides.
   */
  moves: boolean;
  isContested = false;
  /** Nothing is left to be done, as the place is gone or has been overwritten. */
  isGone = false;
  /** The very same has been done. */
  isDone = false;
  readonly #op: Op;
  // The index that `-` stands for, if that is known.
  #end: number | undefined = undefined;

  /** Looks up what it puts an element into: it is where `later` have moved it, in what they have led to. */
  constructor(op: Op, later: readonly Step[], document: Document) {
    this.#op = op;
    this.name = op.op;
    this.parts = parse(op.path);
    this.moves = op.op !== "replace" && isPlace(this.parts.at(-1));
    if (this.moves) this.#lookUp(later, document);
  }

  get pointer(): string {
    return this.parts.map((part) => `/${escape(part)}`).join("");
  }

  toOp(): Op {
    const { name, pointer } = this;
    if (name === this.#op.op && pointer === this.#op.path) return this.#op;
    return { ...this.#op, op: name, path: pointer };
  }

  /** Gives the end of an array its index: `-` would be another one behind others who append. */
  fixEnd(): void {
    if (this.#end === undefined || this.parts.at(-1) !== "-") return;
    this.parts = [...this.parts.slice(0, -1), String(this.#end)];
  }

  #lookUp(later: readonly Step[], document: Document): void {
    const array = this.parts.slice(0, -1);
    const measures = this.parts.at(-1) === "-";
    const isMoved = measures || array.some(isPlace);
    const { place, growth } = isMoved ? through(array, later, measures) : { place: array, growth: 0 };
    const container = place && find(document, place);
    this.moves = !isObject(container);
    this.#end = Array.isArray(container) ? container.length - growth - 1 : undefined;
  }
}

/** Lets `other` come before `mine`: each is afterwards as it is to be carried out behind the other. */
function pass(mine: Step, other: Step): void {
  const place = mine.parts;
  const otherPlace = other.parts;
  const isSame = place.length === otherPlace.length && isWithin(place, otherPlace);
  if (isSame && mine.name === "remove" && other.name === "remove") {
    mine.isGone = mine.isDone = other.isGone = true;
  } else if (leadsThrough(place, other) || leadsThrough(otherPlace, mine)) {
    const moved = behind(mine, otherPlace, other, true);
    const otherMoved = behind(other, place, mine, false);
    mine.isContested ||= moved === undefined || otherMoved === undefined;
    mine.isGone = moved === undefined;
    other.isGone = otherMoved === undefined;
    mine.parts = moved ?? place;
    other.parts = otherMoved ?? otherPlace;
  } else if (isWithin(place, otherPlace) || isWithin(otherPlace, place)) {
    mine.isContested = true;
    mine.isGone = other.name === "remove" && otherPlace.length < place.length;
    other.isGone = place.length <= otherPlace.length;
    if (isSame && other.name === "remove") mine.name = "add";
  }
}

/** Tells whether `place` is `outer`, or in it. */
function isWithin(place: readonly string[], outer: readonly string[]): boolean {
  return outer.length <= place.length && outer.every((part, depth) => part === place[depth]);
}

/** Tells whether a place is an element of the array whose elements `other` moves, or in one. */
function leadsThrough(place: readonly string[], other: Step): boolean {
  const depth = other.parts.length - 1;
  return other.moves && place.length > depth && isWithin(place, other.parts.slice(0, depth)) && isPlace(place[depth]);
}

/** Returns the place of `step` behind `other`, which is at `place`; undefined when `other` has taken it away. */
function behind(step: Step, place: readonly string[], other: Step, yields: boolean): readonly string[] | undefined {
  if (!leadsThrough(step.parts, other) || isEnd(step.parts, place)) return step.parts;
  const inserts = step.moves && step.name === "add" && step.parts.length === place.length;
  return shifted(step.parts, place, other, inserts, yields);
}

/** Tells whether either of two places in an array is its end, whose index is not known. */
function isEnd(parts: readonly string[], place: readonly string[]): boolean {
  return parts[place.length - 1] === "-" || place.at(-1) === "-";
}

function shifted(
  parts: readonly string[],
  place: readonly string[],
  other: Step,
  inserts: boolean,
  yields: boolean,
): readonly string[] | undefined {
  const depth = place.length - 1;
  const index = Number(parts[depth]);
  const at = Number(place[depth]);
  if (other.name !== "add" && index === at && !inserts) return undefined;
  const moved =
    other.name === "add"
      ? index + Number(index > at || (index === at && (yields || !inserts)))
      : index - Number(index > at);
  return [...parts.slice(0, depth), String(moved), ...parts.slice(depth + 1)];
}

/** Returns where an array is behind `steps`, if it still is, and if asked how many elements it has more then. */
function through(
  array: readonly string[],
  steps: readonly Step[],
  measures: boolean,
): { place: readonly string[] | undefined; growth: number } {
  let growth = 0;
  let place = array;
  // The elements of arrays further down do not matter.
  const longest = array.length + Number(measures);
  for (const step of steps) {
    const { parts } = step;
    if (parts.length > longest || step.isGone) continue;
    if (!step.moves) {
      // Something else is there.
      if (isWithin(place, parts)) return { place: undefined, growth: 0 };
    } else if (parts.length === place.length + 1 && isWithin(parts, place)) {
      growth += step.name === "add" ? 1 : -1;
    } else if (leadsThrough(place, step) && !isEnd(place, parts)) {
      const moved = shifted(place, parts, step, false, true);
      if (!moved) return { place: undefined, growth: 0 };
      place = moved;
    }
  }
  return { place, growth };
}

function carriedOut(step: Step, document: Document): Document {
  try {
    return step.isGone ? document : apply(document, [step.toOp()]);
  } catch (error) {
    if (error instanceof PatchError) return document;
    throw error;
  }
}

/** Tells whether a part of a pointer may be a place in an array: the index of an element, or its end. */
function isPlace(part: string | undefined): boolean {
  return part === "-" || (part !== undefined && isIndex(part));
}
