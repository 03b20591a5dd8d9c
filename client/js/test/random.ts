/** Random documents and operations, the same for the same seed. */

import type { Document, Json } from "../src/json.js";
import { apply, escape, find, parse } from "../src/patch.js";
import { countPoints } from "../src/points.js";
import type { Op } from "../src/protocol.js";
import type { Region } from "../src/text.js";

const KEYS = ["a", "b", "c/d", "~e", "0", "1", ""];

/** Characters of one and of several code points, and of one and of two UTF-16 units. */
const CHARACTERS = ["a", "b", " ", "\n", "é", "e\u0301", "–", "🔑", "👩‍👧", "\u0301", "\u{10000}"];

export class Random {
  #state: number;

  constructor(seed: number) {
    this.#state = seed;
  }

  /** A number from 0 up to 1 (mulberry32). */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(this.#state ^ (this.#state >>> 15), 1 | this.#state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  }

  below(end: number): number {
    return Math.floor(this.next() * end);
  }

  chance(share: number): boolean {
    return this.next() < share;
  }

  pick<T>(items: readonly T[]): T {
    return items[this.below(items.length)] as T;
  }

  json(depth = 3): Json {
    const kind = this.below(depth > 0 ? 4 : 2);
    if (kind === 0) return this.pick([null, true, false, 0, 1, -2.5, "", "x", "yz", "e\u0301🔑"]);
    if (kind === 1) return this.below(1000);
    if (kind === 2) return Array.from({ length: this.below(5) }, () => this.json(depth - 1));
    return this.object(depth - 1);
  }

  object(depth = 3): { [key: string]: Json } {
    const keys = KEYS.filter(() => this.chance(0.5));
    return Object.fromEntries(keys.map((key) => [key, this.json(depth)]));
  }

  text(most = 12): string {
    return Array.from({ length: this.below(most + 1) }, () => this.pick(CHARACTERS)).join("");
  }

  /** Regions of a change of a text. */
  change(text: string): Region[] {
    const regions: Region[] = [];
    const length = countPoints(text);
    let end = 0;
    for (let index = this.below(5); index > 0; index--) {
      const at = end + this.below(length - end + 1);
      const remove = this.below(Math.min(3, length - at) + 1);
      const insert = this.text(2);
      const last = regions.at(-1);
      const isAfter = !last || at > end || (remove === 0 && last.remove > 0 && insert !== "");
      if (!isAfter || (remove === 0 && insert === "")) continue;
      regions.push({ at, remove, insert });
      end = at + remove;
    }
    return regions;
  }

  /** An operation that fits the document. */
  op(document: Document): Op {
    const places = this.#places(document, "");
    const inner = places.filter((place) => isContainer(find(document, parse(place))));
    const op = this.pick(["add", "remove", "replace"] as const);
    if (op === "add" && inner.length > 0)
      return { op, path: this.#addition(document, this.pick(inner)), value: this.json(2) };
    const place = this.pick(places.length > 1 ? places.slice(1) : places);
    const there = find(document, parse(place));
    if (typeof there === "string" && this.chance(0.7)) {
      const at = this.below(countPoints(there) + 1);
      const remove = this.below(countPoints(there) - at + 1);
      const insert = this.text(2);
      return { op: "splice", path: place, at, ...(remove > 0 && { remove }), ...(insert !== "" && { insert }) };
    }
    if (op === "remove" && place !== "") return { op, path: place };
    return { op: "replace", path: place, value: place === "" ? this.object() : this.json(2) };
  }

  /** Operations that each fit what those before it leave. */
  ops(document: Document, count = 1 + this.below(4)): Op[] {
    const ops: Op[] = [];
    for (let index = 0; index < count; index++) {
      const op = this.op(document);
      ops.push(op);
      document = apply(document, [op]);
    }
    return ops;
  }

  #addition(document: Document, place: string): string {
    const parent = find(document, parse(place));
    if (!Array.isArray(parent)) return `${place}/${escape(this.pick(KEYS))}`;
    return `${place}/${this.chance(0.2) ? "-" : this.below(parent.length + 1)}`;
  }

  #places(node: Document, path: string): string[] {
    if (!isContainer(node)) return [path];
    return [
      path,
      ...Object.entries(node).flatMap(([key, item]) => this.#places(item as Json, `${path}/${escape(key)}`)),
    ];
  }
}

function isContainer(value: Document): value is Json[] | { [key: string]: Json } {
  return typeof value === "object" && value !== null;
}
