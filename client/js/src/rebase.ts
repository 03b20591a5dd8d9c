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
import { Step, insertsIn, isOf, isPair, isWithin, leadsThrough } from "./step.js";

export interface Rebased {
  ops: Op[];
  /** The places in the newer state that others have changed, too. */
  conflicts: string[];
  /** Whether others have removed a place that the operations need, so that they cannot be applied. */
  isLost: boolean;
  /**
   * The operations of others, as they apply after the rebased ones, without operations that have no effect left. If the
   * rebased operations are lost, `over` also takes them back, just before the operation that removed their place.
   */
  over: Op[];
}

/**
 * Rebases `ops` onto `document`, which `over` has made from the common base of both. Without the part for texts,
 * operations on a text that others have changed are lost.
 */
export function rebase(ops: readonly Op[], over: readonly Op[], document: Document, text?: TextPart): Rebased {
  if (over.length === 0) return { ops: [...ops], conflicts: [], isLost: false, over: [] };
  const shape = new Shape(document);
  const isExact = ops.some(({ op }) => op === "remove");
  const others = undone(over, shape, isExact);
  const theirs = unitsOf(others);
  let lostAt = others.length;
  const steps = done(ops, shape, text);
  for (const unit of unitsOf(steps)) {
    const removing = passAll(unit, theirs);
    if (removing) lostAt = Math.min(lostAt, others.indexOf(removing[0]));
  }
  const isLost = lostAt < others.length;
  return {
    ops: steps.filter((step) => !step.isDone).flatMap((step) => step.toOps()),
    conflicts: steps.filter((step) => step.isContested).map((step) => step.pointer),
    isLost,
    over: isLost ? without(ops, over, lostAt, document, text) : present(others),
  };
}

/** One operation, or the two that move an element. */
type Unit = [Step, Step?];

/** Returns the units of operations. */
function unitsOf(steps: readonly Step[]): Unit[] {
  const units: Unit[] = [];
  for (const step of steps) {
    const last = units.at(-1);
    if (last?.length === 1 && isPair(last[0], step)) last.push(step);
    else units.push([step]);
  }
  return units;
}

/** Returns operations after they are carried out on a shape. */
function done(ops: readonly Op[], shape: Shape, text: TextPart | undefined): Step[] {
  return ops.map((op) => {
    const step = new Step(op, text);
    step.lookUp(shape);
    shape.do(step.name, step.parts, op.value);
    return step;
  });
}

/** Returns operations that have led to a shape, and leads the shape back to its state before them. */
function undone(over: readonly Op[], shape: Shape, isExact = true): Step[] {
  const steps = over.map((op) => new Step(op));
  for (let index = steps.length - 1; index >= 0; index--) {
    const step = steps[index] as Step;
    step.lookUp(shape, true, isExact);
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

/** Returns `over`, with operations that take `ops` back before the one at `lostAt`. */
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

/** Moves `others` before `mine`; returns the one that removes its place, if any does. */
function passAll(mine: Unit, others: readonly Unit[]): Unit | undefined {
  for (const other of others) {
    if (other.every((step) => step?.isGone)) continue;
    passUnit(mine, other);
    if (mine.some((step) => step?.isGone && !step.isDone)) return other;
    if (mine.some((step) => step?.isDone)) break;
  }
  return undefined;
}

/** Moves `other` before `mine`: each becomes its form after the other. */
function passUnit(mine: Unit, other: Unit): void {
  const [first, into] = mine;
  const [out, otherInto] = other;
  if (into && otherInto && first.pointer === out.pointer) {
    // If both move the element, the later move wins.
    into.isContested = true;
    first.parts = otherInto.parts;
    out.isGone = otherInto.isGone = true;
  } else if (otherInto && isOf(first, out)) {
    for (const step of mine) follow(step as Step, out, otherInto);
  } else if (into && isOf(out, first)) {
    for (const step of other) takeAlong(first, into, step as Step);
  } else {
    for (const step of mine as Step[]) {
      for (const each of other as Step[]) if (!step.isGone && !each.isGone) pass(step, each);
    }
    if (otherInto && out.isGone !== otherInto.isGone) otherInto.isMoved = false;
  }
}

/** Applies `mine` to the element at the place where `other` has moved it. */
function follow(mine: Step, out: Step, into: Step): void {
  const rest = mine.parts.slice(out.parts.length);
  if (mine.name === "remove" && rest.length === 0) out.isGone = into.isGone = true;
  else into.takeAlong(mine, rest);
  mine.parts = [...into.parts, ...rest];
}

/** Makes `mine` move the element with the changes of `other`. */
function takeAlong(out: Step, into: Step, other: Step): void {
  const rest = other.parts.slice(out.parts.length);
  const isWhole = rest.length === 0 && (other.name === "remove" || other.name === "replace");
  if (isWhole || (other.name !== "remove" && !other.hasValue)) {
    // The element was removed or may be another, or its value is unknown, as when a change is taken back.
    out.isContested = out.isGone = true;
    return;
  }
  into.takeAlong(other, rest);
  other.parts = [...into.parts, ...rest];
}

/** Moves `other` before `mine`: each becomes its form after the other. */
function pass(mine: Step, other: Step): void {
  const place = mine.parts;
  const otherPlace = other.parts;
  const isSame = place.length === otherPlace.length && isWithin(place, otherPlace);
  if (isSame && mine.name === "splice" && other.name === "splice") {
    mine.passText(other);
  } else if (isSame && mine.name === "remove" && other.name === "remove") {
    mine.isGone = mine.isDone = other.isGone = true;
  } else if (isSame && other.name === "replace" && other.isElement && mine.isAnother(other)) {
    mine.isContested = mine.isGone = true;
  } else if (leadsThrough(place, other) || leadsThrough(otherPlace, mine)) {
    const moved = placeAfter(mine, other, true);
    const otherMoved = placeAfter(other, mine, false);
    mine.isContested ||= !moved || !otherMoved;
    mine.isGone = !moved;
    other.isGone = !otherMoved;
    mine.parts = moved ?? place;
    other.parts = otherMoved ?? otherPlace;
  } else if (isWithin(place, otherPlace) || isWithin(otherPlace, place)) {
    mine.isContested = true;
    if (mine.name === "splice") {
      // The value that others have put there, or around it, is not the text that was meant.
      mine.isGone = true;
    } else if (otherPlace.length < place.length) {
      other.takeIn(mine);
    } else {
      other.isGone = true;
      if (isSame && other.name === "remove") mine.name = "add";
    }
  }
}

/** Returns the place of `step` after `other`; undefined when `other` has removed it. */
function placeAfter(step: Step, other: Step, yields: boolean): readonly string[] | undefined {
  const { parts } = step;
  const depth = other.parts.length - 1;
  const [part, at] = [parts[depth], other.parts[depth]];
  // The index of an array's end is unknown.
  if (!leadsThrough(parts, other) || part === "-" || at === "-") return parts;
  const inserts = insertsIn(step, depth);
  const distance = Number(part) - Number(at);
  let moved = Number(part);
  if (other.name === "add") moved += Number(distance > 0 || (distance === 0 && (yields || !inserts)));
  else if (distance === 0 && !inserts) return undefined;
  else moved -= Number(distance > 0);
  return [...parts.slice(0, depth), String(moved), ...parts.slice(depth + 1)];
}
