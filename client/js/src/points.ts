/** Positions in texts: code points, which operations count, and UTF-16 units, which JavaScript counts. */

/** The length from which a text is remembered. */
export const LONG = 2048;
/** The maximum number of remembered texts; the last one comes first. */
const MOST = 4;

const PAIR = /[\uD800-\uDBFF][\uDC00-\uDFFF]/g;

/** A position that is known both ways. */
interface Place {
  readonly point: number;
  readonly unit: number;
}

/** The known positions of a text: without surrogates, its two positions are the same everywhere. */
interface Known {
  readonly text: string;
  readonly count: number;
  /** The place that was looked up last: the next one is most likely near it. */
  near: Place;
}

/** Long texts: counting their code points takes longer than changing them. */
let remembered: readonly Known[] = [];

/** Returns how many code points a text has. */
export function countPoints(text: string): number {
  return known(text).count;
}

/** Returns the UTF-16 position of a code point; of the end if there are fewer. */
export function unitAt(text: string, point: number): number {
  const it = known(text);
  const to = Math.min(point, it.count);
  return it.count === text.length ? to : walk(it, (at) => to - at.point).unit;
}

/** Returns the code point at a UTF-16 position, or the number of them at the end; undefined within a surrogate pair. */
export function pointAt(text: string, unit: number): number | undefined {
  const it = known(text);
  const to = Math.min(unit, text.length);
  if (it.count === text.length) return to;
  return isPair(text, to - 1) ? undefined : walk(it, (at) => to - at.unit).point;
}

/** Returns the code points of a text from `start` to `end`. */
export function slicePoints(text: string, start: number, end: number): string {
  return text.slice(unitAt(text, start), unitAt(text, end));
}

/** Remembers a text that has `count` code points and is about to be used: they need not be counted. */
export function remember(text: string, count: number, near: Place): void {
  keep({ text, count, near });
}

/** Returns the number of code points of a part of a text, which is not asked for again. */
export function countAll(text: string): number {
  return text.length - (text.match(PAIR)?.length ?? 0);
}

function known(text: string): Known {
  const isLong = text.length > LONG;
  const found = isLong && remembered.find((each) => each.text === text);
  return keep(found || { text, count: countAll(text), near: { point: 0, unit: 0 } });
}

function keep(known: Known): Known {
  if (known.text.length > LONG && remembered[0] !== known)
    remembered = [known, ...remembered.filter((each) => each !== known)].slice(0, MOST);
  return known;
}

function isPair(text: string, unit: number): boolean {
  return (text.codePointAt(unit) as number) > 0xffff;
}

/** Returns the place at no distance, found from the nearest known one. */
function walk(it: Known, distance: (place: Place) => number): Place {
  const ends = [
    { point: 0, unit: 0 },
    { point: it.count, unit: it.text.length },
  ];
  let { point, unit } = ends.reduce((a, b) => (Math.abs(distance(a)) > Math.abs(distance(b)) ? b : a), it.near);
  for (; distance({ point, unit }) > 0; point++) unit += isPair(it.text, unit) ? 2 : 1;
  for (; distance({ point, unit }) < 0; point--) unit -= isPair(it.text, unit - 2) ? 2 : 1;
  return (it.near = { point, unit });
}
