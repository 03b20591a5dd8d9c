/** The place of this client's last insertion in a text, so that the next insertion there says that it continues it. */

import type { Insertion } from "./parts.js";
import { find, isPlace, parse, regionOf } from "./patch.js";
import type { Splice } from "./patch.js";
import type { Document } from "./json.js";
import { countPoints } from "./points.js";
import type { Op } from "./protocol.js";

/** Characters of a text that were all inserted by this client. */
interface Range {
  readonly path: string;
  readonly start: number;
  readonly end: number;
}

/** The last contiguous insertion of this client, in the shown state. */
export class LastInsertion implements Insertion {
  #range: Range | undefined;

  /** Tells whether an insertion at a place is right after the range, or inside it. */
  goesOn(path: string, at: number): boolean {
    const range = this.#range;
    return range !== undefined && range.path === path && range.start < at && at <= range.end;
  }

  /** Notes an operation of this client; returns it, with `own` if it inserts right after or inside the range. */
  add(op: Op): Op {
    if (op.op !== "splice" || !op.insert) {
      this.#move(op);
      return op;
    }
    const { path } = op;
    const { at, remove, insert } = regionOf(op);
    const length = countPoints(insert);
    if (!this.#range || !this.goesOn(path, at)) {
      this.#range = { path, start: at, end: at + length };
      return op;
    }
    const { start, end } = this.#range;
    this.#range = { path, start, end: end - Math.max(Math.min(end, at + remove) - at, 0) + length };
    return { ...op, own: true };
  }

  /** Moves the range after changes of others to the shown state; without `ops`, the new place is not known. */
  follow(ops: readonly Op[], before: Document, after: Document): void {
    for (const op of ops) this.#move(op);
    if (!this.#range || ops.length > 0) return;
    const parts = parse(this.#range.path);
    if (find(before, parts) !== find(after, parts)) this.#range = undefined;
  }

  #move(op: Op): void {
    const range = this.#range;
    if (!range) return;
    if (op.op === "splice") {
      if (op.path === range.path) this.#range = moved(range, op);
    } else if (mayTouch(op, range.path)) this.#range = undefined;
  }
}

function moved({ path, start, end }: Range, op: Splice): Range {
  const { at, remove, insert } = regionOf(op);
  const length = countPoints(insert);
  const inside = Math.max(Math.min(end, at + remove) - Math.max(start, at), 0);
  if (at <= start) {
    const shift = length - Math.min(remove, start - at);
    return { path, start: start + shift, end: end + shift - inside };
  }
  if (at < end && length > 0) return { path, start: at + length, end: end + length - inside };
  return { path, start, end: end - inside };
}

/** Tells whether an operation is below or above a place, or may move an element of a list that the place is in. */
function mayTouch(op: Op, path: string): boolean {
  if (`${path}/`.startsWith(`${op.path}/`)) return true;
  const index = op.path.lastIndexOf("/") + 1;
  return op.op !== "replace" && isPlace(op.path.slice(index)) && path.startsWith(op.path.slice(0, index));
}
