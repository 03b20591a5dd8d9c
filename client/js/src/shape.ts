/**
 * The containers of a document before and after operations on it: objects, and arrays with their lengths. A text is one
 * value, whatever is done inside it.
 */

import { isObject } from "./json.js";
import type { Document, Json } from "./json.js";
import { find, isIndex } from "./patch.js";
import type { Op } from "./protocol.js";

interface Change {
  isUndo: boolean;
  name: Op["op"];
  parts: readonly string[];
  value: Json | undefined;
}

/** A move of an array's element. */
interface Move {
  start: readonly string[];
  end: readonly string[];
}

/** Stands for a removed value, which is unknown. */
const HOLE = null;

/**
 * A copy of a document on which operations are undone and done, as far as they fit.
 * Nothing is copied before the first look, and then only the containers around a change.
 */
export class Shape {
  #root: Document;
  /** The containers that were copied, and may be changed. */
  readonly #owned = new Set<unknown>();
  /** The changes to make before the next look. */
  #waiting: (Change | Move)[] = [];

  constructor(document: Document) {
    this.#root = document;
  }

  /** Returns the value at a place; known exactly only where it is a container. */
  look(parts: readonly string[]): Document {
    for (const change of this.#waiting.splice(0)) {
      if ("start" in change) this.#move(change.end, change.start);
      else this.#change(change);
    }
    return find(this.#root, parts);
  }

  /** Undoes the last operation on the document; its path must name the end of an array by an index. */
  undo(name: Op["op"], parts: readonly string[]): void {
    if (name !== "splice") this.#waiting.push({ isUndo: true, name, parts, value: HOLE });
  }

  /** Undoes the move of an array's element. */
  undoMove(start: readonly string[], end: readonly string[]): void {
    this.#waiting.push({ start, end });
  }

  /** Does an operation. */
  do(name: Op["op"], parts: readonly string[], value: Json | undefined): void {
    if (name !== "splice") this.#waiting.push({ isUndo: false, name, parts, value });
  }

  #move(from: readonly string[], to: readonly string[]): void {
    const array: unknown = this.#own(from.slice(0, -1));
    if (Array.isArray(array) && Number(from.at(-1)) < array.length) {
      array.splice(Number(to.at(-1)), 0, ...(array.splice(Number(from.at(-1)), 1) as Json[]));
    }
  }

  #change({ isUndo, name, parts, value = HOLE }: Change): void {
    // An object has most likely been one before, too.
    const next = isUndo && isObject(find(this.#root, parts)) ? {} : value;
    const part = parts.at(-1);
    if (part === undefined) {
      this.#root = next;
      return;
    }
    const container = this.#own(parts.slice(0, -1));
    if (Array.isArray(container)) changeArray(container as Json[], part, next, isUndo, name);
    else if (container === undefined) return;
    else if (name === "remove" && !isUndo) delete container[part];
    else Object.defineProperty(container, part, { value: next, writable: true, enumerable: true, configurable: true });
  }

  /** Returns the container at a place, copied so that it may be changed; undefined where there is none. */
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

function changeArray(array: Json[], part: string, value: Json, isUndo: boolean, name: Op["op"]): void {
  if (part !== "-" && !isIndex(part)) return;
  const index = part === "-" ? array.length : Number(part);
  if (name === (isUndo ? "remove" : "add")) array.splice(index, 0, value);
  else if (index >= 0 && index < array.length) {
    if (name === "replace") array[index] = value;
    else array.splice(index, 1);
  }
}
