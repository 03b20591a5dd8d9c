/** The changes that can be undone or redone, one after the other, rebased over all changes of others. */

import type { ShownChange } from "./pending.js";
import { invert } from "./inverse.js";
import { NOTHING, countOf, joined, opsOf, pathOf, regionsOf } from "./over.js";
import type { Over } from "./over.js";
import { textComparison } from "./parts.js";
import type { CompareTexts, Parts } from "./parts.js";
import { apply, find, parse, splices } from "./patch.js";
import type { Document } from "./json.js";
import { slicePoints } from "./points.js";
import type { Op } from "./protocol.js";
import { rebase } from "./rebase.js";
import { isWithin, makeOp, pointer } from "./step.js";
import { compose, invert as invertText } from "./text.js";
import type { Region } from "./text.js";

/** The maximum number of changes that can be undone. */
const MOST = 500;
/** A change can no longer be undone after this many operations of others. */
const MOST_OVER = 5_000;

export interface Entry {
  /**
   * The operations that take the change back, after all later entries are taken back; none if it has taken itself back.
   */
  ops: readonly Op[];
  /** The operations of others after the change, and before the next entry's. */
  over: Over;
  at: number;
  /** Whether further typing is undone with it. */
  isOpen: boolean;
  /** Whether the entry does not fit, because a change was refused. */
  isRefused: boolean;
}

/** The own changes that are shown, or that were undone; each is taken back from the state that the later ones leave. */
export class Chain {
  readonly #entries: Entry[] = [];
  readonly #parts: Parts;

  constructor(parts: Parts = {}) {
    this.#parts = parts;
  }

