/**
 * Operations that were made on an older state, as they are to be carried out on a newer one.
 *
 * The same as `rebase.py` of the server: places are compared by JSON pointer; the indices of arrays move with what
 * others put in and took out, and of two insertions at one index the earlier stays in front. What is done to an element
 * that others have moved follows it.
 */

import { PatchError, apply, escape, find, isIndex, parse } from "./patch.js";
import type { Document } from "./patch.js";
import { idOf } from "./align.js";
import { isObject } from "./json.js";
import type { Json, JsonObject } from "./json.js";
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
  const isExact = ops.some(({ op }) => op === "remove");
  const others = undone(over, shape, isExact);
  const theirs = unitsOf(others);
  let lostAt = others.length;
  const steps = done(ops, shape).flatMap((unit) => {
    lostAt = Math.min(lostAt, passAll(unit, theirs, others.length));
    return unit;
  });
  const isLost = lostAt < others.length;
  return {
    ops: steps.filter((step) => !step.isDone).map((step) => step.toOp()),
    conflicts: steps.filter((step) => step.isContested).map((step) => step.pointer),
    isLost,
    over: isLost ? without(ops, over, lostAt, document) : present(others),
  };
}

/** One operation, or the two that move an element. */
type Unit = readonly [Step] | readonly [Step, Step];

/** Returns the units of operations. */
function unitsOf(steps: readonly Step[]): (readonly [number, Unit])[] {
  const units: (readonly [number, Unit])[] = [];
  for (const [index, step] of steps.entries()) {
    const last = units.at(-1);
    if (last?.[1].length === 1 && isPair(last[1][0], step)) units[units.length - 1] = [last[0], [last[1][0], step]];
    else units.push([index, [step]]);
  }
  return units;
}

/** Returns the units of operations that are carried out on a shape. */
function done(ops: readonly Op[], shape: Shape): Unit[] {
  const steps = ops.map((op) => {
    const step = new Step(op);
    step.lookUp(shape);
    shape.do(step.name, step.parts, op.value);
    return step;
  });
  return unitsOf(steps).map(([, unit]) => unit);
}

