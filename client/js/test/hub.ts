/** A thread in memory: takes the pushes of several sessions, and tells each what the others have done. */

import { readBacklog, restore, takeBacklog } from "../src/backlog.js";
import { stringify } from "../src/exact.js";
import { isEqual } from "../src/json.js";
import type { Document, Json } from "../src/json.js";
import type { Parts } from "../src/parts.js";
import { apply, diff } from "../src/patch.js";
import type { ClientMessage, Joined, Op, Push, ServerMessage } from "../src/protocol.js";
import { Session } from "../src/session.js";
import { rebase } from "./whole.js";

interface Entry {
  version: number;
  ops: readonly Op[];
}

export class Hub {
  state: Document;
  readonly texts: readonly string[];
  readonly writers: Writer[];
  readonly #log: Entry[] = [];

  constructor(state: Json, texts: readonly string[], parts: readonly Parts[]) {
    this.state = state;
    this.texts = texts;
    this.writers = parts.map((each, index) => new Writer(this, `c${index}`, each));
  }

  get version(): number {
    return this.#log.length + 1;
  }

  since(version: number): Entry[] {
    return this.#log.slice(version - 1);
  }

  /** Applies operations, and tells all but their writer. */
  commit(ops: readonly Op[], from: Writer): void {
    this.state = apply(this.state, ops);
    this.#log.push({ version: this.version + 1, ops });
    for (const writer of this.writers) if (writer !== from) writer.tell({ version: this.version, ops });
  }
}

/** A session, and what is on its way to it and from it. */
export class Writer {
  session: Session;
  readonly #hub: Hub;
  readonly #id: string;
  /** What the session can do with texts, and how closely it compares states. */
  readonly parts: Parts;
  #toServer: ClientMessage[] = [];
  #toClient: ServerMessage[] = [];
  #isJoined = false;
  #lastRef = 0;
  #kept = "";
  // What the session has seen by its last push, and what the others have done since.
  #seen: Document;
  #unseen: Entry[] = [];

  constructor(hub: Hub, id: string, parts: Parts) {
    this.#hub = hub;
    this.#id = id;
    this.parts = parts;
    this.#seen = hub.state;
    this.session = new Session({ client: id, now: () => 0, parts });
  }

  /** Takes what the session has to send. */
  #gather(): void {
    const backlog = takeBacklog(this.session);
    if (backlog) this.#kept = stringify(backlog);
    for (const frame of this.session.takeFrames()) if (frame.type !== "bytes") this.#toServer.push(frame);
  }

  push(ops: readonly Op[]): void {
    this.session.push(ops);
    this.#gather();
  }

  // Sockets

  open(): void {
    this.session.open();
    this.#gather();
  }

  lose(): void {
    this.#toServer = [];
    this.#toClient = [];
    this.#isJoined = false;
    this.session.lost(1006);
  }

  /** Another page goes on with what this one has kept. */
  reload(): void {
    this.lose();
    const backlog = readBacklog(this.#kept);
    this.session = new Session({ client: this.#id, now: () => 0, parts: this.parts });
    if (backlog) restore(this.session, backlog);
  }

  // Frames

  /** Delivers one frame to the server; tells whether there was any. */
  send(knowsChanges = true): boolean {
    const frame = this.#toServer.shift();
    if (frame?.type === "join") this.#join(frame.have?.[1], knowsChanges);
    if (frame?.type === "push") this.#apply(frame);
    return frame !== undefined;
  }

  /** Delivers one frame to the session; tells whether there was any. */
  receive(): boolean {
    const frame = this.#toClient.shift();
    if (frame) this.session.receive(frame);
    this.#gather();
    return frame !== undefined;
  }

  /** Puts a snapshot in the place of all changes that are on their way after the last answer, as to a slow reader. */
  skip(): void {
    const start = this.#toClient.findLastIndex(({ type }) => type !== "change") + 1;
    if (start === this.#toClient.length) return;
    const { state, version } = this.#hub;
    this.#toClient.splice(start, Infinity, { type: "snapshot", epoch: "e", version, state: state as Json });
  }

  tell({ version, ops }: Entry): void {
    if (!this.#isJoined) return;
    this.#toClient.push({ type: "change", version, ops, source: "another" });
    this.#unseen.push({ version, ops });
  }

  #join(have: number | undefined, knowsChanges: boolean): void {
    const { state, version, texts } = this.#hub;
    const missed = have === undefined || !knowsChanges ? { state: state as Json } : { ops: this.#missed(have) };
    const names = { connection: this.#id, thread: "note/a", epoch: "e" };
    const joined: Joined = { type: "joined", ...names, version, last_ref: this.#lastRef, texts, ...missed };
    this.#toClient.push(joined);
    this.#isJoined = true;
    this.#seen = state;
    this.#unseen = [];
  }

  #missed(have: number): Op[] {
    return this.#hub.since(have).flatMap(({ ops }) => ops);
  }

  /** Applies a push after all that its writer had not seen; that is then as it is after the push. */
  #apply({ ref, base, ops: pushed }: Push): void {
    if (ref <= this.#lastRef) {
      this.#toClient.push({ type: "ack", ref, version: this.#hub.version });
      return;
    }
    while (this.#unseen[0] && this.#unseen[0].version <= base[1]) {
      this.#seen = apply(this.#seen, (this.#unseen.shift() as Entry).ops);
    }
    let [ops, document] = [pushed, this.#seen];
    this.#unseen = this.#unseen.map((entry) => {
      document = apply(document, entry.ops);
      const rebased = rebase(ops, entry.ops, document);
      ops = rebased.ops;
      return { version: entry.version, ops: rebased.over };
    });
    this.#seen = apply(this.#seen, pushed);
    this.#lastRef = ref;
    if (ops.length > 0) this.#hub.commit(ops, this);
    const isChanged = !isEqual(ops, pushed);
    this.#toClient.push({ type: "ack", ref, version: this.#hub.version, ...(isChanged && { ops }) });
  }

  /** Makes another state of what is shown, as `set` does. */
  set(next: Json): void {
    this.push(diff(this.session.shown, next, this.session.keys));
  }
}
