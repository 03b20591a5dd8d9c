/** The people in a thread, as lists whose unchanged members stay the same objects. */

import type { ThreadClient } from "./client.js";
import { isContainer, share } from "./json.js";
import type { DeepReadonly } from "./json.js";

/** A person in the thread: stays the same object until its presence changes. */
export interface Person<Shown = any> {
  readonly connection: string;
  readonly presence: DeepReadonly<Shown>;
}

export interface People {
  readonly others: readonly Person[];
  /** The others, by their connections. */
  readonly byId: { readonly [connection: string]: Person };
  /** This client, with the presence that it has set; undefined before the first join. */
  readonly self: Person | undefined;
  /** The values of the client from which this was made. */
  readonly made: readonly unknown[];
}

export const NOBODY: People = { others: [], byId: {}, self: undefined, made: [] };

// All components of a page share one list.
const known = new WeakMap<object, People>();

/** Returns the people in a thread: the same object until one of them changes. */
export function peopleOf(thread: ThreadClient<any, any, any, any>): People {
  const before = known.get(thread) ?? NOBODY;
  const { presence: record, connection: own, ownPresence } = thread;
  const made = [record, own, ownPresence];
  if (isShallowEqual(before.made, made)) return before;
  const all = Object.keys(record).map((connection) => [connection, { connection, presence: record[connection] }]);
  const others = Object.fromEntries(all.filter(([connection]) => connection !== own)) as People["byId"];
  const byId = share(before.byId, others);
  const people: People = {
    byId,
    others: byId === before.byId ? before.others : Object.values(byId),
    self: own === undefined ? own : share(before.self, { connection: own, presence: ownPresence }),
    made,
  };
  known.set(thread, people);
  return people;
}

/** Tells whether two values are equal, or lists or objects with equal members. */
export function isShallowEqual(a: unknown, b: unknown): boolean {
  if (Object.is(a, b)) return true;
  if (!isContainer(a) || !isContainer(b) || Array.isArray(a) !== Array.isArray(b)) return false;
  const keys = Object.keys(a);
  return (
    keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && Object.is(a[key], b[key]))
  );
}
