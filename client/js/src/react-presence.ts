/** The React hooks for the people in a thread. */

import { useCallback } from "react";

import { itself, useSelected, useValue } from "./hooks.js";
import type { AnyClient } from "./hooks.js";
import { own } from "./json.js";
import { NOBODY, isShallowEqual, peopleOf } from "./people.js";
import type { People, Person } from "./people.js";
import type { PresenceRecord } from "./presence.js";

type Equality = (a: any, b: any) => boolean;

const NO_PRESENCE: PresenceRecord = {};

/** The presence of each connection, by its id. */
export function usePresence(thread: AnyClient): PresenceRecord {
  return useValue(thread, () => thread.presence, NO_PRESENCE);
}

/**
 * The others who show a presence, or the result of `selector` for them; the component renders again when that differs
 * by `isEqual`, by default in one of its members. A person stays the same object until its presence changes.
 */
export function useOthers<Shown = any>(thread: AnyClient): readonly Person<Shown>[];
export function useOthers<Shown = any, Selected = unknown>(
  thread: AnyClient,
  selector: (others: readonly Person<Shown>[]) => Selected,
  isEqual?: (a: Selected, b: Selected) => boolean,
): Selected;
export function useOthers(
  thread: AnyClient,
  selector?: (others: readonly Person[]) => unknown,
  isEqual?: Equality,
): unknown {
  return usePeople(thread, ({ others }) => others, selector, isEqual);
}

/** The presence of one of the others, or the result of `selector` for it; undefined when it shows none. */
export function useOther<Shown = any>(thread: AnyClient, connection: string): Person<Shown>["presence"] | undefined;
export function useOther<Shown = any, Selected = unknown>(
  thread: AnyClient,
  connection: string,
  selector: (presence: Person<Shown>["presence"]) => Selected,
  isEqual?: (a: Selected, b: Selected) => boolean,
): Selected | undefined;
export function useOther(
  thread: AnyClient,
  connection: string,
  selector?: (presence: any) => unknown,
  isEqual?: Equality,
): unknown {
  return usePeople(thread, ({ byId }) => (own(byId, connection) as Person | undefined)?.presence, selector, isEqual);
}

/** This client and the presence that it has set, or the result of `selector` for them; undefined before the first join. */
export function useSelf<Shown = any>(thread: AnyClient): Person<Shown> | undefined;
export function useSelf<Shown = any, Selected = unknown>(
  thread: AnyClient,
  selector: (self: Person<Shown>) => Selected,
  isEqual?: (a: Selected, b: Selected) => boolean,
): Selected | undefined;
export function useSelf(thread: AnyClient, selector?: (self: Person) => unknown, isEqual?: Equality): unknown {
  return usePeople(thread, ({ self }) => self, selector, isEqual);
}

/** What `selector` makes of a value of the people, by default the value itself; undefined if there is none. */
function usePeople(
  thread: AnyClient,
  read: (people: People) => unknown,
  selector: (value: any) => unknown = itself,
  isEqual: Equality = isShallowEqual,
): unknown {
  return useSelected(
    thread,
    () => read(peopleOf(thread)),
    () => read(NOBODY),
    useCallback((value: unknown) => (value === undefined ? value : selector(value)), [selector]),
    isEqual,
  );
}
