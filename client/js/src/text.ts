/**
 * Changes inside a text: lists of regions, how they are applied, inverted, composed and transformed.
 *
 * The same as `text.py` of the server. Positions are Unicode code points. The regions of one change are all counted on
 * the text before it, are in order and do not overlap.
 */

import { isEqual } from "./json.js";
import { LONG, countPoints, remember, slicePoints, unitAt } from "./points.js";

export interface Region {
  readonly at: number;
  /** The number of characters that are removed from there on. */
  readonly remove: number;
  /** The text that is inserted there, before the place of the removed characters. */
  readonly insert: string;
}

/** Stands for an unknown character: half a surrogate pair, which is in no text. */
export const UNKNOWN = "\ud800";

/**
 * The last change of a long text. The session, its watchers and the editor each apply the typed change: all of them get
 * the same string, which is compared with itself at once, and by its characters with no other.
 */
let last: { readonly text: string; readonly regions: readonly Region[]; readonly found: string } | undefined;

/** Returns a text with a change applied, as far as the text goes. */
export function spliced(text: string, regions: readonly Region[]): string {
  if (regions.length === 0) return text;
  if (text.length <= LONG) return splice(text, regions);
  if (last?.text !== text || !isEqual(last.regions, regions)) last = { text, regions, found: splice(text, regions) };
  return last.found;
}

function splice(text: string, regions: readonly Region[]): string {
  let found = "";
  let [end, shift] = [0, 0];
  let place = { point: 0, unit: 0 };
  for (const { at, remove, insert } of regions) {
    found += text.slice(end, unitAt(text, at)) + insert;
    end = unitAt(text, at + remove);
    const inserted = countPoints(insert);
    place = { point: at + shift + inserted, unit: found.length };
    shift += inserted - remove;
  }
  found += text.slice(end);
  if (fits(text, regions)) remember(found, countPoints(text) + shift, place);
  return found;
}

/** Tells whether a text is long enough for a change. */
export function fits(text: string, regions: readonly Region[]): boolean {
  const last = regions.at(-1);
  return !last || last.at + last.remove <= countPoints(text);
}

/** Returns the regions of a change as changes of their own, each to be applied after those before it. */
export function inOrder(regions: readonly Region[]): Region[] {
  let shift = 0;
  return regions.map(({ at, remove, insert }) => {
    const region = { at: at + shift, remove, insert };
    shift += countPoints(insert) - remove;
    return region;
  });
}

/** Returns the change that leads from the result of a change back to a text. */
export function invert(text: string, regions: readonly Region[]): Region[] {
  const inverse: Region[] = [];
  inOrder(regions).forEach(({ at, remove, insert }, index) => {
    const before = (regions[index] as Region).at;
    add(inverse, at, countPoints(insert), slicePoints(text, before, before + remove));
  });
  return inverse;
}

/** Returns one change with the effect of two, one after the other. */
export function compose(first: readonly Region[], second: readonly Region[]): Region[] {
  const waiting = piecesOf(first).reverse();
  const pieces: Piece[] = [];
  let end = 0;
  for (const { at, remove, insert } of second) {
    pieces.push(...take(waiting, at - end), { start: 0, end: countPoints(insert), text: insert });
    take(waiting, remove);
    end = at + remove;
  }
  const found: Region[] = [];
  let inserted = "";
  let last = 0;
  for (const { start, end: stop, text } of [...pieces, ...waiting.reverse()]) {
    if (text !== undefined) inserted += slicePoints(text, start, stop);
    else {
      add(found, last, start - last, inserted);
      inserted = "";
      last = stop;
    }
  }
  return found;
}

/**
 * Returns a change as it is after another that was made on the same text. Characters that both remove are removed once,
 * and the insertions of both stay, even if the other removes the text around them. Of two insertions at one place, that
 * of `mine` comes after that of `other` if it `yields`.
 */
export function transform(mine: readonly Region[], other: readonly Region[], yields: boolean): Region[] {
  const found: Region[] = [];
  const past = new Past(other);
  for (const { at, remove, insert } of mine) {
    add(found, past.placeOf(at, yields), 0, insert);
    for (const rest of past.restOf(at, at + remove)) add(found, rest.at, rest.remove, "");
  }
  return found;
}

/** Tells whether another change leaves the character before the place where `mine` inserts. */
export function goesOn(mine: readonly Region[], other: readonly Region[]): boolean {
  const before = (mine.find(({ insert }) => insert !== "")?.at ?? 0) - 1;
  return !other.some(({ at, remove }) => at <= before && before < at + remove);
}

/** Those regions of another change that are before a place, which goes from the start of the text to its end. */
class Past {
  readonly #regions: readonly Region[];
  #count = 0;
  /** How far these regions move the text after them. */
  #shift = 0;

  constructor(regions: readonly Region[]) {
    this.#regions = regions;
  }

  /** Returns the place of an insertion, after the other change's insertion there if it `yields`. */
  placeOf(at: number, yields: boolean): number {
    for (let next = this.#next; next && (next.at < at || (next.at === at && yields)); next = this.#next) {
      if (next.at + next.remove > at) return next.at + this.#shift + countPoints(next.insert);
      this.#goOn(next);
    }
    return at + this.#shift;
  }

  /**
   * Returns the rest that the other change leaves from `at` to `end`: places, and the number of characters to remove
   * there.
   */
  restOf(at: number, end: number): Pick<Region, "at" | "remove">[] {
    const found: Pick<Region, "at" | "remove">[] = [];
    while (at < end) {
      const next = this.#next ?? { at: end, remove: 0, insert: "" };
      if (next.at > at) found.push({ at: at + this.#shift, remove: Math.min(next.at, end) - at });
      if (next.at >= end || next.at + next.remove > end) break;
      at = Math.max(at, next.at + next.remove);
      this.#goOn(next);
    }
    return found;
  }

  get #next(): Region | undefined {
    return this.#regions[this.#count];
  }

  #goOn({ remove, insert }: Region): void {
    this.#shift += countPoints(insert) - remove;
    this.#count++;
  }
}

/** Adds a region that comes after all others, as a part of the last one where they are the same. */
function add(regions: Region[], at: number, remove: number, insert: string): void {
  if (remove === 0 && insert === "") return;
  const last = regions.at(-1);
  if (last && last.at + last.remove === at && !(last.remove > 0 && insert !== "")) {
    regions[regions.length - 1] = { at: last.at, remove: last.remove + remove, insert: last.insert + insert };
  } else {
    regions.push({ at, remove, insert });
  }
}

/** The extent of a text: of an inserted one, or without that, of the text that was there before. */
interface Piece {
  readonly start: number;
  readonly end: number;
  readonly text?: string;
}

/** Returns the pieces of a text after a change. */
function piecesOf(regions: readonly Region[]): Piece[] {
  let end = 0;
  const pieces: Piece[] = [];
  for (const { at, remove, insert } of regions) {
    pieces.push({ start: end, end: at }, { start: 0, end: countPoints(insert), text: insert });
    end = at + remove;
  }
  return [...pieces, { start: end, end: Infinity }];
}

/** Takes `count` characters off the end of a list of pieces, which is in reverse. */
function take(waiting: Piece[], count: number): Piece[] {
  const taken: Piece[] = [];
  while (count > 0) {
    const piece = waiting.pop() as Piece;
    const end = Math.min(piece.end, piece.start + count);
    if (end < piece.end) waiting.push({ ...piece, start: end });
    taken.push({ ...piece, end });
    count -= end - piece.start;
  }
  return taken;
}
