/** The kinds of threads of an app, and the client of each: `plait types` adds them. */

import type { ThreadClient } from "./client.js";
import type { AnyEvents } from "./listeners.js";
import type { AnyRpcs } from "./rpc.js";

/** The kinds of an app, by name: `{ card: { state: CardState; rpcs: CardRpcs; events: CardEvents } }`. */
export interface Kinds {}

/** The name of a kind: one of `Kinds`, if that has any. */
export type KindName = [keyof Kinds] extends [never] ? string : keyof Kinds & string;

type Of<Kind, Member extends string, Otherwise> = Kind extends keyof Kinds
  ? Kinds[Kind] extends { [Name in Member]: infer Found }
    ? Found
    : Otherwise
  : Otherwise;

/** The state of a kind; `any` for one that is not in `Kinds`. */
export type StateOf<Kind> = Of<Kind, "state", any>;

/** The client of a thread of a kind, whose state has come. */
export type RoomOf<Kind> = ThreadClient<StateOf<Kind>, Of<Kind, "rpcs", AnyRpcs>, Of<Kind, "events", AnyEvents>, never>;
