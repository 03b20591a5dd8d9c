/** Drafts: copies of a state, made as far as they are looked at, that a function may change as it likes. */

import { checkDepth, setOrigin } from "./json.js";

interface Node {
  /** What the draft was made of; it is never changed. */
  readonly base: object;
  /** A copy of it, one level deep, in which drafts take the place of what was looked at. */
  readonly copy: Record<string, unknown>;
  isChanged: boolean;
}

/**
 * Returns what `recipe` makes of `base`, which is left as it was; parts that were not changed are the very same.
 * An object that the recipe returns is the next state, if it has changed nothing in the draft; a draft that it returns
 * means nothing, nor does what is no object, as `draft.n++` returns it. Throws a TypeError for a state without members,
 * for an async recipe, and for a returned object that would be lost or cannot be the state.
 */
export function produce<State>(base: State, recipe: (draft: State) => unknown): State {
  if (!hasMembers(base)) throw new TypeError("only an object or an array can be edited");
  const drafts = new Drafts();
  const draft = drafts.of(base);
  const returned: unknown = recipe(draft as State);
  if (returned instanceof Promise) throw new TypeError("an edit is made at once: it cannot be async");
  return drafts.finish(drafts.isNext(returned, draft) ? returned : draft) as State;
}

class Drafts {
  readonly #nodes = new WeakMap<object, Node>();
  #hasChanged = false;

  of(base: object): object {
    const copy = (Array.isArray(base) ? [...base] : { ...base }) as Node["copy"];
    const node: Node = { base, copy, isChanged: false };
    const draft = new Proxy(copy, {
      get: (target, key) => this.#read(target, key),
      set: (target, key, value) => this.#change(node) && assign(target, key, value),
      deleteProperty: (target, key) => this.#change(node) && Reflect.deleteProperty(target, key),
      defineProperty: (target, key, to) => this.#change(node) && Reflect.defineProperty(target, key, to),
    });
    this.#nodes.set(draft, node);
    return draft;
  }

  #change(node: Node): true {
    this.#hasChanged = true;
    return (node.isChanged = true);
  }

  /** Tells whether what a recipe has returned is to stand in the place of its draft. */
  isNext(returned: unknown, draft: object): boolean {
    if (typeof returned !== "object" || returned === null || this.#nodes.has(returned)) return false;
    // An instance of a class is none: its prototype would be lost.
    const isOfKind = hasMembers(returned) && Array.isArray(returned) === Array.isArray(draft);
    // What a method such as `splice` returns is no state.
    if (this.#hasChanged && !isOfKind) return false;
    if (this.#hasChanged || !isOfKind) {
      throw new TypeError("an edit changes its draft or returns the next state: write void before what is neither");
    }
    return true;
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
    const made: object = Array.isArray(source)
      ? Array.from({ ...Object.fromEntries(entries), length: source.length })
      : Object.fromEntries(entries);
    if (node) setOrigin(made, node.base);
    return made;
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
