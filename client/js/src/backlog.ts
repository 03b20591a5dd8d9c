/** The data that a client keeps in a storage for the next page, and the check of data that was read from there. */

import { parse as parseJson } from "./exact.js";
import { newPush } from "./fold.js";
import type { Fold, Places } from "./fold.js";
import { freeze, isObject, plain } from "./json.js";
import type { Document, JsonObject } from "./json.js";
import { parse, regionOf } from "./patch.js";
import type { Splice } from "./patch.js";
import type { Pending } from "./pending.js";
import type { Op, Version } from "./protocol.js";
import type { Session } from "./session.js";

/** A client's id and its unanswered pushes. */
export interface Backlog {
  client: string;
  /** The ref of the next push. */
  next: number;
  fold?: KeptFold | undefined;
}

/** The places are those of the last join. */
interface KeptFold extends Places {
  at: Version;
  confirmed?: Document;
  pushes: KeptPush[];
}

interface KeptPush extends Pick<Pending, "ref" | "made" | "ops">, Partial<Answerable> {
  /**
   * Whether the push may have been sent under this ref, perhaps by a copy of the page; true unless set. False for a
   * push made before the page had joined: another page may have used the ref.
   */
  isSent?: boolean;
}

type Answerable = Pick<Pending, "lostOn" | "isOrphan" | "isSettled">;

/** Returns the data to keep of a session, if it has changed since the last call; undefined otherwise. */
export function takeBacklog({ queue }: Session): Backlog | undefined {
  const { client, next, fold } = queue;
  // Pushes are kept together with the state that they are based on.
  const isMoved = queue.all.length > 0 && fold.at !== queue.keptAt;
  if (!queue.isDirty && !isMoved) return undefined;
  queue.isDirty = false;
  queue.keptAt = fold.at;
  return { client, next, fold: keptOf(fold) };
}

/** Returns the state with which the next page can continue; undefined if the server will send all of it. */
function keptOf({ at, confirmed, pushes, hasJoined, places }: Fold): KeptFold | undefined {
  if (at === undefined || pushes.length === 0) return undefined;
  const kept = pushes.map(({ sent, isShown: _, ...push }) => ({ ...push, isSent: hasJoined || sent !== undefined }));
  return { at, confirmed, pushes: kept, ...places };
}

/** Continues in a session the state of an earlier page. Only before the first socket opens. */
export function restore(session: Session, { client, next, fold: kept }: Backlog): void {
  const { queue } = session;
  Object.assign(queue, { client, next });
  if (!kept) return;
  const { at, confirmed, pushes, list_keys, texts } = kept;
  const { fold } = queue;
  fold.at = at;
  fold.declare({ list_keys, texts });
  fold.confirmed = freeze(confirmed);
  fold.pushes = pushes.map(({ isSent = true, ...push }) => ({
    ...newPush(push.ref, push.made, push.ops),
    ...push,
    sent: isSent ? push.ops : undefined,
  }));
  fold.refold([]);
  session.tell({ type: "restored" });
}

/** Returns the backlog in a text; undefined if it is invalid. */
export function readBacklog(text: string): Backlog | undefined {
  try {
    const value: unknown = parseJson(text);
    return isBacklog(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

function isBacklog(value: unknown): value is Backlog {
  if (!isObject(value)) return false;
  const { client, next, fold } = value;
  if (typeof client !== "string" || client === "" || !isCount(next) || next < 1) return false;
  return fold === undefined || (isObject(fold) && isFold(fold, next));
}

function isFold({ at, confirmed, pushes, list_keys = {}, texts = [] }: JsonObject, next: number): boolean {
  if (!isVersion(at) || !Array.isArray(pushes)) return false;
  if (!isObject(list_keys) || !Array.isArray(texts)) return false;
  if (![...Object.values(list_keys), ...texts].every((each) => typeof each === "string")) return false;
  // Only a thread at version 0 has no state.
  if (confirmed !== undefined) plain(confirmed);
  else if (at[1] > 0) return false;
  let last = 0;
  return pushes.every((push: unknown) => {
    if (!isObject(push) || !isPush(push) || push.ref <= last || push.ref >= next) return false;
    last = push.ref;
    return true;
  });
}

function isPush(push: JsonObject): push is JsonObject & { ref: number } {
  const { ref, made, ops, lostOn, isOrphan = false, isSettled = false, isSent = true } = push;
  if (!isCount(ref) || !isVersion(made) || !(lostOn === undefined || isVersion(lostOn))) return false;
  if (![isOrphan, isSettled, isSent].every((flag) => typeof flag === "boolean")) return false;
  return Array.isArray(ops) && ops.every(isOp);
}

/** Tells whether a value is an operation. Throws if its path or value cannot be sent. */
function isOp(value: unknown): boolean {
  if (!isObject(value)) return false;
  const { op, path } = value;
  if (typeof path !== "string" || !isName(op)) return false;
  plain(parse(path));
  if (op === "splice") return plain(regionOf(value as unknown as Splice).insert) !== undefined;
  if (op === "remove") return path !== "";
  return plain(value["value"]) !== undefined;
}

function isName(op: unknown): op is Op["op"] {
  return ["remove", "add", "replace", "splice"].includes(op as string);
}

function isVersion(value: unknown): value is readonly [string, number] {
  return Array.isArray(value) && value.length === 2 && typeof value[0] === "string" && isCount(value[1]);
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}
