/** Typed edits, and the place of a caret after edits. Positions are UTF-16 units. */

import type { TextEdit } from "./parts.js";
import { pointAt, unitAt } from "./points.js";
import type { Region } from "./text.js";

/**
 * Returns the edits that lead from one text to another, after which the caret is at `caret`: if several do, as when a
 * letter is typed beside the same one, the edits that end there. Without a caret, any. `compare` finds the differences
 * between the common start and end.
 */
export function typed(
  before: string,
  after: string,
  caret: number | undefined,
  compare: (old: string, next: string) => readonly TextEdit[],
): TextEdit[] {
  if (before === after) return [];
  const most = Math.min(before.length, after.length);
  let end = 0;
  const longest = Math.min(most, after.length - (caret ?? after.length));
  while (end < longest && isSameBlock(before, before.length - end, after, after.length - end, longest - end))
    end += BLOCK;
  while (end < longest && before[before.length - 1 - end] === after[after.length - 1 - end]) end++;
  if (isLow(before, before.length - end) || isLow(after, after.length - end)) end--;
  let start = 0;
  while (start < most - end && isSameBlock(before, start + BLOCK, after, start + BLOCK, most - end - start))
    start += BLOCK;
  while (start < most - end && before[start] === after[start]) start++;
  if (isLow(before, start) || isLow(after, start)) start--;
  const [old, next] = [before.slice(start, before.length - end), after.slice(start, after.length - end)];
  if (old === "" || next === "") return [{ at: start, remove: old.length, insert: next }];
  return compare(old, next).map((edit) => ({ ...edit, at: edit.at + start }));
}

/** The number of units that are compared at once if texts are the same: engines do that far faster than a loop. */
const BLOCK = 4096;

/** Tells whether the blocks that end at two positions are the same; false if fewer units are `left` to compare. */
function isSameBlock(before: string, end: number, after: string, afterEnd: number, left: number): boolean {
  return left >= BLOCK && before.slice(end - BLOCK, end) === after.slice(afterEnd - BLOCK, afterEnd);
}

/** Tells whether a position is within a surrogate pair. */
function isLow(text: string, unit: number): boolean {
  const code = text.charCodeAt(unit);
  return code >= 0xdc00 && code < 0xe000;
}

/**
 * Returns the place of a position after edits; a position at which text is inserted stays before that, unless it
 * `yields`.
 */
export function follow(position: number, edits: readonly TextEdit[], yields = false): number {
  let moved = position;
  for (const { at, remove, insert } of edits) {
    if (at + remove < position || (at + remove === position && (remove > 0 || yields))) moved += insert.length - remove;
    else if (at < position) moved -= position - at;
  }
  return moved;
}

/** Returns the end of edits in the text to which they lead. */
export function endOf(edits: readonly TextEdit[]): number {
  const last = edits.at(-1);
  const before = edits.slice(0, -1).reduce((shift, { remove, insert }) => shift + insert.length - remove, 0);
  return last ? last.at + before + last.insert.length : 0;
}

/** Returns edits of a text counted in UTF-16 units. */
export function toEdits(text: string, regions: readonly Region[]): TextEdit[] {
  return regions.map(({ at, remove, insert }) => {
    const start = unitAt(text, at);
    return { at: start, remove: unitAt(text, at + remove) - start, insert };
  });
}

/** Returns edits of a text counted in code points; they must not divide a surrogate pair. */
export function toRegions(text: string, edits: readonly TextEdit[]): Region[] {
  return edits.map(({ at, remove, insert }) => {
    const start = pointAt(text, at) as number;
    return { at: start, remove: (pointAt(text, at + remove) as number) - start, insert };
  });
}
