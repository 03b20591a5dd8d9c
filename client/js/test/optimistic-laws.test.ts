/** Over random schedules, what a call does is shown once: from the call until the end, however frames are gathered. */

import { expect, test } from "vitest";

import { Layers } from "../src/optimistic.js";
import { apply } from "../src/patch.js";
import type { Document } from "../src/json.js";
import type { Op, ServerMessage } from "../src/protocol.js";
import { Random } from "./random.js";
import { Session } from "./whole.js";

interface State {
  items: { id: string; name: string }[];
}

/** A server whose frames the reader takes when it likes; changes that wait may be sent as one. */
class Hub {
  state: Document = { items: [{ id: "first", name: "first" }] };
  version = 1;
  #sent = 1;
  #waiting: Op[][] = [];
  readonly frames: ServerMessage[] = [];

  change(ops: Op[]): void {
    this.state = apply(this.state, ops);
    this.version++;
    this.#waiting.push(ops);
  }

  /** Sends the changes that wait: one by one, as one, or as the whole state. */
  flush(random: Random): void {
    if (this.#waiting.length === 0) return;
    const [from, to, changes] = [this.#sent, this.version, this.#waiting];
    const how = random.below(3);
    if (how === 0)
      changes.forEach((ops, at) => this.frames.push({ type: "change", version: from + at + 1, ops, source: "server" }));
    else if (how === 1) this.frames.push({ type: "changes", from, to, ops: changes.flat() });
    else this.frames.push({ type: "snapshot", epoch: "e", version: to, state: this.state as never });
    [this.#sent, this.#waiting] = [to, []];
  }
}

/** Runs one schedule; returns how many calls were shown and have come. */
function play(random: Random): number {
  const session = new Session({ client: "c", now: () => 0 });
  const layers = new Layers(session);
  const hub = new Hub();
  session.open();
  session.receive({
    type: "joined",
    connection: "s",
    thread: "t/a",
    epoch: "e",
    version: 1,
    state: hub.state as never,
  });
  const held: { ref: number; name: string }[] = [];
  // The calls whose item must be shown, and those that were refused or do nothing.
  const names = new Set<string>();
  const check = () => {
    session.takeEvents();
    const shown = (layers.show(session.shown) as unknown as State).items.map((item) => item.name);
    for (const name of names) expect(shown.filter((each) => each === name)).toEqual([name]);
    expect(new Set(shown).size).toBe(shown.length);
  };
  let made = 0;
  for (let step = 0; step < 40; step++) {
    const what = random.below(6);
    if (what === 0) {
      const name = `mine ${step}`;
      const layer = layers.add((draft: State) => void draft.items.push({ id: "local", name }), session.shown);
      held.push({ ref: session.call("add", [name], {}, layer as object), name });
      names.add(name);
    } else if (what === 1 && held.length > 0) {
      const { ref, name } = held.splice(random.below(held.length), 1)[0]!;
      // The server tells at once, even while changes wait for the reader.
      hub.frames.push({ type: "made", ref, version: hub.version + 1 });
      hub.change([{ op: "add", path: `/items/${random.below(2)}`, value: { id: `${ref}`, name } }]);
      if (random.below(2) > 0)
        hub.change([{ op: "add", path: "/items/-", value: { id: `${ref}+`, name: `${name}+` } }]);
      hub.flush(random);
      hub.frames.push({ type: "result", ref, done: true });
      made++;
    } else if (what === 2) {
      hub.change([{ op: "add", path: "/items/0", value: { id: `o${step}`, name: `other ${step}` } }]);
      if (random.below(2) > 0) hub.flush(random);
    } else if (what === 3 && held.length > 0) {
      const { ref, name } = held.shift()!;
      hub.frames.push({ type: "error", ref, code: "rejected", message: "no" });
      names.delete(name);
    } else {
      for (const frame of hub.frames.splice(0, 1 + random.below(4))) {
        session.receive(frame);
        check();
      }
    }
  }
  hub.flush(random);
  for (const frame of hub.frames.splice(0)) {
    session.receive(frame);
    check();
  }
  for (const { ref } of held) session.receive({ type: "error", ref, code: "rejected", message: "no" });
  session.takeEvents();
  expect(layers.show(session.shown)).toEqual(hub.state);
  expect(layers.show(session.shown)).toBe(session.shown);
  return made;
}

test("over random schedules, the item of a call is shown once, and the server's state at the end", () => {
  let made = 0;
  for (let seed = 1; seed <= 300; seed++) made += play(new Random(seed));
  expect(made).toBeGreaterThan(500);
});
