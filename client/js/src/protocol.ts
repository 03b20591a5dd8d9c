/** The frames of plait.v1. Written by `python -m plait_schemas.export`. */

import type { Json } from "./json.js";

/** The subprotocol that a WebSocket is opened with. */
export const SUBPROTOCOL = "plait.v1";

/** How many pushes of one client may be unanswered. */
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
 * A `remove` has no value. An `add` with `moved` moves an element of a list: the `remove` right before it has removed
 * the element from the same list.
 *
 * A `splice` removes `remove` characters of a text, beginning at `at`, and inserts `insert` there; 0 and "" are left
 * out. Characters are Unicode code points. Only a splice in a push may have `own`: the same client has inserted the
 * character before `at`.
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

/** The first frame on a socket. `client` is the same id on all sockets of a client; `have` is the version it has. */
export interface Join {
  readonly type: "join";
  readonly client: string;
  readonly have?: Version | null;
  readonly schema?: string | null;
  readonly token?: string | null;
}

/**
 * A change of the state: `ops`, applied to `base`.
 *
 * `made` is the version on which the user made the change, if the client has rebased it since. `answered` is the last
 * push whose answer the client had received, if that is not the previous push.
 */
export interface Push {
  readonly type: "push";
  readonly ref: number;
  readonly base: Version;
  readonly ops: readonly Op[];
  readonly made?: Version | null;
  readonly answered?: number | null;
}

/** A call of an rpc. The client chooses `ref`, which no other pending call of this socket may have. */
export interface Call {
  readonly type: "call";
  readonly ref: number;
  readonly method: string;
  readonly args?: readonly Json[];
  readonly kwargs?: { readonly [key: string]: Json };
}

/** The client has stopped waiting for the result of the call `ref`. */
export interface Cancel {
  readonly type: "cancel";
  readonly ref: number;
}

/** An ordinary message, sent by either side. */
export interface Message {
  readonly type: "message";
  readonly data: Json;
}

/** The presence of this connection, which the server shows to other clients; null removes it. */
export interface Presence {
  readonly type: "presence";
  readonly data: Json;
}

/** A fresh token for an open socket. */
export interface Auth {
  readonly type: "auth";
  readonly token: string;
}

/**
 * Asks for a Pong, because browsers hide WebSocket pings from their pages.
 *
 * `messages` is how many ordinary messages the client has sent on this socket, if it counts them.
 */
export interface Ping {
  readonly type: "ping";
  readonly messages?: number | null;
}

/**
 * The answer to a Join.
 *
 * `state` is the whole state at `version`, or `ops` lead to it from the version that the client has. Without both, the
 * client has that version already, or there is no state yet (version 0). `max_frame` is the maximum size of a
 * client's message, in bytes. `list_keys` maps the JSON pointers of lists to the member that identifies their
 * elements, for lists that do not use `id`, `key` or `_id`. `texts` are the JSON pointers of the strings that are
 * compared by their characters when whole states are compared. In both, `*` stands for any part of a pointer.
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
 * Without `source`, the change has the source of the previous change on this socket; the first one, "server".
 */
export interface Change {
  readonly type: "change";
  readonly version: number;
  readonly ops: readonly Op[];
  readonly source?: string | null;
}

/** Several versions in one frame, for a slow client: those after `from_`, up to `to`. */
export interface Changes {
  readonly type: "changes";
  readonly from: number;
  readonly to: number;
  readonly ops: readonly Op[];
}

/** The whole state, sent when operations would be larger or are no longer kept. */
export interface Snapshot {
  readonly type: "snapshot";
  readonly epoch: string;
  readonly version: number;
  readonly state: Json;
}

/** The push is durable, as `version`. `ops` are the operations that were applied, if they differ from the push. */
export interface Ack {
  readonly type: "ack";
  readonly ref: number;
  readonly version: number;
  readonly rebased?: boolean;
  readonly ops?: readonly Op[];
}

/**
 * The push was refused; `version` is the thread's current version.
 *
 * With the codes `rate_limited` and `gap`, the server has not examined the push. The client sends it again: after
 * `retry_after` seconds, or with all pushes from `expected` on.
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

/** The value that an rpc returned, or, with `done` false, one chunk that it streams. */
export interface Result {
  readonly type: "result";
  readonly ref: number;
  readonly done: boolean;
  readonly value?: Json;
}

/**
 * The call `ref` failed. Without `ref`, another frame was invalid or was refused.
 *
 * For a frame that exceeded the rate limit, `refused` is its type, and `retry_after` the seconds after which the
 * client may send it again. `messages` is how many ordinary messages of this socket the server accepted before it, if
 * the client counts them.
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

/** An event that the thread emitted. */
export interface Event {
  readonly type: "event";
  readonly name: string;
  readonly data: Json;
}

/** The presence of each connection, by id: all of them in `snapshot`, or the changes since the previous frame. */
export interface PresenceDiff {
  readonly type: "presence";
  readonly snapshot?: { readonly [key: string]: Json };
  readonly joined?: { readonly [key: string]: Json };
  readonly updated?: { readonly [key: string]: Json };
  readonly left?: readonly string[];
}

/** The token expires in this many seconds. */
export interface AuthExpiring {
  readonly type: "auth_expiring";
  readonly in: number;
}

/** The answer to a Ping; if that counts messages, with the number that the server accepted. */
export interface Pong {
  readonly type: "pong";
  readonly messages?: number | null;
}
