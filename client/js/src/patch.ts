/** Makes and applies JSON Patch (RFC 6902) operations `add`, `remove` and `replace`, and `splice` in a text. */

import type { Keys } from "./elements.js";
import { freeze, isObject, isWellFormed, own } from "./json.js";
import type { Document, Json, JsonObject } from "./json.js";
import { compareLists } from "./lists.js";
import { textComparison } from "./parts.js";
import type { CompareLists, CompareTexts } from "./parts.js";
import type { Op } from "./protocol.js";
import { fits, inOrder, spliced } from "./text.js";
import type { Region } from "./text.js";

/** An operation that does not fit the document that it is applied to. */
export class PatchError extends Error {}

/** Returns `key` as one part of a JSON pointer (RFC 6901). */
export function escape(key: string): string {
  return key.replaceAll("~", "~0").replaceAll("/", "~1");
}

/** Returns the parts of a JSON pointer, unescaped. */
export function parse(pointer: string): string[] {
  if (pointer === "") return [];
  if (!pointer.startsWith("/")) throw new PatchError(`"${pointer}" is no JSON pointer`);
  return pointer
    .slice(1)
    .split("/")
    .map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));
}

/** Tells whether a part of a JSON pointer may be the index of an element. */
export function isIndex(part: string): boolean {
  return /^(0|[1-9][0-9]{0,14})$/.test(part);
}

/** Tells whether a part of a JSON pointer may be a place in an array: an index, or `-` for its end. */
export function isPlace(part: string | undefined): boolean {
  return part === "-" || (part !== undefined && isIndex(part));
}

// Diff

/**
 * Returns the operations that turn `old` into `next`. Parts that are the same object in both are not walked. Elements
 * of lists are compared by identity, not by position; `keys` are the declared members that identify them, and the
 * texts, in which only the differences change if the client has the part for that.
 */
export function diff(old: Document, next: Json, keys?: Keys, { byLetters = false } = {}): Op[] {
  const parts = keys?.parts ?? {};
  const ops: Op[] = [];
  const lists = parts.compare?.newLists() ?? compareLists;
  addDifference(old, next, "", { ops, keys, texts: textComparison(parts, { byLetters }), lists });
  return ops;
}

interface Difference {
  readonly ops: Op[];
  readonly keys: Keys | undefined;
  readonly texts: CompareTexts | undefined;
  readonly lists: CompareLists;
}

function addDifference(old: Document, next: Json, path: string, found: Difference): void {
  if (old === next) return;
  if (Array.isArray(old) && Array.isArray(next)) addArrays(old, next, path, found);
  else if (isObject(old) && isObject(next)) addObjects(old, next, path, found);
  else found.ops.push(...replace(old, next, path, found.keys, found.texts));
}

/** Returns the operations that replace a value; in a text, only the differences change. */
export function replace(
  old: Document,
  next: Json,
  path: string,
  keys: Keys | undefined,
  compare = keys && textComparison(keys.parts),
): Op[] {
  if (!compare || typeof old !== "string" || typeof next !== "string" || !keys?.hasText(path))
    return [{ op: "replace", path, value: next }];
  return splices(path, compare(old, next));
}

function addObjects(old: JsonObject, next: JsonObject, path: string, found: Difference): void {
  const place = (key: string) => `${path}/${escape(key)}`;
  for (const key of Object.keys(old)) if (!Object.hasOwn(next, key)) found.ops.push({ op: "remove", path: place(key) });
  for (const [key, value] of Object.entries(next)) {
    if (Object.hasOwn(old, key)) addDifference(old[key], value, place(key), found);
    else found.ops.push({ op: "add", path: place(key), value });
  }
}

function addArrays(old: readonly Json[], next: readonly Json[], path: string, found: Difference): void {
  const { ops, keys, texts } = found;
  const list = found.lists(old, next, keys?.at(path));
  if (!list) ops.push({ op: "replace", path, value: next });
  for (const { kind, index, old: before, next: after } of list ?? []) {
    const place = `${path}/${index}`;
    const value = next[after] as Json;
    if (kind === "change") addDifference(old[before], value, place, found);
    else if (kind === "remove" || kind === "out") ops.push({ op: "remove", path: place });
    else if (kind === "in") ops.push({ op: "add", path: place, value: old[before] as Json, moved: true });
    else if (kind === "replace") ops.push(...replace(old[before], value, place, keys, texts));
    else ops.push({ op: kind, path: place, value });
  }
}

