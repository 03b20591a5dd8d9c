/** Differences between two texts, as the places of both in UTF-16 units; no surrogate pair is parted. */

import { countAll } from "./points.js";

/** A difference: from where to where in the old text, and in the new one. */
export interface Span {
  readonly at: number;
  readonly end: number;
  readonly to: number;
  readonly nextEnd: number;
}

/** A part that stays: its places in the two texts, and its length. */
export interface Same {
  readonly place: number;
  readonly nextPlace: number;
  readonly length: number;
}

/** Returns the differences between the parts that stay, without their common starts and ends. */
export function findBetween(old: string, next: string, same: readonly Same[]): Span[] {
  const found: Span[] = [];
  let [last, to] = [0, 0];
  for (const { place, nextPlace, length } of [...same, { place: old.length, nextPlace: next.length, length: 0 }]) {
    const [gone, come] = [old.slice(last, place), next.slice(to, nextPlace)];
    if (gone !== come) found.push(shift(trim(gone, come), last, to));
    [last, to] = [place + length, nextPlace + length];
  }
  return found;
}

/** Returns a span of two parts, which begin at `at` and `to`, as one of the whole texts. */
export function shift(span: Span, at: number, to: number): Span {
  return { at: at + span.at, end: at + span.end, to: to + span.to, nextEnd: to + span.nextEnd };
}

/**
 * Joins spans that have less between them than either changes. Spans that both only insert or only remove are not
 * joined: no text that stays is removed and inserted for these.
 */
export function join(old: string, next: string, spans: readonly Span[]): Span[] {
  const found: Span[] = [];
  const sizeOf = ({ at, end, to, nextEnd }: Span) =>
    Math.max(countAll(old.slice(at, end)), countAll(next.slice(to, nextEnd)));
  for (const span of spans) {
    found.push(span);
    for (let [first, second] = found.slice(-2); first && second; [first, second] = found.slice(-2)) {
      const isInserted = first.at === first.end && second.at === second.end;
      const isRemoved = first.to === first.nextEnd && second.to === second.nextEnd;
      const between = countAll(old.slice(first.end, second.at));
      if (isInserted || isRemoved || between >= Math.min(sizeOf(first), sizeOf(second))) break;
      found.splice(-2, 2, asOne(first, second));
    }
  }
  return found;
}

/** Makes at most `most` spans of several, by joining the nearest. */
export function joinNearest(old: string, spans: Span[], most: number): Span[] {
  if (spans.length <= most) return spans;
  const gaps = spans.slice(1).map((span, index) => countAll(old.slice((spans[index] as Span).end, span.at)));
  const order = [...gaps.keys()].sort((a, b) => (gaps[a] as number) - (gaps[b] as number));
  const joined = new Set(order.slice(0, spans.length - most));
  const found = spans.slice(0, 1);
  for (const [index, span] of spans.slice(1).entries()) {
    if (joined.has(index)) found.push(asOne(found.pop() as Span, span));
    else found.push(span);
  }
  return found;
}

function asOne({ at, to }: Span, { end, nextEnd }: Span): Span {
  return { at, end, to, nextEnd };
}

// Common starts and ends

/** Returns the difference without the common start and end. */
export function trim(old: string, next: string): Span {
  const most = Math.min(old.length, next.length);
  let start = longest(most, (from, to) => old.slice(from, to) === next.slice(from, to));
  if (isWithin(old.charCodeAt(start - 1), 0xd800)) start--;
  // The common part is not longer than what is left.
  const [length, nextLength] = [old.length, next.length];
  let tail = longest(most - start, (from, to) => {
    return old.slice(length - to, length - from) === next.slice(nextLength - to, nextLength - from);
  });
  if (isWithin(old.charCodeAt(length - tail), 0xdc00)) tail--;
  return { at: start, end: length - tail, to: start, nextEnd: nextLength - tail };
}

/** Returns the greatest length, up to `most`, that is the same; slices are compared faster than units. */
function longest(most: number, isSame: (from: number, to: number) => boolean): number {
  let [low, high] = [0, most];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (isSame(low, middle)) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** Tells whether a unit is the first, or with 0xdc00 the second, half of a surrogate pair. */
function isWithin(unit: number, start: number): boolean {
  return unit >= start && unit < start + 0x400;
}
