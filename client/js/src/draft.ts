/** Drafts: copies of a state, made as they are read, that a function may change in place. */

import { checkDepth, copyOf, isContainer, setOrigin, setOwn } from "./json.js";

interface Node {
  /** The object that the draft is of; it is never changed. */
  readonly base: Container;
  /** A shallow copy of it, in which members that were read are replaced by drafts. */
  readonly copy: Container;
  isChanged: boolean;
}

type Container = Record<string, unknown>;

/**
 * Returns the state that `recipe` makes of a draft of `base`, which is not changed; unchanged parts stay the same
 * objects. An object that the recipe returns without having changed the draft is the next state. A returned draft or
 * scalar is ignored, such as that of `draft.n++`. Throws a TypeError where the state is no object or array, where the
 * recipe is async, and for a returned object that would be lost or cannot be the state.
 */
export function produce<State>(base: State, recipe: (draft: State) => unknown): State {
  if (!hasMembers(base)) throw new TypeError("only an object or an array can be edited: use set");
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
    const copy = copyOf(base);
    const node = { base, copy, isChanged: false } as Node;
    const change = () => (this.#hasChanged = node.isChanged = true);
    const draft = new Proxy(copy, {
      get: (target, key) => this.#read(target, key),
      set: (target, key, value) => change() && setOwn(target, key, value),
      deleteProperty: (target, key) => change() && Reflect.deleteProperty(target, key),
      defineProperty: (target, key, to) => change() && Reflect.defineProperty(target, key, to),
    });
    this.#nodes.set(draft, node);
    return draft;
  }

  /** Tells whether the value that a recipe has returned is the next state, in place of its draft. */
  isNext(returned: unknown, draft: object): boolean {
    if (!isContainer(returned) || this.#nodes.has(returned)) return false;
    // An instance of a class cannot be a state: its prototype would be lost.
    const isOfKind = hasMembers(returned) && Array.isArray(returned) === Array.isArray(draft);
    // Methods such as `splice` return objects that are not meant as the state.
    if (this.#hasChanged === isOfKind)
      throw new TypeError("an edit changes its draft or returns the next state: put void before any other value");
    return isOfKind;
  }

  #read(target: Container, key: string | symbol): unknown {
    if (typeof key === "symbol") return Reflect.get(target, key);
    if (!Object.hasOwn(target, key)) return inherited(target, key);
    const value = target[key];
    return hasMembers(value) && !this.#nodes.has(value) ? (target[key] = this.of(value)) : value;
  }

  /** Returns the value without drafts in it. */
  finish(value: unknown, depth = 0): unknown {
    if (!hasMembers(value)) return value;
    checkDepth(depth);
    const node = this.#nodes.get(value);
    const { base, copy, isChanged } = node ?? ({ base: value, copy: value, isChanged: false } as Node);
    const made = copyOf(copy);
    let isMade = isChanged;
    for (const key of Object.keys(made)) {
      // A member that was not read is unchanged.
      if (!node || copy[key] !== base[key]) made[key] = this.finish(copy[key], depth + 1);
      isMade ||= made[key] !== base[key];
    }
    if (!isMade) return base;
    if (node) setOrigin(made, base);
    return made;
  }
}

/** The guard of each function. */
const guards = new WeakMap<object, unknown>();

/** Returns an inherited method that can only be called: no path of keys may lead to a prototype, which all share. */
function inherited(target: object, key: string | symbol): unknown {
  if (key === "__proto__" || key === "constructor" || key === "prototype") return undefined;
  const value: unknown = Reflect.get(target, key);
  if (typeof value !== "function") return value;
  const refuse = () => false;
  // A member that is set is defined.
  const traps = { get: inherited, defineProperty: refuse, deleteProperty: refuse, setPrototypeOf: refuse };
  const guard = guards.get(value) ?? new Proxy(value, traps);
  guards.set(value, guard);
  return guard;
}

function hasMembers(value: unknown): value is object {
  if (!isContainer(value) || Array.isArray(value)) return isContainer(value);
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}