// Apply

/**
 * Returns `document` with `ops` applied in order. The document itself is not changed: containers around a change are
 * copied, and all else is shared; the copies and the values of the operations are frozen. Throws a PatchError when a
 * path does not exist.
 */
export function apply(document: Document, ops: readonly Op[]): Document {
  return ops.reduce((before, op) => applyAt(before, parse(op.path), 0, op), document);
}

/** Returns the result of `apply`; undefined if the operations do not fit. */
export function tryApply(document: Document, ops: readonly Op[]): Document {
  try {
    return apply(document, ops);
  } catch (error) {
    if (error instanceof PatchError) return undefined;
    throw error;
  }
}

function applyAt(node: Document, parts: readonly string[], depth: number, op: Op): Json {
  const part = parts[depth];
  if (part === undefined) return op.op === "splice" ? applySplice(op, node) : valueOf(op);
  const isLast = depth === parts.length - 1;
  const adds = isLast && op.op === "add";
  const removes = isLast && op.op === "remove";
  if (Array.isArray(node)) {
    const index = adds && part === "-" ? node.length : isIndex(part) ? Number(part) : Infinity;
    if (index >= node.length + Number(adds)) throw misfit(op);
    const copy = [...(node as Json[])];
    if (adds) copy.splice(index, 0, valueOf(op));
    else if (removes) copy.splice(index, 1);
    else copy[index] = applyAt(copy[index], parts, depth + 1, op);
    return Object.freeze(copy);
  }
  if (!isObject(node) || !(adds || Object.hasOwn(node, part))) throw misfit(op);
  if (!removes) return Object.freeze({ ...node, [part]: applyAt(node[part], parts, depth + 1, op) });
  const { [part]: _, ...rest } = node;
  return Object.freeze(rest);
}

function valueOf(op: Op): Json {
  if (op.value === undefined) throw misfit(op);
  return freeze(op.value);
}

function misfit({ op, path }: Op): PatchError {
  return new PatchError(`${op} ${path} does not fit what is there`);
}

// Texts

/** Returns a change of a text as operations, one after the other; those that insert are `own`, if that is set. */
export function splices(path: string, regions: readonly Region[], own = false): Op[] {
  return inOrder(regions).map(({ at, remove, insert }) => ({
    op: "splice",
    path,
    at,
    ...(remove > 0 && { remove }),
    ...(insert !== "" && { insert }),
    ...(own && insert !== "" && { own }),
  }));
}

/** Returns operations without `own`, the form in which they are stored and sent to others. */
export function withoutOwn(ops: readonly Op[]): readonly Op[] {
  return ops.map((op) => {
    if (op.op !== "splice" || op.own === undefined) return op;
    const { own: _, ...rest } = op;
    return rest;
  });
}

export type Splice = Extract<Op, { op: "splice" }>;

/** Returns the region of a splice, whatever text it is for. Throws a PatchError if no text has such a place. */
export function regionOf(op: Splice): Region {
  const { value, at, remove = 0, insert = "" } = op;
  const areCounts = [at, remove].every((number) => Number.isSafeInteger(number) && number >= 0);
  if ((value as unknown) !== undefined || !areCounts || typeof insert !== "string") throw misfit(op);
  return { at, remove, insert };
}

/** Returns a text with a splice applied. Throws a PatchError if there is no text, or the splice does not fit it. */
function applySplice(op: Splice, text: Document): string {
  const region = regionOf(op);
  if (typeof text !== "string" || !fits(text, [region]) || !isWellFormed(region.insert)) throw misfit(op);
  return spliced(text, [region]);
}

// Reading

/** Returns the value at a place of a document; undefined if there is none. */
export function find(document: Document, parts: readonly string[]): Document {
  return parts.reduce((node, part) => member(node, part), document);
}

function member(node: Document, part: string): Document {
  if (Array.isArray(node)) return isIndex(part) ? (node[Number(part)] as Document) : undefined;
  return isObject(node) ? (own(node, part) as Document) : undefined;
}

/** Returns the string at a place, undefined if there is none. */
export function textAt(document: Document, parts: readonly string[]): string | undefined {
  const text = find(document, parts);
  return typeof text === "string" ? text : undefined;
}
