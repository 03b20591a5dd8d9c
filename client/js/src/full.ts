/** The client with all its parts, as servers hand it out: each option of a part is set. */

import { ThreadClient as Client } from "./client.js";
import { compare } from "./compare.js";
import { keepIn } from "./keep.js";
import type { AnyEvents } from "./listeners.js";
import type { ThreadOptions } from "./options.js";
import type { AnyRpcs } from "./rpc.js";
import type { StorageLike } from "./storage.js";
import { text } from "./text-part.js";
import { undo } from "./undo.js";

export { bindText } from "./bind-text.js";
export { PlaitError } from "./errors.js";

/** The client that a thread's page gets: `storage` may be localStorage, sessionStorage or the like itself. */
export type FullOptions<State> = Omit<ThreadOptions<State>, "storage"> & { storage?: StorageLike | undefined };

const FullClient = class ThreadClient extends Client {
  constructor({ storage, ...options }: FullOptions<any>) {
    super({ compare, text, undo, ...options, storage: storage && keepIn(storage) });
  }
};

export type ThreadClient<State = any, Rpcs = AnyRpcs, Events = AnyEvents> = Client<State, Rpcs, Events>;

export const ThreadClient = FullClient as unknown as Pick<typeof Client, "onRefused"> & {
  new <State = any, Rpcs = AnyRpcs, Events = AnyEvents>(options: FullOptions<State>): ThreadClient<State, Rpcs, Events>;
};