/** Returns operations that have led to a shape, which is led back to where it was before them. */
function undone(over: readonly Op[], shape: Shape, isExact = true): Step[] {
  const steps = over.map((op) => new Step(op));
  for (let index = steps.length - 1; index >= 0; index--) {
    const step = steps[index] as Step;
    step.lookUp(shape, { hasHappened: true, isExact });
    const before = steps[index - 1];
    if (before && isPair(before, step)) {
      index--;
      shape.undoMove(before.parts, step.parts);
    } else {
      shape.undo(step.name, step.parts);
    }
  }
  return steps;
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
      const before = inverse.at(-2);
      if (op.moved && before?.op === "add") inverse[inverse.length - 2] = { ...before, moved: true };
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
function passAll(mine: Unit, others: readonly (readonly [number, Unit])[], count: number): number {
  for (const [index, other] of others) {
    if (other.every((step) => step.isGone)) continue;
    passUnit(mine, other);
    if (mine.some((step) => step.isGone && !step.isDone)) return index;
    if (mine.some((step) => step.isDone)) break;
  }
  return count;
}

/** Lets `other` come before `mine`: each is afterwards as it is to be carried out behind the other. */
function passUnit(mine: Unit, other: Unit): void {
  if (mine.length === 2 && other.length === 2 && mine[0].pointer === other[0].pointer) {
    // Of two who move one element the later has it.
    mine[1].isContested = true;
    mine[0].parts = other[1].parts;
    other[0].isGone = other[1].isGone = true;
  } else if (other.length === 2 && isOf(mine[0], other[0])) {
    for (const step of mine) follow(step, other);
  } else if (mine.length === 2 && isOf(other[0], mine[0])) {
    for (const step of other) takeAlong(mine, step);
  } else {
    for (const step of mine) {
      for (const each of other) if (!step.isGone && !each.isGone) pass(step, each);
    }
    if (other.length === 2 && other[0].isGone !== other[1].isGone) other[1].isMoved = false;
  }
}

/** Lets `mine` be done to the element where `other` has moved it to. */
function follow(mine: Step, [out, into]: readonly [Step, Step]): void {
  const rest = mine.parts.slice(out.parts.length);
  if (mine.name === "remove" && rest.length === 0) out.isGone = into.isGone = true;
  else into.takeAlong(mine, rest);
  mine.parts = [...into.parts, ...rest];
}

/** Lets `mine` move the element as `other` has changed it. */
function takeAlong([out, into]: readonly [Step, Step], other: Step): void {
  const rest = other.parts.slice(out.parts.length);
  if ((rest.length === 0 && other.name !== "add") || (other.name !== "remove" && !other.hasValue)) {
    // It is gone or may be another, or what has become of it is not known, as where something is taken back.
    out.isContested = out.isGone = true;
    return;
  }
  into.takeAlong(other, rest);
  other.parts = [...into.parts, ...rest];
}

/** Tells whether two operations, one right after the other, move an element of an array. */
function isPair(first: Step, second: Step): boolean {
  return (
    second.isMoved &&
    first.name === "remove" &&
    second.name === "add" &&
    first.moves &&
    second.moves &&
    first.parts.at(-1) !== "-" &&
    second.parts.at(-1) !== "-" &&
    first.parts.length === second.parts.length &&
    isWithin(second.parts, first.parts.slice(0, -1))
  );
}

/** Tells whether an operation is done to the element that `out` takes out of an array, or inside that. */
function isOf(step: Step, out: Step): boolean {
  const inserts = step.moves && step.name === "add" && step.parts.length === out.parts.length;
  return isWithin(step.parts, out.parts) && !inserts;
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
  /** Whether it puts in, where it has moved to, what the operation before it has taken out. */
  isMoved: boolean;
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
    this.isMoved = op.moved === true;
    this.parts = parse(op.path);
    this.isElement = isPlace(this.parts.at(-1));
    this.moves = op.op !== "replace" && this.isElement;
  }

  get pointer(): string {
    return pointer(this.parts);
  }

  /** Whether it is known what it puts at its place. */
  get hasValue(): boolean {
    return this.#op.value !== undefined;
  }

  /**
   * Tells whether it may mean another element than the one that `other` has put in the same place of a list. A single
   * value has its place, as a cell of a board does, unless it is to be taken out. What is put in before that element
   * means no element.
   */
  mayMeanAnother(other: Step): boolean {
    if (this.name !== "replace") return this.name === "remove";
    const [value, there] = [this.#op.value, other.#op.value];
    if (!isContainer(value) || !isContainer(there)) return false;
    const id = idOf(value);
    return id === undefined || id !== idOf(there);
  }

  toOp(): Op {
    const { name, pointer } = this;
    const { moved = false, ...op } = this.#op;
    if (name === op.op && pointer === op.path && moved === this.isMoved) return this.#op;
    return { ...op, op: name, path: pointer, ...(this.isMoved ? { moved } : {}) };
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

  /** Lets another be done to the element that this one puts in, or inside it at `rest`. */
  takeAlong(inner: Step, rest: readonly string[]): void {
    const { value } = this.#op;
    if (value === undefined) return;
    try {
      const op = rest.length === 0 ? "replace" : inner.name;
      this.#op = { ...this.#op, value: apply(value, [{ ...inner.#op, op, path: pointer(rest) }]) as Json };
    } catch (error) {
      if (!(error instanceof PatchError)) throw error;
      inner.isGone = true;
    }
  }

  /**
   * Sees what it puts an element into. The end of an array that has been appended to is given its index: `-` would be
   * another behind others who append. Whether a value is put in the place of an element matters only if something may be
   * inside it, or if that is to be known exactly.
   */
  lookUp(shape: Shape, { hasHappened = false, isExact = false } = {}): void {
    const mayHold = hasHappened && this.isElement && (isExact || typeof this.#op.value === "object");
    if (!this.moves && !mayHold) return;
    const place = this.parts.slice(0, -1);
    const container = shape.look(place);
    this.isElement = !isObject(container);
    this.moves &&= this.isElement;
    if (this.moves && hasHappened && this.parts.at(-1) === "-" && Array.isArray(container)) {
      this.parts = [...place, String(container.length - 1)];
    }
  }
}

function isContainer(value: Document): value is JsonObject | readonly Json[] {
  return typeof value === "object" && value !== null;
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
  } else if (isSame && other.name === "replace" && other.isElement && mine.mayMeanAnother(other)) {
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
