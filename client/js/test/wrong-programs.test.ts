/** Wrong programs: `tsc` complains of each line that would compile. Right ones are at the end. */

import { readFileSync } from "node:fs";
import { expect, expectTypeOf, test } from "vitest";

import { PlaitError, ThreadClient, bindText, compare, keepIn, messages, text, undo } from "../src/index.js";
import { useMessages, useRpc, useText, useThread, useThreadEvent, useThreadState } from "../src/react.js";

interface Card {
  id: string;
  title: string;
  due?: Date | null;
}

interface Board {
  title: string;
  score: number;
  cards: Card[];
  byName: Record<string, Card>;
  pair: [number, string];
}

interface Rpcs {
  add(title: string, count?: number): number;
  talk(topic: string): AsyncIterable<string>;
  "run:support"(input: { message: string }): string;
}

interface Events {
  goal: { by: string };
}

type Room = ThreadClient<Board, Rpcs, Events>;

const PLACE = { kind: "board", name: "a" };

// All of this is only looked at by the type checker.

export function writes(room: Room, error: PlaitError): void {
  // @ts-expect-error 1: there is no such member.
  void room.update("/typo", 1);
  // @ts-expect-error 2: nor in an element.
  void room.update("/cards/0/titel", "x");
  // @ts-expect-error 3: a list has numbers.
  void room.update("/cards/first", { id: "a", title: "x" });
  // @ts-expect-error 4: a pointer begins with a slash.
  void room.update("score", 1);
  // @ts-expect-error 5: the score is a number.
  void room.update("/score", "three");
  // @ts-expect-error 6: there is nothing inside of a number.
  void room.update("/score/x", 1);
  // @ts-expect-error 7: a card has an id.
  void room.update("/cards/-", { title: "x" });
  // @ts-expect-error 8: a state has all its members.
  void room.set({ title: "x" });
  // @ts-expect-error 9: what is handed over is readonly.
  void room.set((board) => ((board.score = 1), board));
  // @ts-expect-error 10: a function of `set` returns a state.
  void room.set((board) => board.score);
  // @ts-expect-error 11: and at once.
  void room.set(async (board) => board);
  // @ts-expect-error 12: a recipe cannot be async.
  void room.edit(async (board) => void (board.score = 1));
  // @ts-expect-error 13: nor return a promise.
  void room.edit((board) => Promise.resolve(board));
  // @ts-expect-error 14: there is no such member of a draft.
  void room.edit((board) => void (board.scor = 1));
  // @ts-expect-error 15: the state is readonly.
  room.state!.score = 1;
  // @ts-expect-error 16: it may not be there yet.
  void room.state.score;
  // @ts-expect-error 17: a state is not waited for with a promise.
  void room.waitFor(async (board) => board.score > 1);
  // @ts-expect-error 18: a symbol is no JSON.
  room.setPresence(Symbol());
  // @ts-expect-error 19: nor is a function.
  room.setPresence(() => 1);
  // @ts-expect-error 20: nor a Map, inside of an object.
  room.setPresence({ seen: new Map<string, number>() });
  // @ts-expect-error 21: nor a Set.
  room.send(new Set([1]));
  // @ts-expect-error 22: a promise is not awaited.
  room.send(Promise.resolve(1));
  // @ts-expect-error 23: there is no such code.
  void (error.code === "confilct");
  // @ts-expect-error 24: nor this one.
  if (error.code === "read_only") throw error;
}

export function calls(room: Room): void {
  // @ts-expect-error 25: there is no such method.
  void room.call("ad", "x");
  // @ts-expect-error 26: the title is text.
  void room.call("add", 1);
  // @ts-expect-error 27: and is missing.
  void room.rpc.add();
  // @ts-expect-error 28: the result is a number.
  void room.call("add", "x").then((count) => count.length);
  // @ts-expect-error 29: no agent has this name.
  void room.run("suport", { message: "x" });
  // @ts-expect-error 30: an agent has its input.
  void room.run("support", "x");
  // @ts-expect-error 31: no event has this name.
  room.onEvent("gaol", () => undefined);
  // @ts-expect-error 32: nor its data this member.
  room.onEvent("goal", (goal) => goal.who);
}

