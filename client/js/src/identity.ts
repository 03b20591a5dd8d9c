/** Whom a token may be of, as far as a client can tell, and never less than that. */

import { isObject } from "./json.js";
import type { ThreadOptions } from "./options.js";

/** Claims of a JWT by which a fresh token differs from the one before it. */
const TIMES: ReadonlySet<string> = new Set(["exp", "iat", "nbf", "auth_time"]);

/**
 * Returns a text that two tokens have in common only where they are of one user with the same rights: JWTs that differ
 * in their times, or the very same text. Of functions nothing can be told.
 */
export function identityOf(token: ThreadOptions<unknown>["token"]): string | null {
  if (token === undefined) return null;
  if (typeof token === "function") return "function";
  const claims = claimsOf(token);
  return claims
    ? `jwt ${JSON.stringify(Object.entries(claims).filter(([name]) => !isPassing(name, claims)))}`
    : `text ${token}`;
}

/** Tells whether a claim is another in a fresh token; without a subject, the token's own id may be that of its user. */
function isPassing(name: string, claims: object): boolean {
  return TIMES.has(name) || (name === "jti" && Object.hasOwn(claims, "sub"));
}

function claimsOf(token: string): object | undefined {
  const [, payload, signature] = token.split(".");
  if (payload === undefined || signature === undefined) return undefined;
  try {
    const claims: unknown = JSON.parse(atob(payload.replaceAll("-", "+").replaceAll("_", "/")));
    return isObject(claims) && Object.keys(claims).some((name) => !TIMES.has(name)) ? claims : undefined;
  } catch {
    return undefined;
  }
}
