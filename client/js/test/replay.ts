/** Replays one file of schemas/vectors against a session. */

import { expect } from "vitest";

import { PlaitError } from "../src/errors.js";
import { withConversations } from "../src/messages-part.js";
import type { ConversationSession } from "../src/messages-part.js";
import type { Outgoing } from "../src/messages.js";
import type { ThreadMessage } from "../src/conversation.js";
import { plain } from "../src/json.js";
import { Layers } from "../src/optimistic.js";
import { apply } from "../src/patch.js";
import { Queries, keyOf } from "../src/queries.js";
import type { Query } from "../src/queries.js";
import type { Document, Json } from "../src/json.js";
import type { Op, ServerMessage, TaskRun } from "../src/protocol.js";
import { TaskRuns } from "../src/task-runs.js";
import { PARTS, Session, diff } from "./whole.js";

export interface Script {
  description: string;
  client: string;
  state?: boolean;
  steps: { [name: string]: unknown }[];
}

/** Carries the frames of a script, and gives them back as they arrive. */
export interface Line {
  open(): void;
  /** Closes the socket with this code, and returns the one that arrives. */
  lost(code: number): number;
  up<Frame extends object>(frame: Frame): Frame;
  down<Frame extends object>(frame: Frame): Frame;
}

const DIRECT: Line = {
  open: () => undefined,
  lost: (code) => code,
  up: (frame) => frame,
  down: (frame) => frame,
};

/** A session whose clock is moved by hand, and what has come out of it and was not asked for yet. */
export class Replay {
  #now = 0;
  readonly session: ConversationSession;
  readonly #queries: Queries;
  readonly #layers: Layers;
  #sent: Outgoing[] = [];
  #outcomes: Record<string, string> = {};
  #sources: (string | null)[] = [];
  #heard: [name: string, data: Json, from: string | null][] = [];
  #rejoins = 0;
  #stopped: number | undefined = undefined;
  readonly #line: Line;

