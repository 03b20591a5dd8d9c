import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from "vitest";
import { WebSocket } from "ws";

import { ThreadClient } from "../../src/full.js";
import { listThreads, watchThreads } from "../../src/index.js";
import type { StorageLike, ThreadList } from "../../src/index.js";
import { Arrivals } from "../server.js";
import { Locks, MemoryStorage } from "../storages.js";
import { HAS_SERVER, Process } from "./process.js";

interface Note {
  n: number;
  items: string[];
  fields: Record<string, unknown>;
  text: string;
}

const server = new Process();
const clients: ThreadClient[] = [];
let threads = 0;

beforeAll(() => (HAS_SERVER ? server.start() : undefined), 30_000);
afterAll(() => server.remove());
afterEach(() => clients.splice(0).forEach((client) => client.close()));

async function open(name: string, storage?: StorageLike): Promise<ThreadClient<Note>> {
  const client = new ThreadClient<Note>({
    host: server.host,
    kind: "note",
    name,
    storage,
    WebSocket,
  });
  clients.push(client);
  await client.ready;
  return client;
}

async function pair(): Promise<[ThreadClient<Note>, ThreadClient<Note>]> {
  const name = `pair ${++threads}/x`;
  return [await open(name), await open(name)];
}

describe.runIf(HAS_SERVER)("the threads of a plait server", () => {
  test("are listed, and the list follows what happens and the server's restarts", async () => {
    const kind = { host: server.host, kind: "table" };
    const opened = async (name: string) => {
      const client = new ThreadClient<{ title: string }>({ ...kind, name, WebSocket });
      clients.push(client);
      await client.ready;
      return client;
    };
    const first = await opened("é/1");
    await first.update("/title", "chess");
    expect(await listThreads({ ...kind, limit: 1 })).toEqual({
      threads: [{ name: "é/1", people: 1, card: { title: "chess" } }],
      next: null,
      silent: 0,
      more: false,
    });
    const seen: ThreadList[] = [];
    const people = () => seen.at(-1)?.threads.map(({ name, people }) => [name, people]);
    const stop = watchThreads(kind, (list) => seen.push(list));
    await vi.waitFor(() => expect(people()).toEqual([["é/1", 1]]), 20_000);
    const second = await opened("2");
    await vi.waitFor(() => expect(people()).toEqual([["2", 1], ["é/1", 1]]), 20_000); // prettier-ignore
    await second.close();
    await server.end("SIGKILL");
    await vi.waitFor(() => expect(seen.at(-1)?.status).toBe("offline"), 20_000);
    await server.start();
    await vi.waitFor(() => expect(people()).toEqual([["2", 0], ["é/1", 1]]), 20_000); // prettier-ignore
    expect(seen.at(-1)?.status).toBe("online");
    stop();
    await expect(listThreads({ ...kind, kind: "note" })).rejects.toMatchObject({ code: "not_found" });
  }, 60_000);
});

describe.runIf(HAS_SERVER)("with a plait server that takes only so much", () => {
  const limited = new Process("limited:app");

  beforeAll(() => limited.start(), 30_000);
  afterAll(() => limited.remove());

  test("of more messages than it takes all arrive, in order, and the last presence is seen", async () => {
    const [ada, grace] = [1, 2].map(() => {
      const client = new ThreadClient({ host: limited.host, kind: "note", name: "a", WebSocket });
      clients.push(client);
      return client;
    }) as [ThreadClient, ThreadClient];
    await Promise.all([ada.ready, grace.ready]);
    const heard: unknown[] = [];
    const all = new Promise((resolve) => grace.onMessage((n) => heard.push(n) === 1_500 && resolve(undefined)));
    for (let n = 0; n < 1_500; n++) ada.send(n);
    await all;
    expect(heard).toEqual(Array.from({ length: 1_500 }, (_, n) => String(n)));
    for (let n = 0; n < 500; n++) ada.setPresence({ n });
    await vi.waitFor(() => expect(Object.values(grace.presence)).toEqual([{ n: 499 }]), 60_000);
    expect([ada.status, ada.trouble]).toEqual(["online", undefined]);
  });
});

