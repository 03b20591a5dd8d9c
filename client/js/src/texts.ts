/** The watched texts of a state, and their changes. */

import { raise } from "./errors.js";
import type { ShownChange } from "./pending.js";
import { regionsOf } from "./over.js";
import type { CompareTexts, TextChange, TextEdit, TextWatchers } from "./parts.js";
import { parse, textAt } from "./patch.js";
import type { Document } from "./json.js";
import { countPoints, slicePoints } from "./points.js";
import type { Op } from "./protocol.js";
import { fits, inOrder, spliced } from "./text.js";
import type { Region } from "./text.js";
import { toEdits } from "./typing.js";

interface Watcher {
  readonly pointer: string;
  readonly parts: readonly string[];
  readonly fn: (change: TextChange) => void;
  text: string | undefined;
}

export class Texts implements TextWatchers {
  readonly #watchers = new Set<Watcher>();
  #changes: ShownChange[] = [];
  #isTelling = false;
  readonly #compare: CompareTexts;

  constructor(compare: CompareTexts) {
    this.#compare = compare;
  }

  watch(pointer: string, shown: Document, fn: (change: TextChange) => void): () => void {
    const parts = parse(pointer);
    const watcher = { pointer, parts, fn, text: textAt(shown, parts) };
    this.#watchers.add(watcher);
    return () => void this.#watchers.delete(watcher);
  }

  add(change: ShownChange): void {
    if (this.#watchers.size > 0) this.#changes.push(change);
  }

  tell(shown: Document, isOfSession: boolean): void {
    if (!isOfSession) this.#changes = [];
    // Changes made by a function that is being called are reported after that.
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
        last === undefined || text === undefined ? [] : this.#editsOf(last, text, isNext ? change.ops : [], watcher);
      try {
        watcher.fn({ text, edits });
      } catch (error) {
        raise(error);
      }
    }
  }

  /** Returns the changes of a text by operations; if these are not known, the differences. */
  #editsOf(before: string, after: string, ops: readonly Op[] = [], { pointer }: Watcher): TextEdit[] {
    const regions = known(regionsOf(ops.filter(({ path }) => path === pointer)) ?? [], after);
    // If the pointer leads to another element of a list, these may be the regions of a longer text.
    const isKnown = fits(before, regions) && spliced(before, regions) === after;
    return toEdits(before, isKnown ? regions : this.#compare(before, after));
  }
}

/** Returns regions with their inserted texts, which are not known if something is taken back. */
function known(regions: readonly Region[], after: string): Region[] {
  return inOrder(regions).map(({ at, insert }, index) => ({
    ...(regions[index] as Region),
    insert: slicePoints(after, at, at + countPoints(insert)),
  }));
}
