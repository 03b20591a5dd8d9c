/** The close comparing of whole values, as an option of a client: of texts, and of lists of elements without ids. */

import { ListBudget, edits } from "./align.js";
import type { ComparePart } from "./parts.js";
import { TextComparison } from "./text-diff.js";

export const compare: ComparePart = {
  newLists() {
    const budget = new ListBudget();
    return (old, next, key) => edits(old, next, key, budget);
  },
  newTexts(options) {
    const texts = new TextComparison(options);
    return (old, next) => texts.compare(old, next);
  },
};
