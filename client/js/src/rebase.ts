/**
 * Operations that were made on an older state, as they are to be carried out on a newer one.
 *
 * The same as `rebase.py` of the server: places are compared by JSON pointer; the indices of arrays move with what
 * others put in and took out, and of two insertions at one index the earlier stays in front.
 */

import { PatchError, apply, escape, find, isIndex, parse } from "./patch.js";
import type { Document } from "./patch.js";
import { isObject } from "./json.js";
import type { Json } from "./json.js";
import type { Op } from "./protocol.js";
import { Shape } from "./shape.js";

export interface Rebased {
  ops: Op[];
  /** The places, in the newer state, where others have changed the same. */
  conflicts: string[];
  /** Whether a place that the operations lead into is gone, so that they cannot be carried out. */
  isLost: boolean;
  /**
   * What they were rebased over, as it would be behind them, but for what nothing is left of. Where they are lost it
   * takes them back, just before what took their place away, and goes on without them.
   */
  over: Op[];
}

/** Returns `ops` as they are on `document`, which is what `over` made of the state that both were made on. */
export function rebase(ops: readonly Op[], over: readonly Op[], document: Document): Rebased {
  if (over.length === 0) return { ops: [...ops], conflicts: [], isLost: false, over: [] };
  const shape = new Shape(document);
  const others = undone(over, shape);
  let lostAt = others.length;
  const steps = ops.map((op) => {
    const step = new Step(op);
    step.lookUp(shape);
    shape.do(step.name, step.parts, op.value);
    lostAt = Math.min(lostAt, passAll(step, others));
    return step;
  });
  const isLost = lostAt < others.length;
  return {
    ops: steps.filter((step) => !step.isDone).map((step) => step.toOp()),
    conflicts: steps.filter((step) => step.isContested).map((step) => step.pointer),
    isLost,
    over: isLost ? without(ops, over, lostAt, document) : present(others),
  };
}

/** Returns operations that have led to a shape, which is led back to where it was before them. */
function undone(over: readonly Op[], shape: Shape): Step[] {
  const steps = [...over].reverse().map((op) => {
    const step = new Step(op);
    step.lookUp(shape, true);
    shape.undo(step.name, step.parts);
    return step;
  });
  return steps.reverse();
}

/** Returns `over`, and what takes `ops` back before the one at `lostAt`. */
function without(ops: readonly Op[], over: readonly Op[], lostAt: number, document: Document): Op[] {
  const shape = new Shape(document);
  const rest = undone(over.slice(lostAt), shape);
  const there = shape.look([]);
  const before = rebase(ops, over.slice(0, lostAt), there);
  return [...before.over, ...takingBack(before.ops, there), ...present(rest)];
}

/**
 * Returns what would take back operations on a document, those that fit. It has no values: it is for others to be
 * rebased over. What leads into a value that is not known is lost.
 */
export function takingBack(ops: readonly Op[], document: Document): Op[] {
  const shape = new Shape(document);
  const inverse: Op[] = [];
  for (const op of ops) {
    const parts = parse(op.path);
    const isThere = shape.look(parts) !== undefined;
    const container = shape.look(parts.slice(0, -1));
    const fits = op.op === "add" ? parts.length === 0 || typeof container === "object" : isThere;
    if (fits) {
      inverse.push(inverseOf(op, parts, container, isThere));
      shape.do(op.op, parts, op.value);
    }
  }
  return inverse.reverse();
}

function inverseOf(op: Op, parts: readonly string[], container: Document, isThere: boolean): Op {
  if (op.op === "remove") return { op: "add", path: op.path };
  if (op.op === "replace") return { op: "replace", path: op.path };
  if (!Array.isArray(container) || parts.length === 0) return { op: isThere ? "replace" : "remove", path: op.path };
  const end = parts.at(-1) === "-" ? [...parts.slice(0, -1), String(container.length)] : parts;
  return { op: "remove", path: pointer(end) };
}

function present(steps: readonly Step[]): Op[] {
  return steps.filter((step) => !step.isGone).map((step) => step.toOp());
}

