import { expect, test } from "vitest";

import type { Json } from "../src/json.js";
import { spliceUnits } from "../src/splicing.js";
import { countPoints, slicePoints } from "../src/points.js";
import type { Parts } from "../src/parts.js";
import { text } from "../src/text-part.js";
import { Hub } from "./hub.js";
import type { Writer } from "./hub.js";
import { Random } from "./random.js";
import { PARTS } from "./whole.js";

const SEEDS = Array.from({ length: 120 }, (_, seed) => seed);
const STEPS = 120;

interface Card {
  readonly id: string;
  readonly body: string;
}

interface Pad {
  readonly note: string;
  readonly cards: readonly Card[];
}

const START: Pad = { note: "", cards: ["a", "b", "c"].map((id) => ({ id, body: "" })) };

/** Writers who type at random in some texts, each character another. */
class Game {
  readonly hub: Hub;
  readonly inserted = new Set<string>();
  readonly removed = new Set<string>();
  readonly #random: Random;
  /** Whether writers are also told whole states, without what was done to make them. */
  readonly #hasStates: boolean;
  #next = 0;

  constructor(random: Random, hasStates: boolean, parts: readonly Parts[]) {
    this.#random = random;
    this.#hasStates = hasStates;
    this.hub = new Hub(START as unknown as Json, ["/note", "/cards/*/body"], parts);
    for (const writer of this.hub.writers) {
      writer.open();
      this.#drain(writer);
    }
  }

  step(): void {
    const random = this.#random;
    const writer = random.pick(this.hub.writers);
    const kind = random.below(20);
    if (kind === 0) writer.lose();
    else if (kind === 1) writer.reload();
    else if (kind === 2 && this.#hasStates) writer.skip();
    else if (kind <= 8) this.#edit(writer);
    else if (kind <= 13) writer.send(this.#knowsChanges());
    else if (kind <= 18) writer.receive();
    if (writer.session.phase === "idle" && random.chance(0.2)) writer.open();
  }

  /** Brings all writers back, and delivers what is on its way. */
  finish(): void {
    const { writers } = this.hub;
    for (const writer of writers) if (writer.session.phase === "idle") writer.open();
    while (writers.some((writer) => this.#drain(writer))) continue;
  }

  #drain(writer: Writer): boolean {
    let isBusy = false;
    while (writer.send(this.#knowsChanges()) || writer.receive()) isBusy = true;
    return isBusy;
  }

  #edit(writer: Writer): void {
    const shown = writer.session.shown as Pad | undefined;
    if (shown === undefined) return;
    const random = this.#random;
    if (!writer.parts.text || random.chance(0.1)) {
      const cards = [...shown.cards];
      cards.splice(random.below(3), 0, ...cards.splice(random.below(3), 1));
      return writer.set({ ...shown, cards } as unknown as Json);
    }
    const place = random.below(4);
    const path = place === 3 ? "/note" : `/cards/${place}/body`;
    const text = place === 3 ? shown.note : (shown.cards[place] as Card).body;
    const at = random.below(countPoints(text) + 1);
    const end = Math.min(at + random.below(4), countPoints(text));
    const [head, old, tail] = [slicePoints(text, 0, at), slicePoints(text, at, end), slicePoints(text, end, Infinity)];
    const insert = Array.from({ length: random.below(4) }, () => this.#character()).join("");
    for (const character of old) this.removed.add(character);
    if (random.chance(0.5))
      writer.push(spliceUnits(shown as unknown as Json, path, [{ at: head.length, remove: old.length, insert }]));
    else writer.set(withText(shown, place, head + insert + tail) as unknown as Json);
  }

  #knowsChanges(): boolean {
    return !this.#hasStates || this.#random.chance(0.5);
  }

  /** A character of one or of two UTF-16 units that was nowhere before. */
  #character(): string {
    const character = String.fromCodePoint((this.#random.chance(0.5) ? 0xf0000 : 0xe000) + this.#next++);
    this.inserted.add(character);
    return character;
  }
}

function withText(pad: Pad, place: number, text: string): Pad {
  if (place === 3) return { ...pad, note: text };
  return { ...pad, cards: pad.cards.map((card, index) => (index === place ? { ...card, body: text } : card)) };
}

function characters({ note, cards }: Pad): string[] {
  return [note, ...cards.map(({ body }) => body)].flatMap((text) => [...text]);
}

/** Plays a game to its end, and returns the characters that are there, and those that no writer has removed. */
function play(seed: number, hasStates: boolean, first: Parts): { found: string[]; expected: string[] } {
  const random = new Random(seed);
  const others = Array.from({ length: 1 + random.below(4) }, () => (first.text ? first : PARTS));
  const game = new Game(random, hasStates, [first, ...others]);
  for (let step = 0; step < STEPS; step++) game.step();
  game.finish();
  for (const { session } of game.hub.writers) {
    expect(session.shown, `seed ${seed}`).toEqual(game.hub.state);
    expect(session.pushes).toEqual([]);
  }
  const expected = [...game.inserted].filter((character) => !game.removed.has(character));
  return { found: characters(game.hub.state as unknown as Pad), expected };
}

test.each<[string, Parts, number]>([
  ["writers of the same texts", PARTS, 3_000],
  ["writers with one who cannot type", {}, 2_000],
  ["writers who compare nothing closely", { text }, 3_000],
])("%s come to the same state, in which each character is that was not removed", (_, parts, least) => {
  let count = 0;
  for (const seed of SEEDS) {
    const { found, expected } = play(seed, seed % 2 === 0, parts);
    expect(found.sort(), `seed ${seed}`).toEqual(expected.sort());
    count += found.length;
  }
  expect(count).toBeGreaterThan(least);
});
