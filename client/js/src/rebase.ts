/**
 * Operations that were made on an older state, as they are to be carried out on a newer one.
 *
 * The same as `rebase.py` of the server: places are compared by JSON pointer; the indices of arrays move with what
 * others put in and took out, and of two insertions at one index the earlier stays in front.
 */

import { escape, find, parse } from "./patch.js";
import type { Document, Op } from "./patch.js";
import { isObject } from "./json.js";

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
  const steps = ops.map((op) => new Step(op, document));
  const others = over.map((op) => new Step(op, document));
  for (const other of others) {
    for (const step of steps) {
      if (!other.isGone && !step.isGone) pass(step, other);
    }
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
  /** Whether it puts an element into an array or takes one out, so that the elements behind it move. */
  readonly moves: boolean;
  isContested = false;
  /** Nothing is left to be done, as the place is gone or has been overwritten. */
  isGone = false;
  /** The very same has been done. */
  isDone = false;
  readonly #op: Op;

  constructor(op: Op, document: Document) {
    this.#op = op;
    this.name = op.op;
    this.parts = parse(op.path);
    this.moves = op.op !== "replace" && isElement(this.parts, document);
  }

  get pointer(): string {
    return this.parts.map((part) => `/${escape(part)}`).join("");
  }

  toOp(): Op {
    const { name, pointer } = this;
    if (name === this.#op.op && pointer === this.#op.path) return this.#op;
    return { ...this.#op, op: name, path: pointer } as Op;
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
  return other.moves && place.length > depth && isWithin(place, other.parts.slice(0, depth)) && isIndex(place[depth]);
}

/** Returns the place of `step` behind `other`, which is at `place`; undefined when `other` has taken it away. */
function behind(step: Step, place: readonly string[], other: Step, yields: boolean): readonly string[] | undefined {
  const depth = place.length - 1;
  const part = step.parts[depth];
  if (!leadsThrough(step.parts, other) || part === "-" || place[depth] === "-") return step.parts;
  const index = Number(part);
  const at = Number(place[depth]);
  const inserts = step.moves && step.name === "add" && step.parts.length === depth + 1;
  if (other.name !== "add" && index === at && !inserts) return undefined;
  const moved =
    other.name === "add"
      ? index + Number(index > at || (index === at && (yields || !inserts)))
      : index - Number(index > at);
  return [...step.parts.slice(0, depth), String(moved), ...step.parts.slice(depth + 1)];
}

/** Tells whether a place is an element of an array; where nothing is known of it, the look of an index decides. */
function isElement(place: readonly string[], document: Document): boolean {
  return isIndex(place.at(-1)) && !isObject(find(document, place.slice(0, -1)));
}

function isIndex(part: string | undefined): boolean {
  return part !== undefined && /^(-|[0-9]+)$/.test(part);
}
