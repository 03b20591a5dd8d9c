/** The frames of plait.v1. Written by `python -m plait_schemas.export`. */

/** What a client sends. */
export type ClientMessage = Join | Push | Call | Cancel | Message | Presence | Auth | Ping;

/** What a server sends. */
export type ServerMessage =
  | Joined
  | Change
  | Changes
  | Snapshot
  | Ack
  | Nack
  | Result
  | Error
  | Event
  | Message
  | PresenceDiff
  | AuthExpiring
  | Pong;

/** One JSON Patch operation; `path` is a JSON pointer, and a `remove` has no value. */
export interface Op {
  op: "add" | "remove" | "replace";
  path: string;
  value?: unknown;
}

/** The first frame on a socket. `client` names the client over all its sockets; `have` is what it holds already. */
export interface Join {
  type: "join";
  client: string;
  have?: [string, number] | null;
  schema?: string | null;
  token?: string | null;
}

/**
 * A change of the state: `ops` on `base`, or the whole `state` as the client wants it.
 *
 * `made` is the version on which the user made it, where it has been brought onto a newer one since.
 */
export interface Push {
  type: "push";
  ref: number;
  base: [string, number];
  made?: [string, number] | null;
  ops?: Op[];
  state?: unknown;
}

/** A call of an rpc. `ref` is chosen by the client, and no other call under way on this socket has it. */
export interface Call {
  type: "call";
  ref: number;
  method: string;
  args?: unknown[];
  kwargs?: Record<string, unknown>;
}

/** Nobody waits for the call `ref` any more. */
export interface Cancel {
  type: "cancel";
  ref: number;
}

/** An ordinary message, of either side. */
export interface Message {
  type: "message";
  data: unknown;
}

/** What others are to see of this connection; null for nothing. */
export interface Presence {
  type: "presence";
  data: unknown;
}

/** A fresh token on a live socket. */
export interface Auth {
  type: "auth";
  token: string;
}

/** Asks for a Pong: browsers do not show their pages WebSocket pings. */
export interface Ping {
  type: "ping";
}

/**
 * The answer to a Join.
 *
 * `state` is the whole state at `version`; or `ops` lead to it from what the client has. With neither, the client
 * has it already, or there is no state yet (version 0).
 */
export interface Joined {
  type: "joined";
  connection: string;
  thread: string;
  epoch: string;
  version: number;
  last_ref?: number;
  readonly?: boolean;
  state?: unknown;
  ops?: Op[];
}

/** The next version. `source` is a connection's id, or "server". */
export interface Change {
  type: "change";
  version: number;
  ops: Op[];
  source: string;
}

/** Several versions at once, for who had fallen behind: those after `from_`, up to `to`. */
export interface Changes {
  type: "changes";
  from: number;
  to: number;
  ops: Op[];
}

/** The whole state: where operations would be larger, or are not there. */
export interface Snapshot {
  type: "snapshot";
  epoch: string;
  version: number;
  state: unknown;
}

/** The push is durable, as `version`. `ops` is what was applied, where that is not what was pushed. */
export interface Ack {
  type: "ack";
  ref: number;
  version: number;
  rebased?: boolean;
  ops?: Op[];
}

/**
 * The push was refused; `version` is the current one.
 *
 * `rate_limited` and `gap` say that it was not looked at: it is to be sent again after `retry_after` seconds, or
 * from `expected` on.
 */
export interface Nack {
  type: "nack";
  ref: number;
  code: string;
  message: string;
  version: number;
  path?: string | null;
  retry_after?: number | null;
  expected?: number | null;
}

/** What an rpc returned, or with `done` false one chunk of what it streams. */
export interface Result {
  type: "result";
  ref: number;
  done: boolean;
  value?: unknown;
}

/** The call `ref` failed; without a ref, a frame was bad. */
export interface Error {
  type: "error";
  code: string;
  message: string;
  ref?: number | null;
  path?: string | null;
}

/** What the thread emitted. */
export interface Event {
  type: "event";
  name: string;
  data: unknown;
}

/** Who is here, by connection id: all of them in `snapshot`, or what has changed since the frame before. */
export interface PresenceDiff {
  type: "presence";
  snapshot?: Record<string, unknown>;
  joined?: Record<string, unknown>;
  updated?: Record<string, unknown>;
  left?: string[];
}

/** The token is good for so many seconds more. */
export interface AuthExpiring {
  type: "auth_expiring";
  in: number;
}

/** The answer to a Ping. */
export interface Pong {
  type: "pong";
}
