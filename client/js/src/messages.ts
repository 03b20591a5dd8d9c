/** Messages to a thread: as JSON in a frame, or as bytes, which have none. */

import { plain } from "./json.js";
import type { ClientMessage, Message } from "./protocol.js";

/** A binary message; it goes out as it is, among the frames. */
export interface Bytes {
  type: "bytes";
  data: Uint8Array;
}

export type Outgoing = ClientMessage | Bytes;

/** Returns a message of `data` as it is, whatever is done with it later. Throws a TypeError for what JSON cannot say. */
export function messageOf(data: unknown): Message | Bytes {
  if (data instanceof ArrayBuffer) return { type: "bytes", data: new Uint8Array(data).slice() };
  if (!ArrayBuffer.isView(data)) return { type: "message", data: plain(data) };
  return { type: "bytes", data: new Uint8Array(data.buffer, data.byteOffset, data.byteLength).slice() };
}
