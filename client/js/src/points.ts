/** Positions in texts: code points, which operations count, and UTF-16 units, which JavaScript counts. */

/** A text that is longer is remembered. */
export const LONG = 2048;
/** How many texts are remembered, the last one first. */
const MOST = 4;

const SURROGATE = /[\uD800-\uDFFF]/;

/** A position that is known both ways. */
interface Place {
  readonly point: number;
  readonly unit: number;
}

/** What is known of a text: without surrogates, its two positions are the same everywhere. */
interface Known {
  readonly text: string;
  readonly count: number;
  /** The place that was looked up last: the next one is most likely near it. */
  near: Place;
}

/** Long texts: to count their code points takes longer than to change them. */
const remembered: Known[] = [];

/** Returns how many code points a text has. */
export function countPoints(text: string): number {
  return known(text).count;
}

/** Returns the UTF-16 position of a code point; of the end where there are fewer. */
export function unitAt(text: string, point: number): number {
  const it = known(text);
  if (it.count === text.length) return Math.min(point, it.count);
  const to = Math.min(point, it.count);
  it.near = walk(it, ({ point: at }) => to - at);
  return it.near.unit;
}

/** Returns the code point at a UTF-16 position, or the number of them at the end; undefined within a surrogate pair. */
export function pointAt(text: string, unit: number): number | undefined {
  const it = known(text);
  if (it.count === text.length) return Math.min(unit, it.count);
  if (unit > 0 && unit < text.length && pairAt(text, unit - 1)) return undefined;
  const to = Math.min(unit, text.length);
  it.near = walk(it, ({ unit: at }) => to - at);
  return it.near.point;
}

/** Returns so many code points of a text, from one on. */
export function slicePoints(text: string, start: number, end: number): string {
  return text.slice(unitAt(text, start), unitAt(text, end));
}

/** A text that has `count` code points is about to be used: they need not be counted. */
export function remember(text: string, count: number, near: Place): void {
  if (text.length <= LONG) return;
  remembered.unshift({ text, count, near });
  remembered.length = Math.min(remembered.length, MOST);
}

function known(text: string): Known {
  const isShort = text.length <= LONG;
  const index = isShort ? -1 : remembered.findIndex((each) => each.text === text);
  const found = remembered[index] ?? { text, count: countAll(text), near: { point: 0, unit: 0 } };
  if (isShort || index === 0) return found;
  if (index > 0) remembered.splice(index, 1);
  remembered.unshift(found);
  remembered.length = Math.min(remembered.length, MOST);
  return found;
}

/** Returns the same, of a part of a text that is not asked for again. */
export function countAll(text: string): number {
  if (!SURROGATE.test(text)) return text.length;
  let pairs = 0;
  for (let unit = 0; unit < text.length; unit++) {
    if (pairAt(text, unit)) {
      pairs++;
      unit++;
    }
  }
  return text.length - pairs;
}

function pairAt(text: string, unit: number): boolean {
  return isWithin(text.charCodeAt(unit), 0xd800) && isWithin(text.charCodeAt(unit + 1), 0xdc00);
}

function isWithin(code: number, start: number): boolean {
  return code >= start && code < start + 0x400;
}

/** Returns the place at no distance, found from the nearest one that is known. */
function walk({ text, count: points, near }: Known, distance: (place: Place) => number): Place {
  const places = [near, { point: 0, unit: 0 }, { point: points, unit: text.length }];
  const start = places.reduce((best, each) => (Math.abs(distance(each)) < Math.abs(distance(best)) ? each : best));
  let { point, unit } = start;
  for (let left = distance(start); left > 0; left = distance({ point, unit })) {
    unit += pairAt(text, unit) ? 2 : 1;
    point++;
  }
  for (let left = distance({ point, unit }); left < 0; left = distance({ point, unit })) {
    unit -= unit > 1 && pairAt(text, unit - 2) ? 2 : 1;
    point--;
  }
  return { point, unit };
}
