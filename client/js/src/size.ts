/** How large a frame may be. */

import { PlaitError } from "./errors.js";
import { stringify } from "./exact.js";
import type { Outgoing } from "./messages.js";

/** Tells whether a frame has more bytes than a server takes. */
export function isTooLarge(frame: Outgoing, most: number): boolean {
  if (frame.type === "bytes") return frame.data.length > most;
  const text = stringify(frame);
  return text.length * 3 > most && byteLength(text) > most;
}

export function byteLength(text: string): number {
  return new TextEncoder().encode(text).length;
}

export function tooLarge(what: string): PlaitError {
  return new PlaitError("too_large", `The ${what} is larger than the server takes`);
}
