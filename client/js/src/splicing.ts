/** The splices that an app asks for: their positions are those of JavaScript strings, and an error says what is wrong. */

import { isWellFormed } from "./json.js";
import type { Document } from "./json.js";
import type { TextEdit } from "./parts.js";
import { PatchError, find, parse, splices } from "./patch.js";
import { pointAt } from "./points.js";
import type { Op } from "./protocol.js";

/** Returns the text that is to be changed. Throws a PatchError where there is none. */
export function textIn(document: Document, path: string): string {
  const text = find(document, parse(path));
  if (text === undefined) throw new PatchError(`splice ${path}: there is nothing`);
  if (typeof text !== "string") throw new PatchError(`splice ${path}: what is there is not a text`);
  return text;
}

/**
 * Returns the operations of one change of a text, which may be in several places, in order and all counted on the text
 * before it; none where it does nothing. Throws a PatchError where it does not fit.
 */
export function spliceUnits(document: Document, path: string, edits: readonly TextEdit[]): Op[] {
  const text = textIn(document, path);
  let end = 0;
  const regions = edits.map((edit) => {
    const { at, remove, insert } = edit;
    checkEdit(path, edit, text.length);
    if (at < end)
      throw new PatchError(`splice ${path}: position ${at} is before the end of the edit before it, ${end}`);
    end = at + remove;
    const start = pointOf(text, at, path);
    return { at: start, remove: pointOf(text, end, path) - start, insert };
  });
  return splices(
    path,
    regions.filter(({ remove, insert }) => remove > 0 || insert !== ""),
  );
}

function checkEdit(path: string, { at, remove, insert }: TextEdit, length: number): void {
  if ((at as unknown) === undefined) throw new PatchError(`splice ${path} does not say where`);
  if (!Number.isSafeInteger(at) || !Number.isSafeInteger(remove) || typeof insert !== "string") {
    throw new PatchError(
      `splice ${path}: a position and a number of characters are integers, and what is inserted is a text`,
    );
  }
  if (at < 0 || remove < 0) throw new PatchError(`splice ${path}: ${Math.min(at, remove)} is negative`);
  if (at > length) throw new PatchError(`splice ${path}: position ${at} is past the end of a text of ${length}`);
  if (at + remove > length) {
    throw new PatchError(
      `splice ${path}: ${remove} characters from position ${at} on reach past the end of a text of ${length}`,
    );
  }
  if (!isWellFormed(insert)) {
    throw new PatchError(`splice ${path}: half a surrogate pair cannot be inserted, as UTF-8 cannot encode it`);
  }
}

function pointOf(text: string, unit: number, path: string): number {
  const point = pointAt(text, unit);
  if (point === undefined)
    throw new PatchError(`splice ${path}: position ${unit} is in the middle of a surrogate pair`);
  return point;
}
