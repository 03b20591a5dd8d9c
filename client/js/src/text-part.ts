/** Typing in texts, and listening to what is typed there, as an option of a client. */

import { LastInsertion } from "./insertion.js";
import type { TextPart } from "./parts.js";
import { spliceUnits, textIn } from "./patch.js";
import { pointAt } from "./points.js";
import { TextComparison } from "./text-diff.js";
import { goesOn, transform } from "./text.js";
import { Texts } from "./texts.js";

export const text: TextPart = {
  newComparison(options) {
    const comparison = new TextComparison(options);
    return (old, next) => comparison.compare(old, next);
  },
  transform,
  goesOn,
  splice: spliceUnits,
  append(document, pointer, insert) {
    return spliceUnits(document, pointer, [{ at: textIn(document, pointer).length, remove: 0, insert }]);
  },
  pointAt,
  newInsertion: () => new LastInsertion(),
  newWatchers: () => new Texts(),
};
