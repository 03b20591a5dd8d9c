/** The longest part that two sequences have in common, in order. */

import type { Pair } from "./lists.js";

/**
 * Returns the places, in both, of the elements of a longest common subsequence.
 *
 * The time is the same for any two sequences of the same lengths: the places of a row are found 32 at a time, as the
 * bits of integers (Hyyrö 2004).
 */
export function longestCommon(old: readonly string[], next: readonly string[]): Pair[] {
  const rows = rowsOf(old, next);
  const found: Pair[] = [];
  let [at, to] = [0, 0];
  while (at < old.length && to < next.length) {
    const bit = next.length - 1 - to;
    if (old[at] === next[to]) found.push([at++, to++]);
    else if (((rows[at] as Uint32Array)[bit >>> 5] as number) & (1 << (bit & 31))) to++;
    else at++;
  }
  return found;
}

/**
 * Returns, for each place in the old sequence, the bits of the places in the new one, where the last place has the
 * lowest. A bit is 0 if a longest common subsequence of the rests of both is longer than one without the new element.
 */
function rowsOf(old: readonly string[], next: readonly string[]): Uint32Array[] {
  const width = (next.length + 31) >>> 5;
  const places = new Map<string, number[]>();
  for (const [at, element] of next.entries()) {
    const bits = places.get(element);
    if (bits) bits.push(next.length - 1 - at);
    else places.set(element, [next.length - 1 - at]);
  }
  const masks = new Map<string, Uint32Array>();
  let row = new Uint32Array(width).fill(0xffffffff);
  const rows: Uint32Array[] = new Array<Uint32Array>(old.length);
  for (let at = old.length - 1; at >= 0; at--) {
    const element = old[at] as string;
    const bits = places.get(element);
    if (bits) {
      let mask = masks.get(element);
      if (!mask) masks.set(element, (mask = maskOf(bits, width)));
      row = nextRow(row, mask);
    }
    rows[at] = row;
  }
  return rows;
}

function maskOf(bits: readonly number[], width: number): Uint32Array {
  const mask = new Uint32Array(width);
  for (const bit of bits) (mask[bit >>> 5] as number) |= 1 << (bit & 31);
  return mask;
}

function nextRow(row: Uint32Array, mask: Uint32Array): Uint32Array<ArrayBuffer> {
  const next = new Uint32Array(row.length);
  let carry = 0;
  for (let index = 0; index < row.length; index++) {
    const bits = row[index] as number;
    const same = (bits & (mask[index] as number)) >>> 0;
    const sum = bits + same + carry;
    carry = sum > 0xffffffff ? 1 : 0;
    next[index] = sum | (bits - same);
  }
  return next;
}
