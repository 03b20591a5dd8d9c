/** The frames of plait.v1. Written by `python -m plait_schemas.export`. */

import type { Json } from "./json.js";

/** The subprotocol that a WebSocket is opened with. */
export const SUBPROTOCOL = "plait.v1";

/** How many pushes of one client may be unanswered. */
export const UNANSWERED = 64;

/** What a client sends. */
export type ClientMessage = Join | Push | Call | Cancel | Message | Emit | Presence | Auth | Ping | Open | Close | Send;

/** What a server sends. */
export type ServerMessage =
  | Joined
  | Change
  | Changes
  | Snapshot
  | Ack
  | Nack
  | Result
  | Made
  | Error
  | Event
  | Message
  | PresenceDiff
  | AuthExpiring
  | Pong
  | Page
  | Part
  | Unopened
  | Sent
  | Unsent;

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

/**
 * The first frame on a socket. `client` is the same id on all sockets of a client; `have` is the version it has.
 *
 * Without `state`, the client is told versions, but neither the state nor its changes.
 */
export interface Join {
  readonly type: "join";
  readonly client: string;
  readonly have?: Version | null;
  readonly schema?: string | null;
  readonly token?: string | null;
  readonly state?: boolean;
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

/**
 * A call of an rpc. The client chooses `ref`, which no other pending call of this socket may have.
 *
 * With `have`, the call follows a query: `have` is the tag of the last result that the client has, or empty.
 *
 * If it is `optimistic`, the client already shows what the call will do, and is told when its first change comes.
 */
export interface Call {
  readonly type: "call";
  readonly ref: number;
  readonly method: string;
  readonly args?: readonly Json[];
  readonly kwargs?: { readonly [key: string]: Json };
  readonly have?: string | null;
  readonly optimistic?: boolean;
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

/** An event for the other connections, of a name that the thread's class allows to clients. */
export interface Emit {
  readonly type: "emit";
  readonly name: string;
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
 * Asks for a part of the thread, such as its messages: for the newest page, or the changes since a revision.
 *
 * From then on the client is told of changes of the part. With `before`, a position, it asks for an older page.
 */
export interface Open {
  readonly type: "open";
  readonly part: string;
  readonly since?: number | null;
  readonly before?: number | null;
  readonly limit?: number;
}

/** The client stops following a part. */
export interface Close {
  readonly type: "close";
  readonly part: string;
}

/**
 * A message for the queue of a part.
 *
 * `ref` counts those of this socket, from 1 on. `key` is the client's own name of the message, the same each time that
 * it is sent.
 */
export interface Send {
  readonly type: "send";
  readonly ref: number;
  readonly part: string;
  readonly content: string;
  readonly key: string;
  readonly attachments?: readonly { readonly [key: string]: Json }[];
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

/** The optimistic call `ref` makes its first change, `version`, which no earlier frame contains. */
export interface Made {
  readonly type: "made";
  readonly ref: number;
  readonly version: number;
}

/**
 * The call `ref` failed. Without `ref`, another frame was invalid or was refused.
 *
 * For a frame that exceeded the rate limit, `refused` is its type, and `retry_after` the seconds after which the
 * client may send it again. An Emit that is refused, for any reason, has no `retry_after`: it is not sent again.
 * `messages` is how many ordinary messages of this socket the server accepted before it, if the client counts them.
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

/** An event that the thread emitted, or the client of the connection `from_`. */
export interface Event {
  readonly type: "event";
  readonly name: string;
  readonly data: Json;
  readonly from?: string | null;
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

/**
 * The answer to an Open: messages of a part, oldest first, as they are at `revision` or later.
 *
 * With `reset` it has the newest ones, and the client forgets its own. With `before`, it has those before that
 * position. Otherwise it has the messages that were added or changed since the client's revision, and the ids of those
 * that were removed. `more` tells whether there are older ones; without `reset` and `before`, that is not known.
 *
 * `approvals` are the calls that wait for a person, if the page is not an older one; the client may answer them with
 * `may_approve`. A page of tasks has no messages but `runs`: those that are not over, and the last ones that are.
 */
export interface Page {
  readonly type: "page";
  readonly part: string;
  readonly revision: number;
  readonly items?: readonly Item[];
  readonly reset?: boolean;
  readonly more?: boolean;
  readonly before?: number | null;
  readonly removed?: readonly string[];
  readonly approvals?: readonly PendingApproval[];
  readonly may_approve?: boolean;
  readonly runs?: readonly TaskRun[];
}

/**
 * One message. `position` orders the messages of the history, and of the queue; `created_at` is in microseconds.
 *
 * While it is streaming, `taken` has the ids of the pending messages that it is an answer to: it is shown after them.
 * The arguments of its `tool_calls` may then be the beginning of a JSON text.
 */
export interface Item {
  readonly id: string;
  readonly role: "assistant" | "system" | "tool" | "user";
  readonly content?: string | null;
  readonly name?: string | null;
  readonly tool_calls?: readonly { readonly [key: string]: Json }[] | null;
  readonly tool_call_id?: string | null;
  readonly subagent_id?: string | null;
  readonly created_at?: number;
  readonly parent_id?: string | null;
  readonly depth?: number;
  readonly metadata?: { readonly [key: string]: Json };
  readonly attachments?: readonly { readonly [key: string]: Json }[];
  readonly position?: number;
  readonly status?: "completed" | "failed" | "pending" | "sending" | "streaming";
  readonly taken?: readonly string[];
}

/**
 * A call of a tool that waits for a person: its id, the tool, its arguments as JSON, and its message.
 *
 * `run` is the run that waits; clients do not get it.
 */
export interface PendingApproval {
  readonly call: string;
  readonly tool: string;
  readonly arguments: string;
  readonly message_id: string;
  readonly run?: string;
  readonly may_approve?: boolean;
}

/**
 * A run of a task: `value` is its last status, and `created_at` is in microseconds.
 *
 * `result` is its return value, if clients may begin the task.
 */
export interface TaskRun {
  readonly id: string;
  readonly name: string;
  readonly status: "cancelled" | "done" | "failed" | "running" | "sleeping" | "waiting";
  readonly value?: Json;
  readonly result?: Json;
  readonly created_at?: number;
}

/**
 * A change of an opened part. Revisions are dense, but a "chunk" and "missed" repeat the last one.
 *
 * "insert" and "update" have the whole `message`, "delete" its `id`, "take" the ids of pending messages that became
 * history with their positions there, "chunk" a text that follows the first `at` characters of the streaming message
 * `id`, or the `input` of one of its calls, "end" the final `status` of that message. "missed": changes were left out,
 * and the client opens the part again. Of tasks, "update" has the whole `run`. An "update" with the revision 0 has the
 * calls that wait for a person, instead of a message.
 */
export interface Part {
  readonly type: "part";
  readonly part: string;
  readonly revision: number;
  readonly op: "chunk" | "delete" | "end" | "insert" | "missed" | "take" | "update";
  readonly message?: Item | null;
  readonly id?: string | null;
  readonly taken?: { readonly [key: string]: number };
  readonly at?: number;
  readonly text?: string;
  readonly input?: Input | null;
  readonly status?: "completed" | "failed" | null;
  readonly approvals?: readonly PendingApproval[] | null;
  readonly run?: TaskRun | null;
}

/** Text in the arguments of the call `call` of the tool `name`, after the first `at` characters of them. */
export interface Input {
  readonly call: string;
  readonly name: string;
  readonly at?: number;
  readonly text?: string;
}

/** An Open was refused; the client may send it again after `retry_after` seconds, if that is given. */
export interface Unopened {
  readonly type: "unopened";
  readonly part: string;
  readonly code: string;
  readonly message: string;
  readonly before?: number | null;
  readonly retry_after?: number | null;
}

/** The message of a Send is durable, and has the id `id`. */
export interface Sent {
  readonly type: "sent";
  readonly ref: number;
  readonly id: string;
}

/** A Send was refused. With `retry_after`, or with the code `gap`, the client sends it again with the same `ref`. */
export interface Unsent {
  readonly type: "unsent";
  readonly ref: number;
  readonly code: string;
  readonly message: string;
  readonly path?: string | null;
  readonly retry_after?: number | null;
}
