/** The people in a thread, as lists whose unchanged members stay the same objects. */

import type { ThreadClient } from "./client.js";
import type { DeepReadonly, Json } from "./json.js";
import { isContainer } from "./json.js";
import type { PresenceRecord } from "./presence.js";

/** Somebody in the thread: stays the same object until its presence changes. */
export interface Person<Shown = any> {
  readonly connection: string;
  readonly presence: DeepReadonly<Shown>;
}

interface People {
  readonly record: PresenceRecord;
  readonly others: readonly Person[];
  readonly byId: ReadonlyMap<string, Person>;
  /** This client, with the presence that it has set; undefined before the first join. */
  readonly self: Person | undefined;
}

export const NOBODY: People = { record: {}, others: [], byId: new Map(), self: undefined };

// All components of a page share one list.
const known = new WeakMap<object, People>();

/** Returns the people in a thread: the same object until one of them changes. */
export function peopleOf(thread: ThreadClient<any, any, any, any>): People {
  const before = known.get(thread) ?? NOBODY;
  const { presence: record, connection, ownPresence } = thread;
  const self = connection === undefined ? undefined : same(before.self, connection, ownPresence);
  if (before.record === record && before.self === self) return before;
  const { byId, others } =
    before.record === record && before.self?.connection === connection ? before : othersIn(record, connection, before);
  const people = { record, others, byId, self };
  known.set(thread, people);
  return people;
}

function othersIn(record: PresenceRecord, own: string | undefined, before: People): Pick<People, "others" | "byId"> {
  const others = Object.entries(record)
    .filter(([connection]) => connection !== own)
    .map(([connection, presence]) => same(before.byId.get(connection), connection, presence));
  return { others, byId: new Map(others.map((other) => [other.connection, other])) };
}

/** Returns a person; the known one if it is the same. */
function same(before: Person | undefined, connection: string, presence: Json): Person {
  const isSame = before?.connection === connection && before.presence === presence;
  return isSame ? before : { connection, presence };
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
