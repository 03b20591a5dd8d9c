/** The types of places in a state, and of values that JSON can hold. */

import type { Json } from "./json.js";

/** `pointer` if it leads somewhere in a state, or if only its type is known: a string. */
export type PlaceIn<State, Pointer extends string> = string extends Pointer
  ? Pointer
  : [ValueAt<State, Pointer>] extends [never]
    ? never
    : Pointer;

/** The value at a JSON pointer; never if it leads nowhere, unknown if that cannot be decided. */
export type ValueAt<State, Pointer extends string> = 0 extends 1 & State
  ? unknown
  : unknown extends State
    ? unknown
    : Pointer extends ""
      ? State
      : Pointer extends `/${infer Head}/${infer Tail}`
        ? ValueAt<Member<State, Head>, `/${Tail}`>
        : Pointer extends `/${infer Name}`
          ? Member<State, Name>
          : string extends Pointer
            ? unknown
            : never;

/** A member of an object or an element of an array. A name with `~` is an escaped one, and nothing is known of it. */
type Member<Container, Name extends string> = Name extends `${string}~${string}`
  ? unknown
  : Container extends readonly (infer Element)[]
    ? Name extends `${number}` | "-"
      ? Element
      : string extends Name
        ? unknown
        : never
    : Container extends object
      ? string extends Name
        ? unknown
        : Name extends keyof Container
          ? Container[Name]
          : Name extends `${infer Index extends number}`
            ? Index extends keyof Container
              ? Container[Index]
              : never
            : never
      : never;

/**
 * `Value` without parts that JSON cannot hold: symbols, functions, and objects whose content is not in their members.
 */
export type Sendable<Value> = Value extends Json
  ? Value
  : Value extends symbol | ReadonlyMap<any, any> | ReadonlySet<any> | PromiseLike<any>
    ? never
    : Value extends { toJSON(): unknown }
      ? Value
      : Value extends (...args: never) => unknown
        ? never
        : Value extends ArrayBuffer | ArrayBufferView
          ? Value
          : Value extends object
            ? {
                [Name in keyof Value]: Value[Name] extends (...args: never) => unknown
                  ? Value[Name]
                  : Sendable<Value[Name]>;
              }
            : Value;
