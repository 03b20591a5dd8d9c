/** Inverts operations. The same as `inverse.py` of the server. */

import { PatchError, apply, find, parse, regionOf, splices } from "./patch.js";
import type { Document } from "./json.js";
import { countPoints } from "./points.js";
import type { Op } from "./protocol.js";
import { Shape } from "./shape.js";
import { makeOp, pointer } from "./step.js";
import { UNKNOWN, invert as invertText } from "./text.js";

/** Returns the operations that lead from the result of `ops` back to a document. Throws a PatchError. */
export function invert(document: Document, ops: readonly Op[]): Op[] {
  const inverse: Op[] = [];
  for (const op of ops) {
    const parts = parse(op.path);
    const there = find(document, parts);
    if (op.op !== "splice") addInverse(inverse, op, find(document, parts.slice(0, -1)), there);
    else if (typeof there === "string") inverse.push(...splices(op.path, invertText(there, [regionOf(op)])));
    else throw new PatchError(`splice ${op.path}: what is there is not a text`);
    document = apply(document, [op]);
  }
  return inverse.reverse();
}

/**
 * Returns operations that would take back those operations on a document that fit. The result has no values, and of
 * texts only the numbers of characters: others' operations are rebased over it. An operation that leads into an unknown
 * value is lost.
 */
export function takingBack(ops: readonly Op[], document: Document): Op[] {
  const shape = new Shape(document);
  const inverse: Op[] = [];
  for (const op of ops) {
    const parts = parse(op.path);
    const isThere = shape.look(parts) !== undefined;
    if (op.op === "splice") {
      const { at, remove, insert } = regionOf(op);
      const back = { at, remove: countPoints(insert), insert: UNKNOWN.repeat(remove) };
      if (isThere) inverse.push(...splices(op.path, [back]));
      continue;
    }
    const container = shape.look(parts.slice(0, -1));
    const fits = op.op === "add" ? parts.length === 0 || typeof container === "object" : isThere;
    if (fits) {
      addInverse(inverse, op, container, shape.look(parts));
      shape.do(op.op, parts, op.value);
    }
  }
  return inverse.reverse().map((op) => (op.op === "splice" ? op : makeOp(op.op, op.path, undefined, op.moved)));
}

/**
 * Adds the inverse of an operation, given its container and the value that was there; for a move, of both operations.
 */
function addInverse(inverse: Op[], op: Op, container: Document, there: Document): void {
  const parts = parse(op.path);
  const before = inverse.at(-1);
  if (op.moved && before?.op === "add") inverse[inverse.length - 1] = { ...before, moved: true };
  if (op.op === "add" && parts.length > 0 && Array.isArray(container)) {
    const end = parts.at(-1) === "-" ? [...parts.slice(0, -1), String(container.length)] : parts;
    inverse.push({ op: "remove", path: pointer(end) });
  } else if (op.op === "add" && parts.length > 0 && there === undefined) {
    inverse.push({ op: "remove", path: op.path });
  } else {
    inverse.push(makeOp(op.op === "remove" ? "add" : "replace", op.path, there ?? null));
  }
}
