/** Drafts: copies of a state, made as they are read, that a function may change in place. */

import { DRAFT, copyOf, isContainer, draftOf, setOwn } from "./json.js";

/**
 * Calls `recipe` with a draft of `base`, which is not changed. Returns the value from which `plain` makes the next
 * state: the draft, or an object that the recipe returns without having changed the draft. A returned draft or scalar
 * is ignored, such as that of `draft.n++`. Throws a TypeError if the state is not an object or array, if the recipe is
 * async, and for a returned object that would be lost or cannot be the state.
 */
export function edited<State>(base: State, recipe: (draft: State) => unknown): unknown {
  if (!hasMembers(base)) throw new TypeError("only an object or an array can be edited: use set");
  let hasChanged = false;
  const draft = newDraft(base, () => (hasChanged = true));
  const returned: unknown = recipe(draft as State);
  if (returned instanceof Promise) throw new TypeError("an edit cannot be async: await before it");
  if (!isContainer(returned) || draftOf(returned)) return draft;
  // An instance of a class cannot be a state: its prototype would be lost.
  const isOfKind = hasMembers(returned) && Array.isArray(returned) === Array.isArray(base);
  // Methods such as `splice` return objects that are not meant as the state.
  if (hasChanged === isOfKind)
    throw new TypeError("an edit changes its draft or returns the next state: put void before any other value");
  return isOfKind ? returned : draft;
}

/** Returns a draft of an object: a shallow copy, in which members that are read are replaced by drafts. */
function newDraft(base: object, change: () => true): object {
  const copy = copyOf(base);
  return new Proxy(copy, {
    get(target, key) {
      if (key === DRAFT) return { base, copy };
      if (typeof key === "symbol") return Reflect.get(target, key);
      if (!Object.hasOwn(target, key)) return inherited(target, key);
      const value = target[key];
      return hasMembers(value) && !draftOf(value) ? (target[key] = newDraft(value, change)) : value;
    },
    set: (target, key, value) => change() && setOwn(target, key, value),
    deleteProperty: (target, key) => change() && Reflect.deleteProperty(target, key),
    defineProperty: (target, key, to) => change() && Reflect.defineProperty(target, key, to),
  });
}

/** The guard of each function. */
const guards = new WeakMap<object, unknown>();

/**
 * Returns an inherited method that can only be called: no path of keys may lead to a prototype, which all objects
 * share.
 */
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
