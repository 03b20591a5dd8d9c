/** The types of a thread's methods, and the object that has them as methods. */

import type { DeepReadonly } from "./json.js";

/**
 * The methods of a thread, by their names on the server: `{ add_player(name: string): number }`. A method that streams
 * returns an AsyncIterable of its chunks. `plait types` writes such a type.
 */
export type AnyRpcs = Record<string, (...args: any[]) => any>;

/** A part that does not begin with a lowercase letter keeps its underscore, because it could not be restored. */
type Camel<Name extends string> = Name extends `${infer Head}_${infer Tail}`
  ? Tail extends Capitalize<Tail>
    ? `${Head}_${Camel<Tail>}`
    : `${Head}${Capitalize<Camel<Tail>>}`
  : Name;

export type ArgsOf<Rpcs, Name extends keyof Rpcs> = Rpcs[Name] extends (...args: infer Args) => unknown ? Args : never;

type Returned<Rpcs, Name extends keyof Rpcs> = Rpcs[Name] extends (...args: never) => infer Value ? Value : never;

/** The result of a method; for one that streams, its final value. */
export type ResultOf<Rpcs, Name extends keyof Rpcs> =
  Returned<Rpcs, Name> extends AsyncIterable<unknown> ? unknown : Awaited<Returned<Rpcs, Name>>;

/** The names of the queries among the methods: `{ open_orders: { query(customer: string): Order[] } }`. */
export type QueryName<Rpcs> = string extends keyof Rpcs
  ? string
  : keyof Rpcs extends infer Name
    ? Name extends keyof Rpcs & string
      ? "query" extends keyof Rpcs[Name]
        ? Name
        : never
      : never
    : never;

type Queried<Rpcs, Name> = Name extends keyof Rpcs
  ? Rpcs[Name] extends { query: unknown }
    ? Rpcs[Name]
    : { query(...args: any[]): any }
  : { query(...args: any[]): any };

/** The arguments of a query. */
export type QueryArgs<Rpcs, Name> = ArgsOf<Queried<Rpcs, Name>, "query">;

/** The result of a query, which is frozen. */
export type RowsOf<Rpcs, Name> = DeepReadonly<ResultOf<Queried<Rpcs, Name>, "query">>;

/** The chunks of a method that streams. */
export type ChunkOf<Rpcs, Name extends keyof Rpcs> = 0 extends 1 & Returned<Rpcs, Name>
  ? any
  : Returned<Rpcs, Name> extends AsyncIterable<infer Chunk>
    ? Chunk
    : never;

type FaceName<Name extends string> = string extends Name
  ? Name
  : Name extends Lowercase<Name>
    ? Exclude<Name | Camel<Name>, Taken>
    : never;

/** Names that the language and tools look up on any object; they keep their usual meaning. */
type Taken = "then" | "toJSON" | "inspect" | "asymmetricMatch" | keyof typeof Object.prototype;

/**
 * Each method by its name, and by its name in camel case. A name with capitals, or one that any object has, such as
 * `toString`, is left out: `call` calls it.
 */
export type RpcFace<Rpcs> = {
  readonly [Name in keyof Rpcs & string as Rpcs[Name] extends { query: unknown } ? never : FaceName<Name>]: (
    ...args: ArgsOf<Rpcs, Name>
  ) => Promise<ResultOf<Rpcs, Name>>;
};

const TAKEN = ["then", "toJSON", "inspect", "asymmetricMatch", "$$typeof"];

/** Returns an object whose methods call `call`, with names in camel case turned into snake case. */
export function rpcFace<Rpcs>(call: (method: string, args: unknown[]) => Promise<unknown>): RpcFace<Rpcs> {
  return new Proxy({} as RpcFace<Rpcs>, {
    get: (target, name) => {
      // `await` takes an object with `then` for a promise; the other names are read by consoles and test tools.
      if (typeof name === "symbol" || TAKEN.includes(name) || name in target) return Reflect.get(target, name);
      const method = name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
      return (...args: unknown[]) => call(method, args);
    },
  });
}
