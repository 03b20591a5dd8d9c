/** The types of a thread's methods, and a face on which they look like methods. */

/**
 * The methods of a thread, by their names on the server: `{ add_player(name: string): number }`. One that streams
 * returns an AsyncIterable of its chunks. `plait types` writes such a type.
 */
export type AnyRpcs = Record<string, (...args: any[]) => any>;

/** A part that does not begin with a small letter keeps its underscore, without which it could not be found again. */
type Camel<Name extends string> = Name extends `${infer Head}_${infer Tail}`
  ? Tail extends Capitalize<Tail>
    ? `${Head}_${Camel<Tail>}`
    : `${Head}${Capitalize<Camel<Tail>>}`
  : Name;

export type ArgsOf<Rpcs, Name extends keyof Rpcs> = Rpcs[Name] extends (...args: infer Args) => unknown ? Args : never;

type Returned<Rpcs, Name extends keyof Rpcs> = Rpcs[Name] extends (...args: never) => infer Value ? Value : never;

/** What a method returns; of one that streams, what comes with its end. */
export type ResultOf<Rpcs, Name extends keyof Rpcs> =
  Returned<Rpcs, Name> extends AsyncIterable<unknown> ? unknown : Awaited<Returned<Rpcs, Name>>;

/** What a method streams, if it does. */
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

/** What the language and tools call on anything, without being asked to: there it means what it means on any object. */
type Taken = "then" | "toJSON" | "inspect" | "asymmetricMatch" | keyof typeof Object.prototype;

/**
 * Each method under its name, and under its name in camel case; one whose name has capitals, or is called on anything,
 * as `toString` is, is only to be called by `call`.
 */
export type RpcFace<Rpcs> = {
  readonly [Name in keyof Rpcs & string as FaceName<Name>]: (
    ...args: ArgsOf<Rpcs, Name>
  ) => Promise<ResultOf<Rpcs, Name>>;
};

const TAKEN: ReadonlySet<string> = new Set(["then", "toJSON", "inspect", "asymmetricMatch", "$$typeof"]);

/** Returns a face whose methods call `call`, with names in camel case turned into those of Python. */
export function rpcFace<Rpcs>(call: (method: string, args: unknown[]) => Promise<unknown>): RpcFace<Rpcs> {
  return new Proxy({} as RpcFace<Rpcs>, {
    get: (target, name) => {
      // To `await`, what has a `then` is a promise; the others are called by whoever shows or compares a value.
      if (typeof name === "symbol" || TAKEN.has(name) || name in target) return Reflect.get(target, name);
      const method = name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
      return (...args: unknown[]) => call(method, args);
    },
  });
}
