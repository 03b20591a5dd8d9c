/** Which containers a document had at some time before or after operations on it: arrays, their lengths, and objects. */

import { isObject } from "./json.js";
import type { Json } from "./json.js";
import { find, isIndex } from "./patch.js";
import type { Document } from "./patch.js";
import type { Op } from "./protocol.js";

interface Change {
  takesBack: boolean;
  name: Op["op"];
  parts: readonly string[];
  value: Json | undefined;
}

/** An element of an array that moves from one place to another. */
interface Move {
  start: readonly string[];
  end: readonly string[];
}

/** Stands for what has been there, of which nothing is known. */
const HOLE = null;

/**
 * A copy of a document on which operations are taken back, and carried out, as far as they fit.
 * Nothing is copied before somebody looks, and then only what lies on the way to a change.
 */
export class Shape {
  #root: Document;
  /** The containers that are this shape's own. */
  readonly #owned = new Set<unknown>();
  /** What is to be done before anybody looks. */
  #waiting: (Change | Move)[] = [];

  constructor(document: Document) {
    this.#root = document;
  }

  /** Returns what is at a place: a container, or anything else where none is known to be. */
  look(parts: readonly string[]): Document {
    for (const change of this.#waiting.splice(0)) {
      if ("start" in change) this.#move(change.end, change.start);
      else this.#change(change);
    }
    return find(this.#root, parts);
  }

  /** Takes back an operation that was the last on the document; the end of an array is named by its index. */
  undo(name: Op["op"], parts: readonly string[]): void {
    this.#waiting.push({ takesBack: true, name, parts, value: HOLE });
  }

  /** Takes back that an element of an array has moved from one place to another. */
  undoMove(start: readonly string[], end: readonly string[]): void {
    this.#waiting.push({ start, end });
  }

  /** Carries out an operation. */
  do(name: Op["op"], parts: readonly string[], value: Json | undefined): void {
    this.#waiting.push({ takesBack: false, name, parts, value });
  }

  #move(from: readonly string[], to: readonly string[]): void {
    const array: unknown = this.#own(from.slice(0, -1));
    if (Array.isArray(array) && Number(from.at(-1)) < array.length) {
      array.splice(Number(to.at(-1)), 0, ...(array.splice(Number(from.at(-1)), 1) as Json[]));
    }
  }

  #change({ takesBack, name, parts, value = HOLE }: Change): void {
    // What is an object has most likely been one before, too.
    const next = takesBack && isObject(find(this.#root, parts)) ? {} : value;
    const part = parts.at(-1);
    if (part === undefined) {
      this.#root = next;
      return;
    }
    const container = this.#own(parts.slice(0, -1));
    if (Array.isArray(container)) changeArray(container as Json[], part, next, takesBack, name);
    else if (container === undefined) return;
    else if (name === "remove" && !takesBack) delete container[part];
    else Object.defineProperty(container, part, { value: next, writable: true, enumerable: true, configurable: true });
  }

  /** Returns the container at a place, as one that may be changed; undefined where none is known to be. */
  #own(parts: readonly string[]): Record<string, Json> | undefined {
    let node = this.#copy(this.#root);
    this.#root = node;
    for (const part of parts) {
      const isThere = Array.isArray(node)
        ? isIndex(part) && Number(part) < node.length
        : isObject(node) && Object.hasOwn(node, part);
      if (!isThere) return undefined;
      const holder = node as Record<string, Json>;
      holder[part] = node = this.#copy(holder[part]) as Json;
    }
    return Array.isArray(node) || isObject(node) ? (node as Record<string, Json>) : undefined;
  }

  #copy(node: Document): Document {
    if (this.#owned.has(node) || !(Array.isArray(node) || isObject(node))) return node;
    const copy = Array.isArray(node) ? [...node] : { ...node };
    this.#owned.add(copy);
    return copy;
  }
}

function changeArray(array: Json[], part: string, value: Json, takesBack: boolean, name: Op["op"]): void {
  if (part !== "-" && !isIndex(part)) return;
  const index = part === "-" ? array.length : Number(part);
  if (name === (takesBack ? "remove" : "add")) array.splice(index, 0, value);
  else if (index >= 0 && index < array.length) {
    if (name === "replace") array[index] = value;
    else array.splice(index, 1);
  }
}