describe.runIf(HAS_SERVER)(
  "with a plait server that takes hardly more at once than a client may have on its way",
  () => {
    const tight = new Process("limited:tight");

    beforeAll(() => tight.start(), 30_000);
    afterAll(() => tight.remove());

    test("all messages arrive and all changes are made, and no client is closed for them", async () => {
      const [ada, grace] = [1, 2].map(() => {
        const client = new ThreadClient({ host: tight.host, kind: "note", name: "a", WebSocket });
        clients.push(client);
        return client;
      }) as [ThreadClient, ThreadClient];
      await Promise.all([ada.ready, grace.ready]);
      const [heard, statuses] = [[] as unknown[], new Set<string>()];
      ada.subscribe(() => statuses.add(ada.status));
      const all = new Promise((resolve) => grace.onMessage((n) => heard.push(n) === 600 && resolve(undefined)));
      for (let n = 0; n < 600; n++) ada.send(n);
      await all;
      expect(heard).toEqual(Array.from({ length: 600 }, (_, n) => String(n)));
      await Promise.all(Array.from({ length: 600 }, (_, n) => ada.update(`/fields/${n}`, n)));
      expect([...statuses]).toEqual(["online"]);
    });
  },
);

describe.runIf(HAS_SERVER)("with a plait server", () => {
  test("a change reaches the other client, and its version the one that made it", async () => {
    const [ada, grace] = await pair();
    const version = ada.edit((note) => void note.items.push("a"));
    expect(ada.state?.items).toEqual(["a"]);
    expect(await version).toBe(1);
    expect(await grace.waitFor((note) => note.items.length === 1)).toEqual({
      n: 0,
      items: ["a"],
      fields: {},
      text: "",
    });
    expect([ada.version, grace.version]).toEqual([1, 1]);
  });

  test("integers beyond 2^53, and keys that mean something else in JavaScript, go there and back", async () => {
    const [ada, grace] = await pair();
    await ada.update("/fields/large", [9007199254740993n, -(2n ** 63n), 2n ** 64n - 1n]);
    await ada.update("/fields/__proto__", { constructor: 1 });
    await ada.update("/fields/__proto__/prototype", {});
    const { fields } = await grace.waitFor((note) => Object.keys(note.fields["__proto__"] ?? {}).length === 2);
    expect(JSON.stringify(Object.keys(fields))).toBe('["large","__proto__"]');
    expect(fields["large"]).toEqual([9007199254740993n, -(2n ** 63n), 2n ** 64n - 1n]);
    await grace.update("/fields/__proto__", 7);
    expect((await ada.waitFor((note) => note.fields["__proto__"] === 7)).n).toBe(0);
    const read = await fetch(`http://${server.host}/threads/note/${encodeURIComponent(ada.name)}`);
    expect(await read.text()).toContain("[9007199254740993,-9223372036854775808,18446744073709551615]");
  });

  test("a change that the thread refuses is rolled back", async () => {
    const [ada, grace] = await pair();
    await expect(ada.update("/n", -1)).rejects.toMatchObject({ code: "rejected", path: "/n" });
    expect([ada.state?.n, grace.state?.n]).toEqual([0, 0]);
  });

  test("what is too large for the server is refused here, on a socket that stays", async () => {
    const [ada, grace] = await pair();
    const large = "x".repeat(1024 * 1024);
    const statuses: string[] = [];
    ada.subscribe(() => statuses.push(ada.status));
    await expect(ada.update("/fields/x", large)).rejects.toMatchObject({ code: "too_large" });
    await expect(ada.call("add_item", large)).rejects.toMatchObject({ code: "too_large" });
    expect(() => ada.setPresence(large)).toThrow("larger than the server takes");
    expect(await ada.update("/n", 1)).toBe(1);
    await grace.waitFor((note) => note.n === 1);
    expect(new Set(statuses)).toEqual(new Set(["online"]));
  });

  test("a call after more changes than may be without an answer sees them all", async () => {
    const [ada] = await pair();
    for (let n = 0; n < 100; n++) void ada.edit((note) => void note.items.push(String(n)));
    expect(await ada.call("add_item", "last")).toBe(101);
  });

  test("changes that cross are both kept", async () => {
    const [ada, grace] = await pair();
    await Promise.all([
      ada.edit((note) => void note.items.unshift("ada")),
      grace.edit((note) => void note.items.unshift("grace")),
      grace.update("/fields/x", 1),
      ada.update("/n", 7),
    ]);
    await Promise.all([ada, grace].map((client) => client.waitFor(() => client.version === 4)));
    expect(ada.state).toEqual(grace.state);
    expect(ada.state).toMatchObject({ n: 7, fields: { x: 1 } });
    expect([...(ada.state?.items ?? [])].sort()).toEqual(["ada", "grace"]);
  });

  test("methods return, stream and fail", async () => {
    const [ada] = await pair();
    expect(await ada.rpc.addItem?.("x")).toBe(1);
    expect(ada.state?.items).toEqual(["x"]);
    const numbers: number[] = [];
    for await (const number of ada.stream("count_to", 3)) numbers.push(number);
    expect(numbers).toEqual([1, 2, 3]);
    await expect(ada.call("count_to", "x")).rejects.toMatchObject({ code: "invalid_arguments" });
    await expect(ada.call("nothing")).rejects.toMatchObject({ code: "method_not_found" });
  });

  test("agents run, stream, and are interrupted by anybody", async () => {
    const [ada, grace] = await pair();
    expect(await ada.run("count", 3)).toEqual([0, 1, 2]);
    const chunks: unknown[] = [];
    for await (const chunk of ada.runStream("count", 1_000_000)) if (chunks.push(chunk) === 3) break;
    expect(chunks).toEqual([0, 1, 2]);
    const written = ada.run("write", 1_000_000);
    await grace.waitFor((note) => Number(note.text) > 10);
    expect(await grace.interrupt("enough")).toBe(true);
    expect(await written).toEqual({ message: "enough", output: null, interrupted: true });
    expect(Number(ada.state?.text)).toBeGreaterThan(10);
    expect(await grace.interrupt()).toBe(false);
    await expect(ada.run("write", "many")).rejects.toMatchObject({ code: "invalid_arguments" });
  });

  test("events, messages and presence reach the others", async () => {
    const [ada, grace] = await pair();
    const heard = new Arrivals<unknown>();
    grace.onEvent("cheer", (data) => heard.put(data));
    grace.onMessage((data) => heard.put(data));
    await ada.call("cheer", "Ada");
    expect(await heard.take()).toEqual({ for: "Ada" });
    ada.send("hello");
    expect(await heard.take()).toBe("hello");
    ada.setPresence({ name: "Ada" });
    await grace.waitFor(() => ada.connection !== undefined && ada.connection in grace.presence);
    expect(grace.presence[ada.connection ?? ""]).toEqual({ name: "Ada" });
    ada.close();
    await grace.waitFor(() => Object.keys(grace.presence).length === 0);
  });

  test("a server that is killed and comes back is resumed with, and what was changed in between is sent once", async () => {
    const [ada, grace] = await pair();
    await ada.update("/fields/before", 1);
    await server.end("SIGKILL");
    await ada.waitFor(() => ada.status === "offline");
    const versions = [ada.edit((note) => void note.items.push("offline")), ada.update("/n", 5)];
    expect(ada.state).toMatchObject({ n: 5, items: ["offline"] });
    await server.start();
    expect(await Promise.all(versions)).toEqual([2, 3]);
    await grace.waitFor((note) => note.n === 5);
    expect(grace.state).toEqual({ n: 5, items: ["offline"], fields: { before: 1 }, text: "" });
    expect(ada.state).toEqual(grace.state);
  });

  test("what two tabs have left is carried out once, by one that comes later", async () => {
    vi.stubGlobal("navigator", { locks: new Locks() });
    const storage = new MemoryStorage();
    const tabs = [await open("left", storage), await open("left", storage)];
    await server.end("SIGKILL");
    for (const [index, tab] of tabs.entries()) {
      await tab.waitFor(() => tab.status === "offline");
      void tab.edit((note) => void note.items.push(`tab ${index}`)).catch(() => undefined);
      tab.close();
    }
    await server.start();
    const later = await open("left", storage);
    const { items } = await later.waitFor((note) => note.items.length === 2 && later.pending === 0);
    expect([...items].sort()).toEqual(["tab 0", "tab 1"]);
    vi.unstubAllGlobals();
  });
});
