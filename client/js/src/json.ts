/** JSON values: equality, plain and frozen copies, sharing of equal parts, and which value another was made from. */

import { isInexact, stringify } from "./exact.js";

export type Json = null | boolean | number | bigint | string | readonly Json[] | { readonly [key: string]: Json };

export type JsonObject = { readonly [key: string]: Json };

/** A state, or a part of one; undefined if there is none. */
export type Document = Json | undefined;

/** A type whose values may not be changed, at any depth. */
export type DeepReadonly<T> = 0 extends 1 & T
  ? T
  : T extends (...args: never) => unknown
    ? T
    : T extends object
      ? { readonly [Key in keyof T]: DeepReadonly<T[Key]> }
      : T;

/** Tells whether a value is a JSON object: neither null nor an array. */
export function isObject(value: unknown): value is JsonObject {
  return isContainer(value) && !Array.isArray(value);
}

/** Tells whether two values are the same JSON; the order of keys does not count. */
export function isEqual(a: unknown, b: unknown): boolean {
  if (a === b) return true;
  if (Array.isArray(a)) {
    return Array.isArray(b) && a.length === b.length && a.every((item, index) => isEqual(item, b[index]));
  }
  if (!isObject(a) || !isObject(b)) return false;
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && isEqual(a[key], b[key]));
}

/** Returns a text that is the same for two values only if they are the same JSON. */
export function canonical(value: Json): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join()}]`;
  if (!isObject(value)) return stringify(value);
  const members = Object.keys(value).sort();
  return `{${members.map((key) => `${JSON.stringify(key)}:${canonical(value[key] as Json)}`).join()}}`;
}

/** Returns `next` with each part that is equal to its counterpart in `old` replaced by that object. */
export function share<T>(old: unknown, next: T): T;
export function share(old: unknown, next: unknown): unknown {
  if (old === next || !isContainer(old) || !isContainer(next) || Array.isArray(old) !== Array.isArray(next))
    return next;
  const keys = Object.keys(next);
  let isOld = keys.length === Object.keys(old).length;
  let made = next;
  for (const key of keys) {
    const item = Object.hasOwn(old, key) ? share(old[key], next[key]) : next[key];
    isOld &&= item === old[key];
    if (item === next[key]) continue;
    if (made === next) made = copyOf(next);
    made[key] = item;
  }
  return isOld ? old : made;
}

type Container = Record<string, unknown>;

export function isContainer(value: unknown): value is Container {
  return typeof value === "object" && value !== null;
}

/** Returns a shallow copy of an object or an array. */
export function copyOf(value: object): Container {
  return (Array.isArray(value) ? [...(value as unknown[])] : { ...value }) as Container;
}

/** Returns `value`, frozen in all its parts; an object that is already frozen counts as frozen at every depth. */
export function freeze<T>(value: T): T {
  if (!isContainer(value) || Object.isFrozen(value)) return value;
  for (const item of Object.values(value)) freeze(item);
  return Object.freeze(value);
}

/** Returns an own member, never one of the prototype. */
export function own(object: object, key: PropertyKey): unknown {
  return Object.hasOwn(object, key) ? (object as Container)[key as string] : undefined;
}

/** Sets an own member, even if an assignment would call a setter of the prototype; returns whether it is set. */
export function setOwn(object: object, key: PropertyKey, value: unknown): boolean {
  if (Object.hasOwn(object, key)) return Reflect.set(object, key, value);
  return Reflect.defineProperty(object, key, { value, writable: true, enumerable: true, configurable: true });
}

// Drafts and origins: an edited element of a list is recognized by the element from which it was made, even without an
// id.

/** The object of a draft, which is never changed, and the copy that is. */
export interface Draft {
  readonly base: Container;
  readonly copy: Container;
}

/** A draft has its object and copy under this key. */
export const DRAFT = Symbol();

const origins = new WeakMap<object, object>();

export function draftOf(value: object): Draft | undefined {
  return (value as { [DRAFT]?: Draft })[DRAFT];
}

/** Returns the object that a value is a changed copy of; undefined if it is none. */
export function originOf(value: unknown): object | undefined {
  return isContainer(value) ? origins.get(value) : undefined;
}

// Plain copies

/** Servers refuse deeper nesting; the limit also ends the walk through a circular value. */
const DEEPEST = 200;

/** Tells whether a text can be sent: half a surrogate pair has no UTF-8. */
export function isWellFormed(text: string): boolean {
  return !/[\uD800-\uDFFF]/u.test(text);
}

/**
 * Returns `value` as the server receives it: without undefined members, dates as text, an instance of a class as its
 * members, a BigInt as a number unless it is beyond 2^53. Parts that are the same objects in `known` are returned
 * unread, and unchanged drafts as their objects; all others are copied, so that later changes to `value` do not reach
 * the copy. Throws a TypeError for a value that JSON cannot hold.
 */
export function plain(value: unknown, known?: unknown): Json {
  return plainAt(0, value, known);
}

function plainAt(depth: number, value: unknown, known: unknown): Json {
  if (value === null || typeof value === "boolean") return value;
  if (typeof value === "string") return plainText(value);
  if (typeof value === "number" && Number.isFinite(value)) {
    if (isInexact(value) && value !== known) throw new TypeError(`${value} is beyond 2^53: pass a BigInt`);
    return value;
  }
  if (typeof value === "bigint") return plainInteger(value);
  if (value === known && value) return value as Json;
  const draft = draftOf(value as object);
  if (!draft) return plainContainer(depth, value as object, known);
  const { base, copy } = draft;
  const made = hasMembersOf(base, copy) ? base : (plainContainer(depth, copy, base) as unknown as Container);
  if (hasMembersOf(base, made)) return base as Json;
  origins.set(made, base);
  return made as Json;
}

function hasMembersOf(base: Container, copy: Container): boolean {
  const keys = Object.keys(copy);
  return keys.length === Object.keys(base).length && keys.every((key) => copy[key] === base[key]);
}

function plainContainer(depth: number, value: object, known: unknown): Json {
  if (typeof value === "object") {
    if (depth >= DEEPEST) throw new TypeError(`a value is circular, or more than ${DEEPEST} deep`);
    if ("toJSON" in value && typeof value.toJSON === "function") return plainAt(depth + 1, value.toJSON(), undefined);
    if (Array.isArray(value)) {
      const before: readonly unknown[] = Array.isArray(known) ? known : [];
      return Array.from(value, (item: unknown, at) =>
        item === undefined ? null : plainAt(depth + 1, item, before[at]),
      );
    }
  }
  // An object whose content is not in its members, such as a Map, would arrive empty.
  const kind = Object.prototype.toString.call(value).slice(8, -1);
  if (kind !== "Object") throw new TypeError(`JSON cannot hold ${typeof value === "number" ? value : `a ${kind}`}`);
  const before = isObject(known) ? known : {};
  const entries: [string, Json][] = [];
  for (const [key, item] of Object.entries(value)) {
    const old = own(before, key);
    if (item !== undefined) entries.push([plainText(key), plainAt(depth + 1, item, old)]);
  }
  return Object.fromEntries(entries);
}

function plainInteger(value: bigint): number | bigint {
  if (value !== BigInt.asIntN(64, value) && value !== BigInt.asUintN(64, value))
    throw new TypeError(`${value} has more than 64 bits`);
  return Number.isSafeInteger(Number(value)) ? Number(value) : value;
}

/** Returns a text that can be sent. Throws a TypeError for any other. */
export function plainText(text: string): string {
  if (!isWellFormed(text)) throw new TypeError("half a surrogate pair cannot be sent");
  return text;
}
