/** The frames and bytes on a socket, and their maximum size. */

import { PlaitError } from "./errors.js";
import { stringify } from "./exact.js";
import { plain } from "./json.js";
import { byteLength } from "./platform.js";
import type { ClientMessage, Message } from "./protocol.js";

/** A binary message; it is sent as it is, in order with the frames. */
export interface Bytes {
  type: "bytes";
  data: Uint8Array;
}

export type Outgoing = ClientMessage | Bytes;

/** Returns a message with a copy of `data`. Throws a TypeError for a value that JSON cannot hold. */
export function messageOf(data: unknown): Message | Bytes {
  if (!(data instanceof ArrayBuffer || ArrayBuffer.isView(data))) return { type: "message", data: plain(data) };
  const { buffer = data, byteOffset, byteLength } = data as ArrayBufferView;
  return { type: "bytes", data: new Uint8Array(buffer as ArrayBuffer, byteOffset, byteLength).slice() };
}

/** Tells whether a frame has more bytes than `limit`. */
export function isTooLarge(frame: Outgoing, limit: number): boolean {
  if (frame.type === "bytes") return frame.data.length > limit;
  const text = stringify(frame);
  return text.length * 3 > limit && byteLength(text) > limit;
}

export function tooLarge(what: string): PlaitError {
  return new PlaitError("too_large", `the ${what} is larger than the server takes`);
}

/** Returns a frame; throws a PlaitError that names it if it has more bytes than `limit`. */
export function checkSize<Frame extends Outgoing>(frame: Frame, limit: number, what = "message"): Frame {
  if (isTooLarge(frame, limit)) throw tooLarge(what);
  return frame;
}
