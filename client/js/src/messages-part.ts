/** The messages that a thread keeps, as an option of a client: shown messages, sent ones, and older ones. */

import { Conversations } from "./conversations.js";
import type { PartEvent, PartFrame } from "./conversations.js";
import type { PlaitError } from "./errors.js";
import type { JsonObject } from "./json.js";
import { Listeners } from "./listeners.js";
import type { Outgoing } from "./messages.js";
import { clock } from "./platform.js";
import type { ServerMessage } from "./protocol.js";
import type { SentMessage } from "./sent-messages.js";
import type { Session } from "./session.js";
import { ThreadMessages } from "./thread-messages.js";
import type { Carrier, Talk } from "./thread-part.js";
import type { Caller } from "./thread-tasks.js";

/** Gives a client messages. */
export interface MessagesPart {
  /** Gives a client, which may have joined already, its `messages`. */
  put(client: Caller, carrier: Carrier): void;
}

/** A session with conversations. */
export interface ConversationSession extends Session {
  readonly conversations: Conversations;
  /**
   * Sends a message to a part once, even across an outage. `key` names the message. Throws a PlaitError if it is too
   * large.
   */
  post(part: string, content: string, key: string, attachments?: readonly JsonObject[]): SentMessage;
  /** Called with the events of parts, whenever events are taken, and at the end with the error that ended it. */
  readonly partEvents: Listeners<[events: readonly PartEvent[], end?: PlaitError]>;
}

export const messages: MessagesPart = {
  put(client, carrier) {
    give(client, "messages", carrier, (session) => new ThreadMessages(carrier, session, "messages", client));
  },
};

/** Gives a client an object that is made with its session, unless it has one. */
export function give(client: object, name: string, carrier: Carrier, make: (session: Talk) => unknown): void {
  if (Object.hasOwn(client, name)) return;
  const session = withConversations(carrier.session as Session, () => clock.now() / 1000);
  Object.defineProperty(client, name, { value: make(session) });
}

/** Returns a session, which may have joined, with conversations; gives it these if it has none. */
export function withConversations(session: Session, now: () => number): ConversationSession {
  if ("conversations" in session) return session as ConversationSession;
  // The session's class is changed, and the session is not wrapped: all who hold the session hold this one, too.
  const talking = Object.setPrototypeOf(session, extend(session.constructor as typeof Session).prototype) as Talking;
  talking.begin(new Conversations(now));
  return talking;
}

const PART_FRAMES = new Set<string>(["page", "part", "unopened", "sent", "unsent"] satisfies PartFrame["type"][]);

function isPartFrame(frame: ServerMessage): frame is PartFrame {
  return PART_FRAMES.has(frame.type);
}

interface Talking extends ConversationSession {
  /** This replaces the constructor, which has run. */
  begin(conversations: Conversations): void;
}

function extend(Base: typeof Session): { prototype: Talking } {
  return class extends Base implements Talking {
    declare conversations: Conversations;
    declare partEvents: ConversationSession["partEvents"];
    declare frames: Outgoing[];

    begin(conversations: Conversations): void {
      this.conversations = conversations;
      this.partEvents = new Listeners();
      this.frames = [];
      if (this.epoch !== undefined && this.phase === "joined") conversations.join(this.epoch);
    }

    post(part: string, content: string, key: string, attachments: readonly JsonObject[] = []): SentMessage {
      return this.conversations.send(part, content, key, attachments, this.maxFrame);
    }

    override get isSending(): boolean {
      return super.isSending || this.conversations.isBusy;
    }

    override takeFrames(): Outgoing[] {
      this.flush();
      return [...super.takeFrames(), ...this.frames.splice(0)];
    }

    override tick(): void {
      super.tick();
      this.flush();
    }

    /** Sends the frames that may be sent now. */
    flush(): void {
      if (this.phase === "joined") this.frames.push(...this.conversations.take(this.maxFrame));
    }

    override takeEvents(): ReturnType<Session["takeEvents"]> {
      const events = super.takeEvents();
      this.partEvents.tell(this.conversations.takeEvents());
      return events;
    }

    override open(token?: string): void {
      this.conversations.reset();
      this.frames = [];
      super.open(token);
    }

    override stop(error: PlaitError): void {
      super.stop(error);
      this.partEvents.tell(this.conversations.takeEvents(), error);
    }

    override get due(): number | undefined {
      const due = super.due;
      return this.phase === "joined" ? Math.min(due ?? Infinity, this.conversations.due) : due;
    }

    override receive(frame: ServerMessage): void {
      if (!isPartFrame(frame)) {
        super.receive(frame);
        if (frame.type !== "joined" || this.phase !== "joined") return;
        this.conversations.join(frame.epoch);
      } else if (this.phase === "joined") {
        this.heard();
        this.conversations.receive(frame);
      }
    }
  };
}
