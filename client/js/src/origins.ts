/** What values were made of: an element of a list that was edited is known by that, also without an id. */

const origins = new WeakMap<object, object>();

/** Remembers that `made` is `origin`, changed. */
export function setOrigin(made: object, origin: object): void {
  origins.set(made, origin);
}

/** Returns what a value is a changed copy of, undefined where that is not known. */
export function originOf(value: unknown): object | undefined {
  return typeof value === "object" && value !== null ? origins.get(value) : undefined;
}
