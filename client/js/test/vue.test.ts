// @vitest-environment jsdom
import { effect, reactive, ref } from "@vue/reactivity";
import { expect, test } from "vitest";

import { ThreadClient } from "../src/full.js";
import { clients, server, serving } from "./serving.js";

serving();

async function joined(): Promise<ThreadClient<{ n: number }>> {
  const client = new ThreadClient<{ n: number }>({ host: server.host, kind: "note", name: "a" });
  clients.push(client);
  await (await server.peer()).join({ state: { n: 1 } });
  await client.ready;
  return client;
}

test("a client in a ref or a reactive object of Vue is the client itself, and works", async () => {
  const client = await joined();
  // Vue's types would take it apart, member by member; those of `shallowRef` leave it as it is.
  const raw: object = client;
  const rooms = { ref: ref(raw).value, reactive: reactive({ raw }).raw, own: reactive(raw), list: ref([raw]).value[0] };
  for (const [name, each] of Object.entries(rooms)) {
    const room = each as typeof client;
    expect(room, name).toBe(client);
    expect([room.state, room.status, room.canUndo()], name).toEqual([{ n: 1 }, "online", false]);
  }
});

test("what a client tells a ref of its state is shown by what depends on that", async () => {
  const client = await joined();
  const state = ref(client.state);
  const shown: unknown[] = [];
  effect(() => shown.push(state.value?.n));
  client.subscribe(() => (state.value = client.state));
  client.update("/n", 2).catch(() => undefined);
  expect(shown).toEqual([1, 2]);
});

test("methods can be taken off a client, also those of a subclass", async () => {
  class Room extends ThreadClient<{ n: number }> {
    override subscribe(fn: () => void): () => void {
      told.push("own");
      return super.subscribe(fn);
    }
  }
  const told: unknown[] = [];
  const room = new Room({ host: server.host, kind: "note", name: "a" });
  clients.push(room);
  await (await server.peer()).join({ state: { n: 1 } });
  await room.ready;
  const { subscribe, update, undo, waitFor, close } = room;
  const unsubscribe = subscribe(() => told.push(room.state?.n));
  update("/n", 2).catch(() => undefined);
  undo()?.catch(() => undefined);
  unsubscribe();
  update("/n", 3).catch(() => undefined);
  expect(told).toEqual(["own", 2, 1]);
  await expect(waitFor(({ n }) => n === 3)).resolves.toEqual({ n: 3 });
  expect(Object.keys(room)).not.toContain("subscribe");
  void close();
});
