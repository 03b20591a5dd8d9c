/** The frames of plait.v1. Written by `python -m plait_schemas.export`. */

import type { Json } from "./json.js";

/** The subprotocol that a WebSocket is opened with. */
export const SUBPROTOCOL = "plait.v1";

/** How many pushes of one client may be without an answer. */
export const UNANSWERED = 64;

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

/** An epoch, and a version in it. */
export type Version = readonly [string, number];

/**
 * One operation of JSON Patch, or a `splice`; `path` is a JSON pointer.
 *
 * A `remove` has no value. An `add` that has `moved` puts an element of a list where it has moved to: the `remove`
 * right before it has taken it out of the same list.
 *
 * A `splice` removes `remove` characters of a text, from the place `at` on, and inserts `insert` there; both are left
 * out where they are nothing. Characters are Unicode code points. Only a pushed one may have `own`: the character
 * before `at` was inserted by the same client.
 */
export type Op =
  | {
      readonly op: "add" | "replace";
      readonly path: string;
      readonly value: Json;
      readonly moved?: boolean;
    }
  | {
      readonly op: "remove";
      readonly path: string;
      readonly value?: undefined;
      readonly moved?: undefined;
    }
  | {
      readonly op: "splice";
      readonly path: string;
      readonly at: number;
      readonly remove?: number;
      readonly insert?: string;
      readonly own?: boolean;
      readonly value?: undefined;
      readonly moved?: undefined;
    };

/** The first frame on a socket. `client` names the client over all its sockets; `have` is what it holds already. */
export interface Join {
  readonly type: "join";
  readonly client: string;
  readonly have?: Version | null;
  readonly schema?: string | null;
  readonly token?: string | null;
}

/**
 * A change of the state: `ops` on `base`.
 *
 * `made` is the version on which the user made it, where it has been rebased onto a newer one since. `answered` is the
 * last of the client's pushes whose answer it knew of, where that is not the one before.
 */
export interface Push {
  readonly type: "push";
  readonly ref: number;
  readonly base: Version;
  readonly ops: readonly Op[];
  readonly made?: Version | null;
  readonly answered?: number | null;
}

/** A call of an rpc. `ref` is chosen by the client, and no other call under way on this socket has it. */
export interface Call {
  readonly type: "call";
  readonly ref: number;
  readonly method: string;
  readonly args?: readonly Json[];
  readonly kwargs?: { readonly [key: string]: Json };
}

/** Nobody waits for the call `ref` any more. */
export interface Cancel {
  readonly type: "cancel";
  readonly ref: number;
}

/** An ordinary message, of either side. */
export interface Message {
  readonly type: "message";
  readonly data: Json;
}

/** What others are to see of this connection; null for nothing. */
export interface Presence {
  readonly type: "presence";
  readonly data: Json;
}

/** A fresh token on a live socket. */
export interface Auth {
  readonly type: "auth";
  readonly token: string;
}

/**
 * Asks for a Pong: browsers do not show their pages WebSocket pings.
 *
 * With `messages` the client counts the ordinary messages of this socket: so many came before the next one.
 */
export interface Ping {
  readonly type: "ping";
  readonly messages?: number | null;
}

/**
 * The answer to a Join.
 *
 * `state` is the whole state at `version`; or `ops` lead to it from what the client has. With neither, the client
 * has it already, or there is no state yet (version 0). `max_frame` is how many bytes one message of the client may
 * have. `list_keys` names the members that identify the elements of lists, by the JSON pointers of these, in which `*`
 * is any part, where it is not `id`, `key` or `_id`. `texts` are the places of the strings in which changes are found
 * when whole states are compared, by JSON pointers in which `*` is any part.
 */
export interface Joined {
  readonly type: "joined";
  readonly connection: string;
  readonly thread: string;
  readonly epoch: string;
  readonly version: number;
  readonly last_ref?: number;
  readonly readonly?: boolean;
  readonly state?: Json;
  readonly ops?: readonly Op[];
  readonly max_frame?: number | null;
  readonly list_keys?: { readonly [key: string]: string };
  readonly texts?: readonly string[];
}

/**
 * The next version. `source` is a connection's id, "server", "migration", or "undo", a version and its source.
 *
 * Without one it is that of the last change on this socket that had one, and "server" before the first.
 */
export interface Change {
  readonly type: "change";
  readonly version: number;
  readonly ops: readonly Op[];
  readonly source?: string | null;
}

/** Several versions at once, for a client that lags: those after `from_`, up to `to`. */
export interface Changes {
  readonly type: "changes";
  readonly from: number;
  readonly to: number;
  readonly ops: readonly Op[];
}

/** The whole state: where operations would be larger, or are not there. */
export interface Snapshot {
  readonly type: "snapshot";
  readonly epoch: string;
  readonly version: number;
  readonly state: Json;
}

/** The push is durable, as `version`. `ops` is what was applied, where that is not what was pushed. */
export interface Ack {
  readonly type: "ack";
  readonly ref: number;
  readonly version: number;
  readonly rebased?: boolean;
  readonly ops?: readonly Op[];
}

/**
 * The push was refused; `version` is the current one.
 *
 * `rate_limited` and `gap` say that it was not looked at: it is to be sent again after `retry_after` seconds, or
 * from `expected` on.
 */
export interface Nack {
  readonly type: "nack";
  readonly ref: number;
  readonly code: string;
  readonly message: string;
  readonly version: number;
  readonly path?: string | null;
  readonly retry_after?: number | null;
  readonly expected?: number | null;
}

/** What an rpc returned, or with `done` false one chunk of what it streams. */
export interface Result {
  readonly type: "result";
  readonly ref: number;
  readonly done: boolean;
  readonly value?: Json;
}

/**
 * The call `ref` failed; without a ref, another frame was bad, or was refused.
 *
 * Of a frame that came too fast, `refused` is the type, and `retry_after` the seconds after which it may come again;
 * `messages` is how many ordinary messages of this socket were taken before it, where the client counts them.
 */
export interface Error {
  readonly type: "error";
  readonly code: string;
  readonly message: string;
  readonly ref?: number | null;
  readonly path?: string | null;
  readonly refused?: string | null;
  readonly retry_after?: number | null;
  readonly messages?: number | null;
}

/** What the thread emitted. */
export interface Event {
  readonly type: "event";
  readonly name: string;
  readonly data: Json;
}

/** Who is here, by connection id: all of them in `snapshot`, or what has changed since the frame before. */
export interface PresenceDiff {
  readonly type: "presence";
  readonly snapshot?: { readonly [key: string]: Json };
  readonly joined?: { readonly [key: string]: Json };
  readonly updated?: { readonly [key: string]: Json };
  readonly left?: readonly string[];
}

/** The token is good for so many seconds more. */
export interface AuthExpiring {
  readonly type: "auth_expiring";
  readonly in: number;
}

/** The answer to a Ping; to one that counts messages, with how many of them were taken. */
export interface Pong {
  readonly type: "pong";
  readonly messages?: number | null;
}