export function makes(room: Room): void {
  // @ts-expect-error 33: a storage needs keepIn.
  new ThreadClient({ ...PLACE, storage: localStorage });
  // @ts-expect-error 34: an option is what the package exports for it.
  new ThreadClient({ ...PLACE, undo: true });
  // @ts-expect-error 35: not another one.
  new ThreadClient({ ...PLACE, text: undo });
  // @ts-expect-error 36: a thread has a name.
  new ThreadClient({ kind: "board" });
  // @ts-expect-error 37: a selector is no name of an element.
  bindText("#note", room, "/title");
}

export function Hooks(): unknown {
  const untyped = useThread(PLACE);
  // @ts-expect-error 38: nothing is known of a state without a type.
  void untyped.state.score;
  const room = useThread<Board, Rpcs, Events>({ ...PLACE, messages });
  // @ts-expect-error 39: a selector is given the state's members.
  useThreadState(room, (board) => board?.scor);
  // @ts-expect-error 40: no method has this name.
  return useRpc(room, "ad");
}

// Right programs

interface Note {
  note: string;
  own: string | null;
}

class Point {
  x = 1;
  move(): void {
    this.x++;
  }
}

export function right(room: Room, any: ThreadClient, index: number, pointer: string, given: unknown): void {
  void room.update("/score", 1);
  void room.update("", { title: "x", score: 1, cards: [], byName: {}, pair: [1, "a"] });
  void room.update(`/cards/${index}/title`, "x");
  void room.update("/cards/-", { id: "a", title: "x" });
  void room.update(`/byName/${pointer}/title`, "x");
  void room.update("/byName/Ada", { id: "a", title: "x" });
  void room.update("/pair/0", 1);
  void room.update("/cards/0/due", null);
  void room.update(pointer, given);
  void any.update("/anything/at/all", Math.random());
  void room.edit((board) => board.cards.push({ id: "a", title: "x" }));
  void room.edit((board) => ({ ...board, score: 1 }));
  void room.edit((board) => void board.cards.splice(0));
  void room.set((board) => ({ ...board, cards: board.cards.filter(({ id }) => id !== "a") }));
  room.setPresence({ name: "Ada", at: new Date(), point: new Point(), missing: undefined });
  room.setPresence({ ...(room.ownPresence as object), caret: null });
  room.setPresence({ title: "x" } as Partial<Card>);
  room.setPresence(null);
  room.send(new Uint8Array(1));
  room.send([1, "two", { three: 3n }]);
  room.send(given);
  const takesAny = (client: ThreadClient): string => client.kind;
  void takesAny(room);
  void room.messages.send("Hi");
  void new ThreadClient<Note>({ ...PLACE, text, undo, compare, messages, storage: keepIn(localStorage) }).undo("/note");
}

export function RightHooks(): unknown {
  const untyped = useThread({ ...PLACE, messages });
  const state = useThreadState(untyped) as Note | undefined;
  void untyped.messages.send("Hi");
  const { items } = useMessages(untyped);
  const room = useThread<Note, Rpcs, Events>(PLACE);
  useThreadEvent(room, "goal", ({ by }) => by);
  void untyped.call("anything", 1);
  return [state, items, useText(room, "/note"), useThreadState(room, (note) => note?.note)];
}

test("what is at a place has the type of the state's member", () => {
  type Updated<Pointer extends string> = Parameters<typeof ThreadClient.prototype.update<Pointer>>[1];
  expectTypeOf<Updated<"/a">>().toBeUnknown();
});

test("each code of the server's errors is a code of the type", () => {
  const read = (path: string) => readFileSync(new URL(path, import.meta.url), "utf8");
  const codes = [...read("../../../server/plait/errors.py").matchAll(/^ {4}code(?:: ClassVar\[str\])? = "(\w+)"/gm)];
  const typed = new Set([...read("../src/errors.ts").matchAll(/^ {2}\| "(\w+)"/gm)].map(([, code]) => code));
  expect(codes.length).toBeGreaterThan(20);
  expect(codes.map(([, code]) => code).filter((code) => !typed.has(code))).toEqual([]);
});
