/** Typing in texts, and listening to changes in them, as an option of a client. */

import { LastInsertion } from "./insertion.js";
import { Letters } from "./letters.js";
import type { TextEdit, TextMethods, TextPart } from "./parts.js";
import { apply, find, parse, textAt } from "./patch.js";
import { pointAt } from "./points.js";
import { trim } from "./spans.js";
import { spliceUnits, textIn } from "./splicing.js";
import { goesOn, transform } from "./text.js";
import { Texts } from "./texts.js";
import { toEdits } from "./typing.js";

export const text: TextPart = {
  newTexts({ byLetters = false } = {}) {
    const letters = byLetters ? new Letters() : undefined;
    return (old, next) => {
      const { at, end, to, nextEnd } = trim(old, next);
      if (at === end && to === nextEnd) return [];
      const start = pointAt(old, at) as number;
      const region = { at: start, remove: (pointAt(old, end) as number) - start, insert: next.slice(to, nextEnd) };
      return letters ? letters.refine(old.slice(at, end), region) : [region];
    };
  },
  pass(mine, other) {
    mine.isOwn &&= goesOn(mine.regions, other.regions);
    const { regions } = mine;
    mine.regions = transform(regions, other.regions, !mine.isOwn);
    other.regions = transform(other.regions, regions, mine.isOwn);
  },
  textsOf(pushes) {
    return new Set(pushes.flatMap(({ ops }) => ops.filter(({ op }) => op === "splice").map(({ path }) => path)));
  },
  inTexts(ops, document, replace) {
    return ops.flatMap((op) => {
      const old = find(document, parse(op.path));
      document = apply(document, [op]);
      return op.op === "replace" ? replace(old, op.value, op.path) : [op];
    });
  },
  newInsertion: () => new LastInsertion(),
  newWatchers: (compare) => new Texts(compare),
  newMethods: (edits, watchers, compare): TextMethods => ({
    splice(pointer: string, at: number | readonly TextEdit[], remove: number = 0, insert: string = "") {
      const all = typeof at === "object" ? at : [{ at, remove, insert }];
      return edits.make((shown) => spliceUnits(shown, pointer, all));
    },
    append(pointer, insert) {
      return edits.make((shown) => {
        return spliceUnits(shown, pointer, [{ at: textIn(shown, pointer).length, remove: 0, insert }]);
      });
    },
    goesOn(pointer, at) {
      const text = textAt(edits.shown, parse(pointer));
      if (text === undefined || edits.isEarly) return false;
      return edits.insertion?.goesOn(pointer, pointAt(text, at) ?? at) ?? false;
    },
    editsBetween: (before, after) => toEdits(before, compare(before, after)),
    onText: (pointer, fn) => watchers.watch(pointer, edits.shown, fn),
  }),
};
