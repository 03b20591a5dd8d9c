/** Values as JSON holds them: equality, plain copies, and sharing of what is equal. */

import { isInexact, stringify } from "./exact.js";
import { originOf, setOrigin } from "./origins.js";

export type Json = null | boolean | number | bigint | string | readonly Json[] | { readonly [key: string]: Json };

export type JsonObject = { readonly [key: string]: Json };

/** Tells whether a value is an object of JSON: neither null nor an array. */
export function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Tells whether two values are the same JSON, in whatever order their keys are. */
export function isEqual(a: unknown, b: unknown): boolean {
  if (Object.is(a, b) || a === b) return true;
  if (Array.isArray(a)) {
    return Array.isArray(b) && a.length === b.length && a.every((item, index) => isEqual(item, b[index]));
  }
  if (!isObject(a) || !isObject(b)) return false;
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && isEqual(a[key], b[key]));
}

/** Returns a text that two values have in common only if they are the same JSON. */
export function canonical(value: Json): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join()}]`;
  if (!isObject(value)) return stringify(value);
  const members = Object.keys(value).sort();
  return `{${members.map((key) => `${JSON.stringify(key)}:${canonical(value[key] as Json)}`).join()}}`;
}

/** Returns `next`, with each part that is equal in `old` replaced by the very one in `old`. */
export function share<T>(old: unknown, next: T): T;
export function share(old: unknown, next: unknown): unknown {
  if (old === next) return old;
  if (Array.isArray(old) && Array.isArray(next)) {
    const items = next.map((item, index) => (index < old.length ? share(old[index], item) : item));
    if (items.length === old.length && items.every((item, index) => item === old[index])) return old;
    return items.every((item, index) => item === next[index]) ? next : items;
  }
  if (!isObject(old) || !isObject(next)) return next;
  const keys = Object.keys(next);
  const entries = keys.map((key) => [key, Object.hasOwn(old, key) ? share(old[key], next[key]) : next[key]] as const);
  if (
    keys.length === Object.keys(old).length &&
    entries.every(([key, item]) => Object.hasOwn(old, key) && item === old[key])
  ) {
    return old;
  }
  return entries.every(([key, item]) => item === next[key]) ? next : Object.fromEntries(entries);
}

/** No server takes what nests deeper; also what ends the walk through a value that holds itself. */
const DEEPEST = 200;

/** Throws a TypeError when what is `depth` containers deep is deeper than any server takes. */
export function checkDepth(depth: number): void {
  if (depth >= DEEPEST) throw new TypeError(`a value holds itself, or nests more than ${DEEPEST} deep`);
}

/** Tells whether a text can be sent: half of a surrogate pair has no UTF-8. */
export function isWellFormed(text: string): boolean {
  return !/[\uD800-\uDFFF]/u.test(text);
}

/**
 * Returns `value` as it arrives on the other side of a socket: without undefined members, dates as text, an instance of
 * a class as its members, a BigInt as a number unless it is beyond 2^53.
 * Parts that are the same objects in `known` are returned as they are and not looked at; all others are copied, so that
 * nobody else can change them. Throws a TypeError for what JSON cannot say.
 */
export function plain(value: unknown, known?: unknown): Json {
  return plainAt(0, value, known);
}

function plainAt(depth: number, value: unknown, known: unknown): Json {
  if (value === null || typeof value === "boolean") return value;
  if (typeof value === "string") return plainText(value);
  if (typeof value === "number" && Number.isFinite(value)) return plainNumber(value, known);
  if (typeof value === "bigint") return plainInteger(value);
  if (typeof value !== "object") throw new TypeError(`JSON has no ${typeof value === "number" ? value : typeof value}`);
  if (value === known) return value as Json;
  checkDepth(depth);
  const copy = plainContainer(depth, value, known);
  const origin = originOf(value);
  if (origin) setOrigin(copy as object, origin);
  return copy;
}

function plainContainer(depth: number, value: object, known: unknown): Json {
  if ("toJSON" in value && typeof value.toJSON === "function") return plainAt(depth + 1, value.toJSON(), undefined);
  if (!Array.isArray(value)) {
    // What holds its content otherwise than in members, as a Map does, would arrive empty.
    const kind = Object.prototype.toString.call(value).slice(8, -1);
    if (kind !== "Object") throw new TypeError(`JSON has no ${kind}`);
    return plainObject(depth, value, isObject(known) ? known : {});
  }
  const before: readonly unknown[] = Array.isArray(known) ? known : [];
  return Array.from(value, (item: unknown, at) => (item === undefined ? null : plainAt(depth + 1, item, before[at])));
}

function plainObject(depth: number, value: object, known: JsonObject): Json {
  const entries = Object.entries(value).filter(([, item]) => item !== undefined);
  return Object.fromEntries(
    entries.map(([key, item]: [string, unknown]) => {
      const before = Object.hasOwn(known, key) ? known[key] : undefined;
      return [plainText(key), plainAt(depth + 1, item, before)];
    }),
  );
}

function plainNumber(value: number, known: unknown): number {
  if (isInexact(value) && value !== known) throw new TypeError(`${value} may stand for another integer: pass a BigInt`);
  return value;
}

function plainInteger(value: bigint): number | bigint {
  if (value !== BigInt.asIntN(64, value) && value !== BigInt.asUintN(64, value)) {
    throw new TypeError(`${value} has more than 64 bits`);
  }
  return Number.isSafeInteger(Number(value)) ? Number(value) : value;
}

function plainText(text: string): string {
  if (!isWellFormed(text)) throw new TypeError("a text holds half of a surrogate pair");
  return text;
}
