/** WebSocket close codes, which of them are final, and what a final one is called in an error. */

import { PlaitError } from "./errors.js";

export const GOING_AWAY = 1001;
export const ABNORMAL = 1006;
export const POLICY_VIOLATION = 1008;
export const MESSAGE_TOO_BIG = 1009;

const NAMES: Record<number, readonly [code: string, message: string]> = {
  1008: ["policy_violation", "The server refuses this client"],
  4400: ["bad_frame", "The server could not read a frame of this client"],
  4401: ["unauthenticated", "Nobody is known behind the token"],
  4403: ["forbidden", "This thread may not be joined"],
  4404: ["not_found", "There is no such thread"],
  4408: ["replaced", "Another socket has joined as this client"],
  4409: ["outdated", "The state has another schema than this client was built for"],
};

/** Tells whether a client that was closed with `code` must not reconnect by itself. */
export function isFinal(code: number): boolean {
  return code === POLICY_VIOLATION || (code >= 4400 && code <= 4499);
}

/** Returns the error that a client stops with that was closed with `code`; undefined when it goes on. */
export function finalError(code: number, reason: string | undefined): PlaitError | undefined {
  if (!isFinal(code)) return undefined;
  const [name, message] = NAMES[code] ?? ["closed", `The server closed the connection for good (${code})`];
  return new PlaitError(name, reason || message, { closeCode: code });
}
