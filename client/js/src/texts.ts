/** The texts of a state that somebody shows, and what has changed in them. */

import { raise } from "./errors.js";
import type { ShownChange } from "./fold.js";
import { regionsOf } from "./over.js";
import { find, parse } from "./patch.js";
import type { Document, TextEdit } from "./patch.js";
import { countPoints, slicePoints } from "./points.js";
import type { Op } from "./protocol.js";
import { TextComparison } from "./text-diff.js";
import { fits, inOrder, spliced } from "./text.js";
import type { Region } from "./text.js";
import { toEdits } from "./typing.js";

/** A change of a text, by this client or by others. */
export interface TextChange {
  /** The text as it is shown; undefined where there is none. */
  readonly text: string | undefined;
  /**
   * What led there from the text of the last call: in order, not overlapping, and all counted on that text. Empty where
   * there was or is no text.
   */
  readonly edits: readonly TextEdit[];
}

interface Watcher {
  readonly pointer: string;
  readonly parts: readonly string[];
  readonly fn: (change: TextChange) => void;
  text: string | undefined;
}

export class Texts {
  readonly #watchers = new Set<Watcher>();
  #changes: ShownChange[] = [];
  #isTelling = false;

  /** Calls `fn` with each change of the text at a pointer; returns the function that ends this. */
  watch(pointer: string, shown: Document, fn: (change: TextChange) => void): () => void {
    const parts = parse(pointer);
    const watcher = { pointer, parts, fn, text: textAt(shown, parts) };
    this.#watchers.add(watcher);
    return () => void this.#watchers.delete(watcher);
  }

  /** What the session shows has changed. */
  add(change: ShownChange): void {
    if (this.#watchers.size > 0) this.#changes.push(change);
  }

  /** Tells of all changes, up to what is shown; without the session's changes where that is not the session's. */
  tell(shown: Document, isOfSession: boolean): void {
    if (!isOfSession) this.#changes = [];
    // What is changed by a function that is told is told after that.
    if (this.#isTelling) return;
    this.#isTelling = true;
    for (let change = this.#changes.shift(); change; change = this.#changes.shift()) this.#tellAll(change);
    this.#tellAll({ after: shown });
    this.#isTelling = false;
  }

  #tellAll(change: Pick<ShownChange, "after"> & Partial<ShownChange>): void {
    for (const watcher of [...this.#watchers]) {
      const text = textAt(change.after, watcher.parts);
      const last = watcher.text;
      if (text === last || !this.#watchers.has(watcher)) continue;
      watcher.text = text;
      const isNext = change.ops && textAt(change.before, watcher.parts) === last;
      const edits =
        last === undefined || text === undefined ? [] : editsOf(last, text, isNext ? change.ops : [], watcher);
      try {
        watcher.fn({ text, edits });
      } catch (error) {
        raise(error);
      }
    }
  }
}

/** Returns the string at a place, undefined where there is none. */
export function textAt(document: Document, parts: readonly string[]): string | undefined {
  const text = find(document, parts);
  return typeof text === "string" ? text : undefined;
}

/** Returns what operations have done to a text; what is different, where that is not known. */
function editsOf(before: string, after: string, ops: readonly Op[] = [], { pointer }: Watcher): TextEdit[] {
  const regions = known(regionsOf(ops.filter(({ path }) => path === pointer)) ?? [], after);
  // Where the pointer leads to another element of a list, they may be those of a longer text.
  const isKnown = fits(before, regions) && spliced(before, regions) === after;
  return toEdits(before, isKnown ? regions : new TextComparison().compare(before, after));
}

/** Returns regions with what they have inserted, which is not known where something is taken back. */
function known(regions: readonly Region[], after: string): Region[] {
  return inOrder(regions).map(({ at, insert }, index) => ({
    ...(regions[index] as Region),
    insert: slicePoints(after, at, at + countPoints(insert)),
  }));
}
