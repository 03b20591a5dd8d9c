/**
 * The outlines of list elements without an id: whether one in the same place is another one, or the same one changed.
 */

import { idOf, idsOf } from "./elements.js";
import { canonical, isEqual, isObject } from "./json.js";
import type { Json, JsonObject } from "./json.js";

/** Returns how many elements of two lists have no id. */
export function countUnknown(old: readonly Json[], next: readonly Json[], key: string | undefined): number {
  return idsOf(old, next, key).reduce((sum, ids) => sum + ids.filter((id) => id === undefined).length, 0);
}

/**
 * Tells whether two elements without ids in one place of a list look like one that was changed: objects with the same
 * scalars, rows with most of their values in common, or rows with an element of the same id.
 */
export function isSameElement(old: Json, next: Json): boolean {
  if (isEqual(old, next)) return true;
  if (Array.isArray(old) && Array.isArray(next)) return isSameRow(old, next);
  const outline = outlineOf(old);
  return outline !== undefined && outline === outlineOf(next);
}

function isSameRow(old: readonly Json[], next: readonly Json[]): boolean {
  const alike = old.filter((value, at) => isEqual(value, next[at]));
  if (old.length === next.length && 2 * alike.length > old.length) return true;
  return hasCommonId(old, next);
}

/**
 * Returns the JSON of an object without the content of its lists and, if it has a text, of its objects; undefined for
 * any other value.
 */
export function outlineOf(element: Json): string | undefined {
  if (!isObject(element)) return undefined;
  const hasText = Object.values(element).some((value) => typeof value === "string" && value !== "");
  return canonical(withoutLists(element, hasText));
}

function withoutLists(object: JsonObject, hasText: boolean): JsonObject {
  const outline = (value: Json): Json => {
    if (Array.isArray(value)) return [];
    return isObject(value) ? (hasText ? {} : withoutLists(value, false)) : value;
  };
  return Object.fromEntries(Object.entries(object).map(([key, value]) => [key, outline(value)]));
}

/** Tells whether two objects have, at the same key, lists with an element of the same id. */
export function sharesIds(old: Json, next: Json): boolean {
  if (!isObject(old) || !isObject(next)) return false;
  return Object.entries(old).some(([key, list]) => {
    const other = Object.hasOwn(next, key) ? next[key] : undefined;
    return Array.isArray(list) && Array.isArray(other) && hasCommonId(list, other);
  });
}

function hasCommonId(old: readonly Json[], next: readonly Json[]): boolean {
  const ids = new Set(old.map((element) => idOf(element)));
  return next.some((element) => idOf(element) !== undefined && ids.has(idOf(element)));
}
