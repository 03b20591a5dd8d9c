/** One operation while others are moved before it: its place, and its effect on the elements around it. */

import { idOf } from "./elements.js";
import { isContainer, isObject, isWellFormed } from "./json.js";
import type { Document, Json } from "./json.js";
import type { TextPart } from "./parts.js";
import { escape, find, isPlace, parse, regionOf, splices, tryApply } from "./patch.js";
import type { Op } from "./protocol.js";
import type { Shape } from "./shape.js";
import type { Region } from "./text.js";

/**
 * The maximum number of places in which one operation changes a text: each costs time again for each operation of
 * others.
 */
const MOST_REGIONS = 300;

export class Step {
  name: Op["op"];
  parts: readonly string[];
  /**
   * Whether the operation adds or removes an element of an array, which moves the elements after it. If nothing is
   * known of the array, a part that may be an index counts as one.
   */
  moves: boolean;
  /** Whether the place is an element of an array. */
  isElement: boolean;
  /** Whether the operation adds, at its new place, the element that the operation before it has removed. */
  isMoved: boolean;
  /** Whether others have changed the same place. */
  isContested = false;
  /** Whether nothing is left of the operation, because its place was removed or overwritten. */
  isGone = false;
  /** Whether the same was done already. */
  isDone = false;
  /**
   * Whether the operation continues an insertion of the same client: it stays before others' insertions at its place.
   */
  isOwn: boolean;
  /** The value as given, or with later changes inside; undefined if there is none, or it is not known. */
  #value: Json | undefined;
  /** The effect of a splice on its text: in several places if others have written in between. */
  regions: readonly Region[];

  readonly #text: TextPart | undefined;

  constructor(op: Op, text?: TextPart) {
    this.#text = text;
    this.#value = op.value;
    this.name = op.op;
    this.isMoved = op.moved === true;
    this.parts = parse(op.path);
    this.isElement = isPlace(this.parts.at(-1));
    this.moves = this.isElement && (op.op === "add" || op.op === "remove");
    this.regions = op.op === "splice" ? [regionOf(op)] : [];
    this.isOwn = op.op === "splice" && op.own === true;
  }

  get pointer(): string {
    return pointer(this.parts);
  }

  /** Whether the value that it puts at its place is known. */
  get hasValue(): boolean {
    if (this.name === "splice") return this.regions.every(({ insert }) => isWellFormed(insert));
    return this.#value !== undefined;
  }