/** Lets `others` come before `mine`; returns the index of the one that takes its place away, or how many they are. */
function passAll(mine: Step, others: readonly Step[]): number {
  for (const [index, other] of others.entries()) {
    if (other.isGone) continue;
    pass(mine, other);
    if (mine.isGone) return mine.isDone ? others.length : index;
  }
  return others.length;
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
  /** Whether it is at an element of an array. */
  isElement: boolean;
  isContested = false;
  /** Nothing is left to be done, as the place is gone or has been overwritten. */
  isGone = false;
  /** The very same has been done. */
  isDone = false;
  /** As it was given, or is by what was done inside its value. */
  #op: Op;

  constructor(op: Op) {
    this.#op = op;
    this.name = op.op;
    this.parts = parse(op.path);
    this.isElement = isPlace(this.parts.at(-1));
    this.moves = op.op !== "replace" && this.isElement;
  }

  get pointer(): string {
    return pointer(this.parts);
  }

  toOp(): Op {
    const { name, pointer } = this;
    if (name === this.#op.op && pointer === this.#op.path) return this.#op;
    return { ...this.#op, op: name, path: pointer };
  }

  /**
   * Lets another be done inside what this one has put at its place; where it does not fit, it is gone. So it is where it
   * leads to an element of a list: nothing tells that what has come to be at its index is the element that was meant. As
   * with members that others have removed, one that is not there is added, or need not be removed.
   */
  takeIn(inner: Step): void {
    const { value } = this.#op;
    const rest = inner.parts.slice(this.parts.length);
    if (this.isElement || leadsToElement(value, rest, inner.name === "add")) {
      inner.isGone = true;
      return;
    }
    if (isObject(find(value, rest.slice(0, -1))) && find(value, rest) === undefined) {
      if (inner.name === "remove") {
        inner.isGone = inner.isDone = true;
        return;
      }
      inner.name = "add";
    }
    try {
      this.#op = { ...this.#op, value: apply(value, [{ ...inner.#op, op: inner.name, path: pointer(rest) }]) as Json };
    } catch (error) {
      if (!(error instanceof PatchError)) throw error;
      inner.isGone = true;
    }
  }

  /**
   * Sees what it puts an element into. The end of an array that has been appended to is given its index: `-` would be
   * another behind others who append.
   */
  lookUp(shape: Shape, hasHappened = false): void {
    if (!this.isElement) return;
    const place = this.parts.slice(0, -1);
    const container = shape.look(place);
    this.isElement = !isObject(container);
    this.moves &&= this.isElement;
    if (this.moves && hasHappened && this.parts.at(-1) === "-" && Array.isArray(container)) {
      this.parts = [...place, String(container.length - 1)];
    }
  }
}

/** Tells whether a place in a value is at an index of a list, or in one; it is not where `-` adds at the end. */
function leadsToElement(value: Document, rest: readonly string[], adds: boolean): boolean {
  for (const [depth, part] of rest.entries()) {
    if (Array.isArray(value)) return !(adds && part === "-" && depth === rest.length - 1);
    value = find(value, [part]);
  }
  return false;
}

function pointer(parts: readonly string[]): string {
  return parts.map((part) => `/${escape(part)}`).join("");
}

/** Lets `other` come before `mine`: each is afterwards as it is to be carried out behind the other. */
function pass(mine: Step, other: Step): void {
  const place = mine.parts;
  const otherPlace = other.parts;
  const isSame = place.length === otherPlace.length && isWithin(place, otherPlace);
  if (isSame && mine.name === "remove" && other.name === "remove") {
    mine.isGone = mine.isDone = other.isGone = true;
  } else if (isSame && mine.name === "remove" && other.name === "replace" && other.isElement) {
    // What has come to be there may be another element than the one that was to go.
    mine.isContested = mine.isGone = true;
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
    if (otherPlace.length < place.length) {
      other.takeIn(mine);
    } else {
      other.isGone = true;
      if (isSame && other.name === "remove") mine.name = "add";
    }
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

/** Tells whether a part of a pointer may be a place in an array: the index of an element, or its end. */
function isPlace(part: string | undefined): boolean {
  return part === "-" || (part !== undefined && isIndex(part));
}
