/**
 * The containers of a document before and after operations on it: objects, and arrays with their lengths. A text is one
 * value, whatever changes inside it.
 */

import { copyOf, isContainer, isObject, setOwn } from "./json.js";
import type { Document, Json } from "./json.js";
import { find, isIndex } from "./patch.js";
import type { Op } from "./protocol.js";

type Container = Record<string, Json> | Json[];

/** Stands for a removed value, which is unknown. */
const HOLE = null;

/**
 * A copy of a document on which operations are undone and done, as far as they fit. Nothing is copied before the first
 * look, and then only the containers around a change.
 */
export class Shape {
  /** The root has the document as its only member, so that the document is changed like any other value. */
  readonly #root: Container;
  /** The containers that were copied, and may be changed. */
  readonly #owned = new Set<unknown>();
  /** The changes to make before the next look. */
  #waiting: (() => void)[] = [];

  constructor(document: Document) {
    this.#root = { "": document as Json };
  }

  /** Returns the value at a place; it is known exactly only if it is a container. */
  look(parts: readonly string[]): Document {
    for (const change of this.#waiting.splice(0)) change();
    return find(this.#root, ["", ...parts]);
  }

  /** Undoes the last operation on the document; its path must name the end of an array by an index. */
  undo(name: Op["op"], parts: readonly string[]): void {
    this.#waiting.push(() => {
      // An object has most likely been one before, too.
      this.#change(name, parts, isObject(find(this.#root, ["", ...parts])) ? {} : HOLE, "remove", "add");
    });
  }

  /** Undoes the move of an array's element. */
  undoMove(start: readonly string[], end: readonly string[]): void {
    this.#waiting.push(() => {
      const array = this.#own(end);
      const [from, to] = [Number(end.at(-1)), Number(start.at(-1))];
      if (Array.isArray(array) && from < array.length) array.splice(to, 0, ...array.splice(from, 1));
    });
  }

  /** Does an operation. */
  do(name: Op["op"], parts: readonly string[], value: Json = HOLE): void {
    this.#waiting.push(() => this.#change(name, parts, value, "add", "remove"));
  }

  /** Changes the value at a place; an array gains or loses an element if the name of the operation says so. */
  #change(name: Op["op"], parts: readonly string[], value: Json, adds: Op["op"], removes: Op["op"]): void {
    const container = name === "splice" ? undefined : this.#own(parts);
    const part = parts.at(-1) ?? "";
    if (Array.isArray(container)) {
      const index = part === "-" ? container.length : isIndex(part) ? Number(part) : Infinity;
      if (name === adds && index < Infinity) container.splice(index, 0, value);
      else if (index < container.length) container.splice(index, 1, ...(name === removes ? [] : [value]));
    } else if (container && name === removes && removes === "remove") delete container[part];
    else if (container) setOwn(container, part, value);
  }

  /** Returns the container of a place, copied so that it may be changed; undefined if there is none. */
  #own(parts: readonly string[]): Container | undefined {
    let container = this.#root;
    for (const part of ["", ...parts].slice(0, -1)) {
      const node = find(container as Json, [part]) as Container;
      if (!isContainer(node)) return undefined;
      const copy = this.#owned.has(node) ? node : copyOf(node);
      this.#owned.add(copy);
      container = (container as Record<string, Json>)[part] = copy as Json & Container;
    }
    return container;
  }
}