  /** Adds the operations that take back the last change. */
  add(ops: readonly Op[], at: number, isOpen: boolean): Entry {
    const entry = { ops, over: NOTHING, at, isOpen, isRefused: false };
    this.#entries.push(entry);
    if (this.#entries.length > MOST) this.#entries.shift();
    return entry;
  }

  clear(): void {
    this.#entries.length = 0;
  }

  /** Follows operations of others. */
  pass(ops: readonly Op[]): void {
    const last = this.#entries.at(-1);
    if (!last) return;
    last.over = joined(last.over, ops);
    if (countOf(last.over) > MOST_OVER) this.clear();
  }

  /**
   * Follows the refusal of an entry's change, which is taken back from the shown state. Returns whether the entry takes
   * back the rest of its changes; otherwise this counts as a change of others.
   */
  refuse(entry: Entry, { before, ops, after }: ShownChange): boolean {
    const there = this.#reach(entry, before);
    const isThere = there !== undefined && this.#bringUp(this.#entries.indexOf(entry), there);
    this.pass(ops);
    const left = isThere ? this.#reach(entry, after) : undefined;
    const rest = left === undefined ? undefined : restOf(entry, there, left, this.#parts);
    if (!rest) return false;
    Object.assign(entry, { ops: rest, over: NOTHING });
    return true;
  }

  /** Returns the last entry, brought up to the shown state. */
  top(document: Document): Entry | undefined {
    while (this.#entries.length > 0) {
      const index = this.#entries.length - 1;
      if (this.#bringUp(index, document)) return this.#entries[index];
    }
    return undefined;
  }

  /** Tells whether there is an entry of a place that can be taken back. */
  has(place: readonly string[], document: Document): boolean {
    return this.#find(place, document) !== undefined;
  }

  /**
   * Removes the last entry of a place; returns the operations that take it back from the shown state, undefined if
   * there are none.
   */
  take(place: readonly string[], document: Document): readonly Op[] | undefined {
    const found = this.#find(place, document);
    if (!found) return undefined;
    const { index, ops, moved } = found;
    this.#entries.splice(index, 1);
    for (const each of moved) each.entry.ops = each.ops;
    return ops;
  }

  /**
   * Returns the operations that take an entry back before those above it, and the operations that then take those back.
   */
  #raise(index: number, above: readonly Above[], before: Document): Raised | undefined {
    let { ops } = this.#entries[index] as Entry;
    const moved: Moved[] = [];
    // Each entry above it will be taken back after it, instead of before.
    for (const { entry, document: there } of above) {
      const raised = rebase(ops, invert(there, entry.ops), there, this.#parts.text);
      if (raised.isLost || raised.conflicts.length > 0) return undefined;
      const left = apply(before, ops);
      moved.push({ entry, ops: invert(left, raised.over) });
      ops = raised.ops;
      before = there;
    }
    return { index, ops, moved };
  }

  /**
   * Finds the last entry of a place, and the operations that take it back from the shown state; undefined if there is
   * none, or if it cannot be taken back before those above it.
   */
  #find(place: readonly string[], document: Document): Raised | undefined {
    const above: Above[] = [];
    for (let index = this.#entries.length - 1; index >= 0; index--) {
      if (!this.#bringUp(index, document)) continue;
      const entry = this.#entries[index] as Entry;
      if (entry.ops.length === 0) continue;
      if (entry.ops.every(({ path }) => isWithin(parse(path), place))) return this.#raise(index, above, document);
      const after = apply(document, entry.ops);
      above.unshift({ entry, document, after });
      const next = placeAfter(place, entry.ops, after);
      if (!next) return undefined;
      [place, document] = [next, after];
    }
    return undefined;
  }

  /**
   * Rebases the entries above one over the operations of others; returns the state after all of them are taken back.
   */
  #reach(entry: Entry, document: Document): Document | undefined {
    for (let index = this.#entries.length - 1; index >= 0; index--) {
      const above = this.#entries[index] as Entry;
      if (above === entry) return document;
      if (this.#bringUp(index, document)) document = apply(document, above.ops);
    }
    return undefined;
  }

  /**
   * Rebases an entry over later operations of others, which then come after the entry below it. Returns whether it can
   * still be taken back: not if others have changed its place.
   */
  #bringUp(index: number, document: Document): boolean {
    const entry = this.#entries[index] as Entry;
    if (countOf(entry.over) === 0 && !entry.isRefused) return true;
    const { ops, conflicts, isLost, over } = rebase(entry.ops, opsOf(entry.over), document, this.#parts.text);
    const stays = !isLost && !entry.isRefused && conflicts.length === 0 && (ops.length > 0 || entry.ops.length === 0);
    const below = this.#entries[index - 1];
    // For the entries below, a change that stays counts as a change of others.
    if (below) below.over = joined(below.over, stays || isLost ? over : [...over, ...invert(document, ops)]);
    if (stays) Object.assign(entry, { ops, over: NOTHING });
    else this.#entries.splice(index, 1);
    return stays;
  }
}

/** An entry with the document from which it is taken back, and the document after that. */
interface Above {
  readonly entry: Entry;
  readonly document: Document;
  readonly after: Document;
}

/**
 * The operations that take the entry at an index back from the shown state, and those that then take back the entries
 * above it, in order.
 */
interface Raised {
  readonly index: number;
  readonly ops: readonly Op[];
  readonly moved: readonly Moved[];
}

/** An entry, and the operations that take it back once an entry below it has been taken back. */
interface Moved {
  readonly entry: Entry;
  readonly ops: readonly Op[];
}

/** Returns a place after operations that lead to a document; undefined if they remove it. */
function placeAfter(place: readonly string[], ops: readonly Op[], document: Document): string[] | undefined {
  const [moved] = rebase([makeOp("replace", pointer(place), null)], ops, document).ops;
  return moved && parse(moved.path);
}

/**
 * Returns the operations that take back the rest of an entry's changes, after one was refused: for a text, those that
 * lead back over later changes to the start of the entry. Returns undefined for anything else.
 */
function restOf({ ops, over }: Entry, before: Document, after: Document, parts: Parts): Op[] | undefined {
  const past = opsOf(over);
  const path = pathOf(past);
  const [back, refused] = [regionsOf(ops), regionsOf(past)];
  if (path === undefined || !ops.every((op) => op.path === path) || !back || !refused) return undefined;
  const [text, left] = [find(before, parse(path)), find(after, parse(path))];
  const compare = textComparison(parts, { byLetters: true });
  if (!compare || typeof text !== "string" || typeof left !== "string") return undefined;
  return splices(path, makeSmaller(left, compose(invertText(text, refused), back), compare));
}

/** Returns a change of a text without the characters that it removes and inserts again. */
function makeSmaller(text: string, regions: readonly Region[], compare: CompareTexts): Region[] {
  return regions.flatMap(({ at, remove, insert }) =>
    compare(slicePoints(text, at, at + remove), insert).map((each) => ({ ...each, at: at + each.at })),
  );
}