  /**
   * Tells whether it may be meant for another element than the one that `other` has put in the same place of a list. A
   * scalar is known by its place, as a cell of a board is, unless it is removed. An add means no element.
   */
  isAnother(other: Step): boolean {
    if (this.name !== "replace") return this.name === "remove";
    const [value, there] = [this.#value, other.#value];
    if (!isContainer(value) || !isContainer(there)) return false;
    const id = idOf(value);
    return id === undefined || id !== idOf(there);
  }

  /** Returns it as operations: one, or, for a splice in several places, several. */
  toOps(): Op[] {
    return this.#opsAt(this.pointer);
  }

  #opsAt(path: string): Op[] {
    if (this.name === "splice") return splices(path, this.regions, this.isOwn);
    return [makeOp(this.name, path, this.#value, this.isMoved)];
  }

  /** Moves another splice of the same text before this one: each becomes its form after the other. */
  passText(other: Step): void {
    const tooMany = this.regions.length + other.regions.length > MOST_REGIONS;
    if (!this.#text || tooMany) this.isContested = this.isGone = true;
    else {
      this.#text.pass(this, other);
      this.isGone = this.isDone = this.regions.length === 0;
      other.isGone = other.regions.length === 0;
    }
  }

  /**
   * Applies an operation inside this one's value; if it does not fit, it is gone. It is also gone if it leads to an
   * element of a list, because the element at its index may be another. A member that is missing is added, and need not
   * be removed.
   */
  takeIn(inner: Step): void {
    const value = this.#value;
    const rest = inner.parts.slice(this.parts.length);
    if (this.isElement || leadsToElement(value, rest, inner.name === "add")) {
      inner.isGone = true;
      return;
    }
    if (isObject(find(value, rest.slice(0, -1))) && find(value, rest) === undefined) {
      if (inner.name === "remove") {
        inner.isGone = inner.isDone = true;
        return;
      }
      inner.name = "add";
    }
    this.#change(inner, rest);
  }

  /** Applies an operation to the element that this one adds, or inside it at `rest`. */
  takeAlong(inner: Step, rest: readonly string[]): void {
    if (this.#value !== undefined) this.#change(inner, rest);
  }

  #change(inner: Step, rest: readonly string[]): void {
    const changed = tryApply(this.#value, inner.#opsAt(pointer(rest)));
    if (changed === undefined) inner.isGone = true;
    else this.#value = changed;
  }

  /**
   * Looks up whether the container is an array. After an append, `-` becomes the element's index, because it would name
   * another place after further appends. For a replace the container matters only if something may be inside the value,
   * or if `isExact` asks for it.
   */
  lookUp(shape: Shape, hasHappened = false, isExact = false): void {
    const mayHold = hasHappened && this.isElement && (isExact || typeof this.#value === "object");
    if (!this.moves && !mayHold) return;
    const place = this.parts.slice(0, -1);
    const container = shape.look(place);
    this.isElement = !isObject(container);
    this.moves &&= this.isElement;
    if (this.moves && hasHappened && this.parts.at(-1) === "-" && Array.isArray(container)) {
      this.parts = [...place, String(container.length - 1)];
    }
  }
}

/** Returns an operation, without a value if that is not known. */
export function makeOp(name: Op["op"], path: string, value: Document, isMoved = false): Op {
  return { op: name, path, ...(value !== undefined && { value }), ...(isMoved && { moved: true }) } as Op;
}

/** Tells whether a place in a value is an element of a list, or inside one; appending with `-` is neither. */
function leadsToElement(value: Document, rest: readonly string[], adds: boolean): boolean {
  for (const [depth, part] of rest.entries()) {
    if (Array.isArray(value)) return !(adds && part === "-" && depth === rest.length - 1);
    value = find(value, [part]);
  }
  return false;
}

export function pointer(parts: readonly string[]): string {
  return parts.map((part) => `/${escape(part)}`).join("");
}

// Places

/** Tells whether two consecutive operations move an element of an array. */
export function isPair(first: Step, second: Step): boolean {
  const depth = first.parts.length - 1;
  return (
    second.isMoved &&
    first.name === "remove" &&
    first.moves &&
    insertsIn(second, depth) &&
    first.parts[depth] !== "-" &&
    second.parts[depth] !== "-" &&
    isWithin(second.parts, first.parts.slice(0, depth))
  );
}

/** Tells whether an operation changes the element that `out` removes from an array, or something inside it. */
export function isOf(step: Step, out: Step): boolean {
  return isWithin(step.parts, out.parts) && !insertsIn(step, out.parts.length - 1);
}

/** Tells whether an operation adds an element to an array whose elements' indices are at a depth of its place. */
export function insertsIn(step: Step, depth: number): boolean {
  return step.moves && step.name === "add" && step.parts.length - 1 === depth;
}

/** Tells whether `place` is `outer`, or inside it. */
export function isWithin(place: readonly string[], outer: readonly string[]): boolean {
  return outer.length <= place.length && outer.every((part, depth) => part === place[depth]);
}

/** Tells whether a place is an element of the array whose elements `other` moves, or inside one. */
export function leadsThrough(place: readonly string[], other: Step): boolean {
  const depth = other.parts.length - 1;
  return other.moves && place.length > depth && isWithin(place, other.parts.slice(0, depth)) && isPlace(place[depth]);
}
