/** What a client keeps in a storage for the next page, and the check of what was read from there. */

import { parse as parseJson } from "./exact.js";
import type { KeptFold } from "./fold.js";
import { isObject, plain } from "./json.js";
import type { JsonObject } from "./json.js";
import { parse, regionOf } from "./patch.js";
import type { Splice } from "./patch.js";
import type { Op } from "./protocol.js";

/** A client's id and its unanswered pushes. */
export interface Backlog {
  client: string;
  /** The ref of the next push. */
  next: number;
  fold?: KeptFold | undefined;
}

/** Returns the backlog in a text; undefined where it is invalid. */
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

/** Tells whether a value is an operation. Throws where its path or value cannot be sent. */
function isOp(value: unknown): boolean {
  if (!isObject(value)) return false;
  const { op, path } = value;
  if (typeof path !== "string" || !isName(op)) return false;
  plain(parse(path));
  if (op === "splice") return plain(regionOf(value as unknown as Splice).insert) !== undefined;
  if (op === "remove") return path !== "";
  return value["value"] !== undefined && plain(value["value"]) !== undefined;
}

function isName(op: unknown): op is Op["op"] {
  return op === "remove" || op === "add" || op === "replace" || op === "splice";
}

function isVersion(value: unknown): value is readonly [string, number] {
  return Array.isArray(value) && value.length === 2 && typeof value[0] === "string" && isCount(value[1]);
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}