  constructor(client: string, { state = true, line = DIRECT }: { state?: boolean | undefined; line?: Line } = {}) {
    this.#line = line;
    const session = new Session({ client, now: () => this.#now, parts: state ? PARTS : { ...PARTS, state } });
    this.session = withConversations(session, () => this.#now);
    this.#layers = new Layers(this.session);
    const closedError = new PlaitError("closed", "the client is closed");
    this.#queries = new Queries({ session: this.session, status: "online", closedError, pump: () => undefined });
    this.session.partEvents.add((events) => {
      for (const event of events) {
        if (event.type === "delivered") this.#outcomes[event.message.key] = `sent ${event.id}`;
        if (event.type === "undelivered") this.#outcomes[event.message.key] = `unsent ${event.error.code}`;
      }
    });
  }

  step(name: string, value: unknown): void {
    const { session } = this;
    if (name === "open") {
      this.#line.open();
      session.open();
    } else if (name === "lost") session.lost(this.#line.lost(value as number));
    else if (name === "edit") session.push(value as Op[]);
    else if (name === "set") session.push(diff(session.shown, plain(value), session.keys));
    else if (name === "receive") session.receive(this.#line.down(value as ServerMessage));
    else if (name === "wait") this.#wait(value as number);
    else if (name === "view") session.conversations.of(value as string).open();
    else if (name === "watch") session.conversations.find(value as string, TaskRuns).open();
    else if (name === "older") session.conversations.of(value as string).loadOlder();
    else if (name === "leave") session.conversations.close(value as string);
    else if (name === "emit") session.emit(...(value as [string, Json]));
    else if (name === "follow") this.#queries.follow(keyOf(...(value as [string, unknown[]])));
    else if (name === "unfollow")
      this.#queries.unfollow(this.#queries.find(keyOf(...(value as [string, unknown[]]))) as Query);
    else if (name === "foresee") this.#foresee(...(value as [string, unknown[], Op[]]));
    else if (name === "post") session.post("messages", ...(value as [string, string]));
    this.#gather();
    this.#expect(name, value);
  }

  /** Calls a method optimistically, as if it makes these operations. */
  #foresee(method: string, args: unknown[], ops: Op[]): void {
    const recipe = (draft: unknown) => apply(draft as Json, ops);
    const layer = this.#layers.add(recipe, this.session.shown);
    this.session.call(method, args as Json[], {}, layer as object);
  }

  #wait(seconds: number): void {
    const until = this.#now + seconds;
    for (let due = this.session.due; due !== undefined && due <= until; due = this.session.due) {
      this.#now = Math.max(due, this.#now);
      this.session.tick();
    }
    this.#now = until;
  }

  #gather(): void {
    this.#sent.push(...this.session.takeFrames().map((frame) => this.#line.up(frame)));
    for (const event of this.session.takeEvents()) {
      if (event.type === "applied") this.#outcomes[event.push.ref] = `ack ${event.version}`;
      if (event.type === "refused") this.#outcomes[event.push.ref] = `nack ${event.error.code}`;
      if (event.type === "change") this.#sources.push(event.source ?? null);
      if (event.type === "event") this.#heard.push([event.name, event.data, event.from ?? null]);
      if (event.type === "rejoin") this.#rejoins++;
      if (event.type === "stopped") this.#stopped = event.code;
    }
  }

  #expect(name: string, value: unknown): void {
    const { session } = this;
    if (name === "sent") this.#expectSent(value as object[]);
    if (name === "shown") expect(session.shown ?? null).toEqual(value);
    if (name === "foreseen") expect(this.#layers.show(session.shown) ?? null).toEqual(value);
    if (name === "presence") expect(session.presence).toEqual(value);
    if (name === "confirmed")
      expect([session.epoch ?? null, session.version ?? 0, session.confirmed ?? null]).toEqual(value);
    if (name === "pending")
      expect(session.pushes.filter((push) => !push.isSettled).map((push) => push.ref)).toEqual(value);
    if (name === "outcomes") {
      expect(this.#outcomes).toEqual(value);
      this.#outcomes = {};
    }
    if (name === "sources") {
      expect(this.#sources).toEqual(value);
      this.#sources = [];
    }
    if (name === "events") expect(this.#heard.splice(0)).toEqual(value);
    if (name === "messages") {
      const shown = session.conversations.show("messages") as ThreadMessage[];
      expect(shown.map(({ content, status }) => [content, status])).toEqual(value);
      expect(session.conversations.show("messages")).toBe(shown);
    }
    if (name === "calls") {
      const calls = (session.conversations.show("messages") as ThreadMessage[]).flatMap(
        ({ tool_calls }) => tool_calls ?? [],
      ) as { id: string; function: { name: string; arguments: string } }[];
      expect(calls.map(({ id, function: { name, arguments: given } }) => [id, name, given])).toEqual(value);
    }
    if (name === "approvals") {
      const shown = session.conversations.of("messages").approvals;
      expect(shown.map((each) => [each.call, each.tool, each.arguments, each.message_id, each.may_approve])).toEqual(
        value,
      );
    }
    if (name === "runs") {
      const shown = session.conversations.show("tasks") as TaskRun[];
      expect(shown.map(({ id, status, value = null, result = null }) => [id, status, value, result])).toEqual(value);
      expect(session.conversations.show("tasks")).toBe(shown);
    }
    if (name === "results") {
      const shown = this.#queries.all.map(({ method, args, state: { at = null, data = null, error } }) => {
        return [method, args, at, data, error?.code ?? null];
      });
      expect(shown).toEqual(value);
    }
    if (name === "more") expect(session.conversations.of("messages").hasMore).toBe(value);
    if (name === "rejoin") {
      expect(this.#rejoins).toBeGreaterThan(0);
      this.#rejoins = 0;
    }
    if (name === "stopped") expect(this.#stopped).toBe(value);
  }

  #expectSent(expected: object[]): void {
    const sent = withoutDefaults(this.#sent.splice(0)).map((frame, index) => {
      // Of a push that has been answered for already, only the number matters.
      const isBare = "ref" in frame && frame.type === "push" && Object.keys(expected[index] ?? {}).length === 2;
      return isBare ? { type: "push", ref: frame.ref } : frame;
    });
    expect(sent).toEqual(withoutDefaults(expected));
  }

  /** What is shown is always the server's state with all pushes that are shown carried out in order. */
  expectFolded(): void {
    let folded: Document = this.session.confirmed;
    for (const push of this.session.pushes) if (push.isShown) folded = apply(folded, push.ops);
    expect(this.session.shown).toEqual(folded);
  }
}

/**
 * Leaves out fields that may be left out: null, false, 0, and empty lists and objects, at the top of a frame; of
 * `state`, true.
 */
function withoutDefaults(frames: readonly object[]): { [name: string]: unknown }[] {
  const isDefault = (value: unknown) =>
    value === null || value === false || value === 0 || (typeof value === "object" && Object.keys(value).length === 0);
  const isLeftOut = ([name, value]: [string, unknown]) => (name === "state" ? value === true : isDefault(value));
  return frames.map((frame) => Object.fromEntries(Object.entries(frame).filter((field) => !isLeftOut(field))));
}
