/** Drafts: copies of a state, made as they are read, that a function may change in place. */

import { checkDepth, setOrigin } from "./json.js";

interface Node {
  /** The object that the draft is of; it is never changed. */
  readonly base: object;
  /** A shallow copy of it, in which members that were read are replaced by drafts. */
  readonly copy: Record<string, unknown>;
  isChanged: boolean;
}

/**
 * Returns the state that `recipe` makes of a draft of `base`, which is not changed; unchanged parts stay the same
 * objects. An object that the recipe returns without having changed the draft is the next state. A returned draft or
 * scalar is ignored, such as that of `draft.n++`. Throws a TypeError where the state is no object or array, where the
 * recipe is async, and for a returned object that would be lost or cannot be the state.
 */
export function produce<State>(base: State, recipe: (draft: State) => unknown): State {
  if (!hasMembers(base)) throw new TypeError("only an object or an array can be edited: use set for any other state");
  const drafts = new Drafts();
  const draft = drafts.of(base);
  const returned: unknown = recipe(draft as State);
  if (returned instanceof Promise) throw new TypeError("an edit cannot be async: await before it");
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

  /** Tells whether the value that a recipe has returned is the next state, in place of its draft. */
  isNext(returned: unknown, draft: object): boolean {
    if (typeof returned !== "object" || returned === null || this.#nodes.has(returned)) return false;
    // An instance of a class cannot be a state: its prototype would be lost.
    const isOfKind = hasMembers(returned) && Array.isArray(returned) === Array.isArray(draft);
    // Methods such as `splice` return objects that are not meant as the state.
    if (this.#hasChanged && !isOfKind) return false;
    if (this.#hasChanged || !isOfKind) {
      throw new TypeError(
        "an edit either changes its draft or returns the next state: put void before a value that is neither",
      );
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
      // A member that was not read is unchanged.
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

/** Sets an own member, where an assignment could call a setter of the prototype. */
function assign(target: object, key: string | symbol, value: unknown): boolean {
  if (Object.hasOwn(target, key)) return Reflect.set(target, key, value);
  return Reflect.defineProperty(target, key, { value, writable: true, enumerable: true, configurable: true });
}

/** The guard of each function. */
const guards = new WeakMap<object, unknown>();

/** Returns an inherited method that can only be called: no path of keys may lead to a prototype, which all share. */
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
