/** Every frame of the native protocol, `plait.v1`. */

import type { Json } from "./json.js";
import type { Op } from "./patch.js";

export const SUBPROTOCOL = "plait.v1";

/** How many pushes of one client may be without an answer. */
export const UNANSWERED = 64;

/** An epoch, and a version in it. */
export type Version = readonly [epoch: string, version: number];

// Client to server

export interface Join {
  type: "join";
  client: string;
  have?: Version;
  schema?: string;
  token?: string;
}

export interface Push {
  type: "push";
  ref: number;
  base: Version;
  made?: Version;
  ops?: readonly Op[];
  state?: Json;
}

export interface Call {
  type: "call";
  ref: number;
  method: string;
  args?: readonly Json[];
  kwargs?: { readonly [name: string]: Json };
}

export interface Cancel {
  type: "cancel";
  ref: number;
}

export interface Message {
  type: "message";
  data: Json;
}

export interface Presence {
  type: "presence";
  data: Json;
}

export interface Auth {
  type: "auth";
  token: string;
}

export interface Ping {
  type: "ping";
}

export type ClientMessage = Join | Push | Call | Cancel | Message | Presence | Auth | Ping;

// Server to client

export interface Joined {
  type: "joined";
  connection: string;
  thread: string;
  epoch: string;
  version: number;
  last_ref?: number;
  readonly?: boolean;
  state?: Json;
  ops?: readonly Op[];
}

export interface Change {
  type: "change";
  version: number;
  ops: readonly Op[];
  source: string;
}

export interface Changes {
  type: "changes";
  from: number;
  to: number;
  ops: readonly Op[];
}

export interface Snapshot {
  type: "snapshot";
  epoch: string;
  version: number;
  state: Json;
}

export interface Ack {
  type: "ack";
  ref: number;
  version: number;
  rebased?: boolean;
  ops?: readonly Op[];
}

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

export interface Result {
  type: "result";
  ref: number;
  done: boolean;
  value?: Json;
}

export interface Failure {
  type: "error";
  code: string;
  message: string;
  ref?: number | null;
  path?: string | null;
}

export interface Event {
  type: "event";
  name: string;
  data: Json;
}

export interface PresenceDiff {
  type: "presence";
  snapshot?: { readonly [connection: string]: Json };
  joined?: { readonly [connection: string]: Json };
  updated?: { readonly [connection: string]: Json };
  left?: readonly string[];
}

export interface AuthExpiring {
  type: "auth_expiring";
  in: number;
}

export interface Pong {
  type: "pong";
}

export type ServerMessage =
  | Joined
  | Change
  | Changes
  | Snapshot
  | Ack
  | Nack
  | Result
  | Failure
  | Event
  | Message
  | PresenceDiff
  | AuthExpiring
  | Pong;
