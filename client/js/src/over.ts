/** Operations that were carried out one after the other; those of one text are also one change. */

import { regionOf, splices } from "./patch.js";
import type { Op } from "./protocol.js";
import { compose } from "./text.js";
import type { Region } from "./text.js";

/** Operations, one after the other; for one text alone, the one change that they make. */
export type Over = readonly Op[] | { readonly path: string; readonly regions: readonly Region[] };

export const NOTHING: Over = [];

/** Returns the operations of others. */
export function opsOf(over: Over): readonly Op[] {
  return "path" in over ? splices(over.path, over.regions) : over;
}

export function countOf(over: Over): number {
  return "path" in over ? over.regions.length : over.length;
}

export function joined(first: Over, second: readonly Op[]): Over {
  if (second.length === 0) return first;
  const path = pathOf(second);
  const after = path === undefined ? undefined : regionsOf(second);
  if (path !== undefined && after) {
    if (countOf(first) === 0) return { path, regions: after };
    if ("path" in first && first.path === path) return { path, regions: compose(first.regions, after) };
  }
  return [...opsOf(first), ...second];
}

/** Returns the text that all operations change; undefined if they change anything else, or several. */
export function pathOf(ops: readonly Op[]): string | undefined {
  const path = ops[0]?.path;
  return ops.every((op) => op.op === "splice" && op.path === path) ? path : undefined;
}

/** Returns the one change that splices of one text make together. */
export function regionsOf(ops: readonly Op[]): readonly Region[] | undefined {
  const [op] = ops;
  if (!op) return [];
  if (ops.length === 1) return op.op === "splice" ? compose([], [regionOf(op)]) : undefined;
  // Composed in halves, as each composition goes through all regions.
  const middle = ops.length >> 1;
  const [first, second] = [regionsOf(ops.slice(0, middle)), regionsOf(ops.slice(middle))];
  return first && second && compose(first, second);
}
