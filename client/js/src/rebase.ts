/**
 * Rebases operations that were made on an older state onto a newer one.
 *
 * The same as `rebase.py` of the server: places are compared by JSON pointer; the indices of arrays move with the
 * elements that others add and remove, and of two elements added at one index the earlier stays before the later; so
 * do the characters of texts.
 * Operations on an element that others have moved follow it.
 */

import { takingBack } from "./inverse.js";
import type { Document } from "./json.js";
import type { TextPart } from "./parts.js";
import type { Op } from "./protocol.js";
import { Shape } from "./shape.js";
import { Step, isOf, isPair, isWithin, leadsThrough } from "./step.js";

export interface Rebased {
  ops: Op[];
  /** The places in the newer state that others have changed, too. */
  conflicts: string[];
  /** Whether others have removed a place that the operations need, so that they cannot be applied. */
  isLost: boolean;
  /**
   * What they were rebased over, as it is to be applied after them, without operations that have no effect left. If
   * they are lost, it also takes them back, just before the operation that removed their place.
   */
  over: Op[];
}

/**
 * Rebases `ops` onto `document`, which `over` has made from the state that both were made on. Without the part for texts,
 * operations on a text that others have changed are lost.
 */
export function rebase(ops: readonly Op[], over: readonly Op[], document: Document, text?: TextPart): Rebased {
  if (over.length === 0) return { ops: [...ops], conflicts: [], isLost: false, over: [] };
  const shape = new Shape(document);
  const isExact = ops.some(({ op }) => op === "remove");
  const others = undone(over, shape, isExact);
  const theirs = unitsOf(others);
  let lostAt = others.length;
  const steps = done(ops, shape, text).flatMap((unit) => {
    lostAt = Math.min(lostAt, passAll(unit, theirs, others.length));
    return unit;
  });
  const isLost = lostAt < others.length;
  return {
    ops: steps.filter((step) => !step.isDone).flatMap((step) => step.toOps()),
    conflicts: steps.filter((step) => step.isContested).map((step) => step.pointer),
    isLost,
    over: isLost ? without(ops, over, lostAt, document, text) : present(others),
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
function done(ops: readonly Op[], shape: Shape, text: TextPart | undefined): Unit[] {
  const steps = ops.map((op) => {
    const step = new Step(op, text);
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
function without(
  ops: readonly Op[],
  over: readonly Op[],
  lostAt: number,
  document: Document,
  text: TextPart | undefined,
): Op[] {
  const shape = new Shape(document);
  const rest = undone(over.slice(lostAt), shape);
  const there = shape.look([]);
  const before = rebase(ops, over.slice(0, lostAt), there, text);
  return [...before.over, ...takingBack(before.ops, there), ...present(rest)];
}

function present(steps: readonly Step[]): Op[] {
  return steps.filter((step) => !step.isGone).flatMap((step) => step.toOps());
}

/** Brings `others` before `mine`; returns the index of the one that removes its place, or `count` if none does. */
function passAll(mine: Unit, others: readonly (readonly [number, Unit])[], count: number): number {
  for (const [index, other] of others) {
    if (other.every((step) => step.isGone)) continue;
    passUnit(mine, other);
    if (mine.some((step) => step.isGone && !step.isDone)) return index;
    if (mine.some((step) => step.isDone)) break;
  }
  return count;
}

/** Brings `other` before `mine`: each becomes what it is after the other. */
function passUnit(mine: Unit, other: Unit): void {
  if (mine.length === 2 && other.length === 2 && mine[0].pointer === other[0].pointer) {
    // Of two moves of one element the later wins.
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

/** Applies `mine` to the element at the place where `other` has moved it. */
function follow(mine: Step, [out, into]: readonly [Step, Step]): void {
  const rest = mine.parts.slice(out.parts.length);
  if (mine.name === "remove" && rest.length === 0) out.isGone = into.isGone = true;
  else into.takeAlong(mine, rest);
  mine.parts = [...into.parts, ...rest];
}

/** Makes `mine` move the element with what `other` has changed. */
function takeAlong([out, into]: readonly [Step, Step], other: Step): void {
  const rest = other.parts.slice(out.parts.length);
  const isWhole = rest.length === 0 && (other.name === "remove" || other.name === "replace");
  if (isWhole || (other.name !== "remove" && !other.hasValue)) {
    // The element was removed or may be another, or its value is unknown, as where a change is taken back.
    out.isContested = out.isGone = true;
    return;
  }
  into.takeAlong(other, rest);
  other.parts = [...into.parts, ...rest];
}

/** Brings `other` before `mine`: each becomes what it is after the other. */
function pass(mine: Step, other: Step): void {
  const place = mine.parts;
  const otherPlace = other.parts;
  const isSame = place.length === otherPlace.length && isWithin(place, otherPlace);
  if (isSame && mine.name === "splice" && other.name === "splice") {
    mine.passText(other);
  } else if (isSame && mine.name === "remove" && other.name === "remove") {
    mine.isGone = mine.isDone = other.isGone = true;
  } else if (isSame && other.name === "replace" && other.isElement && mine.mayMeanAnother(other)) {
    mine.isContested = mine.isGone = true;
  } else if (leadsThrough(place, other) || leadsThrough(otherPlace, mine)) {
    const moved = placeAfter(mine, otherPlace, other, true);
    const otherMoved = placeAfter(other, place, mine, false);
    mine.isContested ||= moved === undefined || otherMoved === undefined;
    mine.isGone = moved === undefined;
    other.isGone = otherMoved === undefined;
    mine.parts = moved ?? place;
    other.parts = otherMoved ?? otherPlace;
  } else if (isWithin(place, otherPlace) || isWithin(otherPlace, place)) {
    mine.isContested = true;
    if (mine.name === "splice") {
      // What others have put there, or around it, is not the text that was meant.
      mine.isGone = true;
    } else if (otherPlace.length < place.length) {
      other.takeIn(mine);
    } else {
      other.isGone = true;
      if (isSame && other.name === "remove") mine.name = "add";
    }
  }
}

/** Returns the place of `step` after `other`, which is at `place`; undefined when `other` has removed it. */
function placeAfter(step: Step, place: readonly string[], other: Step, yields: boolean): readonly string[] | undefined {
  if (!leadsThrough(step.parts, other) || isEnd(step.parts, place)) return step.parts;
  const inserts = step.moves && step.name === "add" && step.parts.length === place.length;
  return shift(step.parts, place, other, inserts, yields);
}

/** Tells whether either of two places in an array is its end, whose index is unknown. */
function isEnd(parts: readonly string[], place: readonly string[]): boolean {
  return parts[place.length - 1] === "-" || place.at(-1) === "-";
}

function shift(
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
