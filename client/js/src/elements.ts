/** What identifies the elements of lists: their ids, or without one their JSON; and where lists and texts are. */

import { canonical, isObject, originOf, own } from "./json.js";
import type { Json } from "./json.js";
import type { Parts } from "./parts.js";

/** The members that may hold an element's id; the first one with a text or an integer counts. */
const ID_KEYS: readonly string[] = ["id", "key", "_id"];

type Id = string | number | bigint | undefined;

// Names

/** Returns a name for each element of two lists: its id, or without one its JSON. */
export function namesOf(old: readonly Json[], next: readonly Json[], key: string | undefined): [string[], string[]] {
  const ids = idsOf(old, next, key);
  const repeated = new Set([...repeatedIn(ids[0]), ...repeatedIn(ids[1])]);
  const name = (element: Json, id: Id) => {
    if (id === undefined || repeated.has(id)) return canonical(element);
    return typeof id === "string" ? `is${id}` : `in${id}`;
  };
  return [old.map((element, at) => name(element, ids[0][at])), next.map((element, at) => name(element, ids[1][at]))];
}

/** Returns the ids of the elements of two lists; an edited element without an id shares one with the old element. */
export function idsOf(old: readonly Json[], next: readonly Json[], key: string | undefined): readonly [Id[], Id[]] {
  const ids = [old.map((element) => idOf(element, key)), next.map((element) => idOf(element, key))] as const;
  if (!next.some(originOf)) return ids;
  const places = new Map<unknown, number>();
  old.forEach((element, at) => ids[0][at] === undefined && places.set(element, at));
  next.forEach((element, at) => {
    const place = ids[1][at] === undefined ? places.get(originOf(element)) : undefined;
    if (place !== undefined) ids[0][place] = ids[1][at] = `\0${place}`;
  });
  return ids;
}

/** Returns the id of an element, undefined if it has none; `key` is the member that holds it, if declared. */
export function idOf(element: Json, key?: string): Id {
  if (!isObject(element)) return undefined;
  for (const each of key === undefined ? ID_KEYS : [key]) {
    const id = own(element, each) as Json;
    if (typeof id === "string" || typeof id === "bigint" || Number.isInteger(id)) return id as Id;
  }
  return undefined;
}

/**
 * The places of a state's lists and texts, as JSON pointers in which `*` is any part, and the members that identify
 * elements; "" is the whole state.
 */
export class Keys {
  readonly #keys: readonly (readonly [readonly string[], string])[];
  readonly #texts: readonly (readonly string[])[];
  readonly parts: Parts;

  /** `keys` are the declared members that identify elements, by their lists; `texts` are the strings that merge. */
  constructor(keys: Readonly<Record<string, string>>, texts: readonly string[] = [], parts: Parts = {}) {
    this.parts = parts;
    this.#keys = Object.entries(keys).map(([pointer, key]) => [pointer.split("/"), key]);
    this.#texts = texts.map((pointer) => pointer.split("/"));
  }

  /** Returns the member for the list at a JSON pointer; undefined if none is declared. */
  at(path: string): string | undefined {
    const parts = path.split("/");
    return this.#keys.find(([pattern]) => isAt(parts, pattern))?.[1];
  }

  /** Tells whether a string at a JSON pointer is a text, in which only the differences change. */
  hasText(path: string): boolean {
    const parts = path.split("/");
    return this.#texts.some((pattern) => isAt(parts, pattern));
  }
}

function isAt(parts: readonly string[], pattern: readonly string[]): boolean {
  return pattern.length === parts.length && pattern.every((part, depth) => part === "*" || part === parts[depth]);
}

function repeatedIn(ids: readonly Id[]): Set<Id> {
  const seen = new Set<Id>();
  const found = new Set<Id>();
  for (const id of ids) (seen.has(id) ? found : seen).add(id);
  return found;
}

/** Returns the names with repeated ones numbered. */
export function numberRepeated(names: readonly string[]): readonly string[] {
  if (new Set(names).size === names.length) return names;
  const counts = new Map<string, number>();
  return names.map((name) => {
    const count = counts.get(name) ?? 0;
    counts.set(name, count + 1);
    return count > 0 ? `${name}#${count}` : name;
  });
}
