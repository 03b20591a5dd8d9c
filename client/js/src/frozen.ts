/** What is handed out and must not be changed in place, as its holders would see a state that the server has not. */

/** A type whose values are not to be changed, at any depth. */
export type DeepReadonly<T> = 0 extends 1 & T
  ? T
  : T extends (...args: never) => unknown
    ? T
    : T extends object
      ? { readonly [Key in keyof T]: DeepReadonly<T[Key]> }
      : T;

/** Returns `value`, which nobody can change from then on; what is frozen is taken to be so in all its parts. */
export function freeze<T>(value: T): T {
  if (typeof value !== "object" || value === null || Object.isFrozen(value)) return value;
  if (Array.isArray(value)) for (const item of value) freeze(item);
  else for (const key of Object.keys(value)) freeze((value as Record<string, unknown>)[key]);
  return Object.freeze(value);
}
