/**
 * The splices that an app asks for: their positions are those of JavaScript strings, and an error names the mistake.
 */

import { isWellFormed } from "./json.js";
import type { Document } from "./json.js";
import type { TextEdit } from "./parts.js";
import { PatchError, parse, splices, textAt } from "./patch.js";
import { pointAt } from "./points.js";
import type { Op } from "./protocol.js";

/** Returns the text to change. Throws a PatchError if there is none. */
export function textIn(document: Document, path: string): string {
  const text = textAt(document, parse(path));
  if (text === undefined) throw new PatchError(`splice ${path}: there is no text`);
  return text;
}

/**
 * Returns the operations of one change of a text, which may be in several places, in order and all counted on the text
 * before it; none if it changes nothing. Throws a PatchError if it does not fit.
 */
export function spliceUnits(document: Document, path: string, edits: readonly TextEdit[]): Op[] {
  const text = textIn(document, path);
  const check = (fits: boolean, problem: string) => {
    if (!fits) throw new PatchError(`splice ${path}: ${problem}`);
  };
  const pointOf = (unit: number) => {
    const point = pointAt(text, unit);
    check(point !== undefined, `position ${unit} is in the middle of a surrogate pair`);
    return point as number;
  };
  let last = 0;
  const regions = edits.map(({ at, remove, insert }) => {
    const end = at + remove;
    const areIntegers = Number.isSafeInteger(at) && Number.isSafeInteger(remove);
    check(areIntegers && typeof insert === "string", "it takes two integers and a text");
    check(at >= last && remove >= 0 && end <= text.length, `${at} to ${end} is not within ${last} to ${text.length}`);
    check(isWellFormed(insert), "half a surrogate pair cannot be sent");
    last = end;
    const start = pointOf(at);
    return { at: start, remove: pointOf(end) - start, insert };
  });
  return splices(
    path,
    regions.filter(({ remove, insert }) => remove > 0 || insert !== ""),
  );
}
