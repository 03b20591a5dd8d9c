import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { WebSocket } from "ws";

import { PlaitError, ThreadClient } from "../../src/full.js";
import { Random } from "../random.js";
import { HAS_SERVER, Process } from "./process.js";

/** How many random runs; more are tried with PLAIT_SCHEDULES=200. */
const SCHEDULES = Number(process.env["PLAIT_SCHEDULES"] ?? 30);
const STEPS = 40;

interface Note {
  n: number;
  items: string[];
  fields: Record<string, Record<string, number>>;
  text: string;
}

const server = new Process();

beforeAll(() => (HAS_SERVER ? server.start() : undefined), 30_000);
afterAll(() => server.remove());

/** One client with its sockets, and the fate of the items that it has put in. */
class Player {
  readonly client: ThreadClient<Note>;
  readonly applied: string[] = [];
  readonly refused: string[] = [];
  /** The characters that it has typed, each of them another, and those that it has removed. */
  readonly typed: string[] = [];
  readonly erased = new Set<string>();
  readonly open: Promise<void>[] = [];
  readonly #random: Random;
  readonly #id: string;
  readonly #characters: Generator<string>;
  #socket: WebSocket | undefined = undefined;
  #items = 0;

  constructor(id: string, name: string, random: Random, characters: Generator<string>) {
    this.#id = id;
    this.#characters = characters;
    this.#random = random;
    const player = this;
    const Traced = class extends WebSocket {
      constructor(url: string, protocols?: string | string[]) {
        super(url, protocols);
        player.#socket = this;
      }
    };
    this.client = new ThreadClient<Note>({ host: server.host, kind: "note", name, WebSocket: Traced });
  }

  act(): void {
    const random = this.#random;
    const length = this.client.state?.items.length ?? 0;
    const kind = random.below(14);
    if (kind === 0) this.#socket?.terminate();
    else if (kind <= 3) this.#insert(random.below(length + 1));
    else if (kind === 4 && length > 0)
      this.#track(this.client.edit((note) => note.items.splice(random.below(length), 1)));
    else if (kind === 5) this.#track(this.client.update("/n", random.below(5) - 1));
    else if (kind === 6) this.#track(this.client.edit((note) => delete note.fields[random.pick(["a", "b"])]));
    else if (kind <= 9) this.#track(this.client.edit((note) => this.#field(note)));
    else this.#type(this.client.state?.text ?? "");
  }

  /** Types at random in the text; whatever others do, that is never refused. */
  #type(text: string): void {
    const points = [...text];
    const [start, count] = [this.#random.below(points.length + 1), this.#random.below(3)];
    const old = points.slice(start, start + count);
    const insert = Array.from({ length: this.#random.below(4) }, () => this.#characters.next().value as string);
    this.typed.push(...insert);
    for (const character of old) this.erased.add(character);
    const change = this.client.splice(
      "/text",
      points.slice(0, start).join("").length,
      old.join("").length,
      insert.join(""),
    );
    this.open.push(change.then(() => undefined));
  }

  #field(note: Note): void {
    const key = this.#random.pick(["a", "b"]);
    note.fields[key] ??= {};
    note.fields[key][this.#random.pick(["x", "y"])] = this.#random.below(100);
  }

  #insert(index: number): void {
    const item = `${this.#id}${++this.#items}`;
    const change = this.client.edit((note) => note.items.splice(index, 0, item));
    this.open.push(
      change.then(
        () => void this.applied.push(item),
        () => void this.refused.push(item),
      ),
    );
  }

  #track(change: Promise<number>): void {
    this.open.push(
      change.then(
        () => undefined,
        (error: unknown) => expect(error).toBeInstanceOf(PlaitError),
      ),
    );
  }
}

/** Characters of one and of two UTF-16 units. */
function* charactersOf(random: Random): Generator<string> {
  for (let next = 0; ; next++) yield String.fromCodePoint((random.chance(0.5) ? 0xf0000 : 0xe000) + next);
}

async function play(seed: number): Promise<void> {
  const random = new Random(seed);
  const characters = charactersOf(random);
  const players = ["a", "b", "c"].map((id) => new Player(id, `schedule-${seed}`, random, characters));
  const removed = new Set<string>();
  await Promise.all(players.map((player) => player.client.ready));
  for (let step = 0; step < STEPS; step++) {
    const player = random.pick(players);
    const before = new Set(player.client.state?.items);
    player.act();
    for (const item of player.client.state?.items ?? []) before.delete(item);
    before.forEach((item) => removed.add(item));
    if (step === STEPS / 2 && seed % 10 === 5) await server.end("SIGKILL").then(() => server.start());
    if (random.chance(0.4)) await new Promise((resolve) => setImmediate(resolve));
  }
  await Promise.all(players.flatMap((player) => player.open));
  const last = Math.max(...players.map((player) => player.client.version ?? 0));
  await Promise.all(
    players.map(({ client }) => client.waitFor(() => client.version === last && client.status === "online")),
  );

  const fresh = new ThreadClient<Note>({
    host: server.host,
    kind: "note",
    name: `schedule-${seed}`,
    WebSocket,
  });
  await fresh.ready;
  const items = fresh.state?.items ?? [];
  for (const { client, applied, refused } of players) {
    expect(client.state).toEqual(fresh.state);
    expect([client.version, client.pending]).toEqual([fresh.version, 0]);
    expect(applied.filter((item) => !items.includes(item) && !removed.has(item))).toEqual([]);
    expect(refused.filter((item) => items.includes(item))).toEqual([]);
    client.close();
  }
  expect(new Set(items).size).toBe(items.length);
  const typed = players.flatMap((player) => player.typed);
  const kept = typed.filter((character) => !players.some((player) => player.erased.has(character)));
  expect([...(fresh.state?.text ?? "")].sort()).toEqual(kept.sort());
  fresh.close();
}

describe.runIf(HAS_SERVER)("with a plait server", () => {
  test(
    "clients that edit at random and lose their sockets and their server show the server's state when all is quiet",
    { timeout: 600_000 },
    async () => {
      for (let seed = 0; seed < SCHEDULES; seed++) {
        await play(seed).catch((error: unknown) => {
          throw new Error(`schedule ${seed}`, { cause: error });
        });
      }
    },
  );
});
