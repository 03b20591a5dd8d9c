/** Typing in texts, and listening to what is typed there, as an option of a client. */

import { LastInsertion } from "./insertion.js";
import { Letters } from "./letters.js";
import type { TextPart } from "./parts.js";
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
  transform,
  goesOn,
  splice: spliceUnits,
  append(document, pointer, insert) {
    return spliceUnits(document, pointer, [{ at: textIn(document, pointer).length, remove: 0, insert }]);
  },
  pointAt,
  newInsertion: () => new LastInsertion(),
  newWatchers: (compare) => new Texts(compare),
  toEdits,
};
