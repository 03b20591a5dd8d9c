/** Drafts: copies of a state, made as far as they are looked at, that a function may change as it likes. */

import { checkDepth } from "./json.js";

interface Node {
  /** What the draft was made of; it is never changed. */
  readonly base: object;
  /** A copy of it, one level deep, in which drafts take the place of what was looked at. */
  readonly copy: Record<string, unknown>;
  isChanged: boolean;
}

/**
 * Returns what `recipe` makes of `base`, which is left as it was; parts that were not changed are the very same.
 * What the recipe returns means nothing. Throws a TypeError for a state without members, and for an async recipe.
 */
export function produce<State>(base: State, recipe: (draft: State) => unknown): State {
  if (!hasMembers(base)) throw new TypeError("only an object or an array can be edited");
  const drafts = new Drafts();
  const draft = drafts.of(base);
  if (recipe(draft as State) instanceof Promise) throw new TypeError("an edit is made at once: it cannot be async");
  return drafts.finish(draft) as State;
}

class Drafts {
  readonly #nodes = new WeakMap<object, Node>();

  of(base: object): object {
    const copy = (Array.isArray(base) ? [...base] : { ...base }) as Node["copy"];
    const node: Node = { base, copy, isChanged: false };
    const draft = new Proxy(copy, {
      get: (target, key) => this.#read(target, key),
      set: (target, key, value) => (node.isChanged = true) && assign(target, key, value),
      deleteProperty: (target, key) => (node.isChanged = true) && Reflect.deleteProperty(target, key),
      defineProperty: (target, key, to) => (node.isChanged = true) && Reflect.defineProperty(target, key, to),
    });
    this.#nodes.set(draft, node);
    return draft;
  }

  #read(target: Node["copy"], key: string | symbol): unknown {
    if (typeof key === "symbol") return Reflect.get(target, key);
    if (!Object.hasOwn(target, key)) return inherited(target, key);
    const value: unknown = target[key];
    if (!hasMembers(value) || this.#nodes.has(value)) return value;
    const draft = this.of(value);
    target[key] = draft;
    return draft;
  }

  /** Returns the value without drafts in it. */
  finish(value: unknown, depth = 0): unknown {
    if (!hasMembers(value)) return value;
    checkDepth(depth);
    const node = this.#nodes.get(value);
    const source = (node?.copy ?? value) as Node["copy"];
    const base = (node?.base ?? value) as Node["copy"];
    let isChanged = node?.isChanged ?? false;
    const entries = Object.entries(source).map(([key, item]) => {
      // What was not looked at is as it was.
      const finished = node && item === base[key] ? item : this.finish(item, depth + 1);
      isChanged ||= finished !== base[key];
      return [key, finished] as const;
    });
    if (!isChanged) return base;
    return Array.isArray(source)
      ? Array.from({ ...Object.fromEntries(entries), length: source.length })
      : Object.fromEntries(entries);
  }
}

/** Sets a member of the object itself, where an assignment could find a setter of its prototype. */
function assign(target: object, key: string | symbol, value: unknown): boolean {
  if (Object.hasOwn(target, key)) return Reflect.set(target, key, value);
  return Reflect.defineProperty(target, key, { value, writable: true, enumerable: true, configurable: true });
}

/** By function. */
const guards = new WeakMap<object, unknown>();

/** Returns a method that is called and nothing else: no path of keys may lead to an object that all others share. */
function inherited(target: object, key: string | symbol): unknown {
  if (key === "__proto__" || key === "constructor" || key === "prototype") return undefined;
  const value: unknown = Reflect.get(target, key);
  if (typeof value !== "function") return value;
  const refuse = () => false;
  const traps = { get: inherited, set: refuse, defineProperty: refuse, deleteProperty: refuse, setPrototypeOf: refuse };
  const guard = guards.get(value) ?? new Proxy(value, traps);
  guards.set(value, guard);
  return guard;
}

function hasMembers(value: unknown): value is object {
  if (typeof value !== "object" || value === null) return false;
  if (Array.isArray(value)) return true;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}
