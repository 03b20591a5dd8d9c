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
    ? Name | Camel<Name>
    : never;

/** Each method under its name, and under its name in camel case; one whose name has capitals is only to be called. */
export type RpcFace<Rpcs> = {
  readonly [Name in keyof Rpcs & string as FaceName<Name>]: (
    ...args: ArgsOf<Rpcs, Name>
  ) => Promise<ResultOf<Rpcs, Name>>;
};

/** Returns a face whose methods call `call`, with names in camel case turned into those of Python. */
export function rpcFace<Rpcs>(call: (method: string, args: unknown[]) => Promise<unknown>): RpcFace<Rpcs> {
  return new Proxy({} as RpcFace<Rpcs>, {
    get: (_, name) => {
      // To `await`, what has a `then` is a promise.
      if (typeof name === "symbol" || name === "then") return undefined;
      const method = name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
      return (...args: unknown[]) => call(method, args);
    },
  });
}
