/** The types of a thread's methods, and a face on which they look like methods. */

/** The methods of a thread, by their names on the server: `{ add_player(name: string): number }`. */
export type AnyRpcs = Record<string, (...args: any[]) => any>;

type Camel<Name extends string> = Name extends `${infer Head}_${infer Tail}`
  ? `${Head}${Capitalize<Camel<Tail>>}`
  : Name;

export type ArgsOf<Rpcs, Name extends keyof Rpcs> = Rpcs[Name] extends (...args: infer Args) => unknown ? Args : never;

export type ResultOf<Rpcs, Name extends keyof Rpcs> = Rpcs[Name] extends (...args: never) => infer Returned
  ? Awaited<Returned>
  : never;

/** Each method under its name, and under its name in camel case. */
export type RpcFace<Rpcs> = {
  readonly [Name in keyof Rpcs & string as Name | Camel<Name>]: (
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
