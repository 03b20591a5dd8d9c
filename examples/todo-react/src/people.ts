/** Presence: the people who are here and their actions. It lasts as long as its connection. */

import { usePresence } from "plait-client/react";
import { useCallback, useEffect, useMemo, useState } from "react";
import type { CSSProperties } from "react";

import type { TodoList } from "./list.ts";

/** The data that each page shows of its user. */
export interface Person {
  name: string;
  hue: number;
  /** The id of the todo whose title is being edited, or NEW. */
  at?: string | undefined;
  /** The title that is typed so far. */
  draft?: string | undefined;
}

export interface People {
  /** The people by the ids of their connections. */
  others: ReadonlyMap<string, Person>;
  /** The people by the ids of the todos that they edit; an object stays the same until its content changes. */
  editors: ReadonlyMap<string, Person>;
}

/** The place of a person who writes a todo that is not on the list yet. Ids of todos have no capitals. */
export const NEW = "NEW";

const KEY = "todos:me";
const NAMES = ["Otter", "Heron", "Lynx", "Wren", "Hare", "Marten", "Plover", "Badger"];

export type Show = (change: Partial<Person>) => void;

/** This page's user, and the function that changes what the others see of them. */
export function useMe(list: TodoList): [Person, Show] {
  const [me, setMe] = useState(stored);
  const show = useCallback<Show>((change) => setMe((before) => ({ ...before, ...change })), []);
  useEffect(() => {
    if (list.status !== "closed") list.setPresence(me);
  }, [list, me]);
  useEffect(() => localStorage.setItem(KEY, JSON.stringify({ name: me.name, hue: me.hue })), [me.name, me.hue]);
  return [me, show];
}

export function usePeople(list: TodoList): People {
  const presence = usePresence(list);
  const own = list.connection;
  return useMemo(() => {
    const others = new Map<string, Person>();
    const editors = new Map<string, Person>();
    for (const [connection, shown] of Object.entries(presence)) {
      if (connection === own || !isPerson(shown)) continue;
      others.set(connection, shown);
      if (shown.at) editors.set(shown.at, shown);
    }
    return { others, editors };
  }, [presence, own]);
}

/** The colour of a person, for the style sheet. */
export function hue(person: Person | undefined): CSSProperties {
  return { "--hue": person?.hue ?? 0 } as CSSProperties;
}

function stored(): Person {
  try {
    const kept: unknown = JSON.parse(localStorage.getItem(KEY) ?? "null");
    if (isPerson(kept)) return kept;
  } catch {
    // The stored value is not ours, or there is no storage.
  }
  const name = NAMES[Math.floor(Math.random() * NAMES.length)] ?? "Guest";
  return { name, hue: Math.floor(Math.random() * 360) };
}

// The server does not check presence: a client may send any JSON.
function isPerson(value: unknown): value is Person {
  if (typeof value !== "object" || value === null) return false;
  const { name, hue, at = "", draft = "" } = value as Record<string, unknown>;
  return typeof name === "string" && typeof hue === "number" && typeof at === "string" && typeof draft === "string";
}
