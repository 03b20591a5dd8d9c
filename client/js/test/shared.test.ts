// @vitest-environment jsdom
import { afterEach, beforeEach, expect, test, vi } from "vitest";

import type { ThreadClient, ThreadOptions } from "../src/index.js";
import { keepIn } from "../src/keep.js";
import { SharedClients } from "../src/shared.js";
import { MemoryStorage } from "./storages.js";
import { jwt } from "./tokens.js";

const OPTIONS = { host: "127.0.0.1:1", kind: "note", name: "a" };

const opened = new Set<ThreadClient>();

class Clients extends SharedClients {
  override get(options: ThreadOptions<any>): ThreadClient {
    const client = super.get(options);
    opened.add(client);
    return client;
  }
}

beforeEach(() => void vi.useFakeTimers());

afterEach(() => {
  // One that still connects would do so after its page is gone.
  for (const client of opened) void client.close();
  opened.clear();
  vi.useRealTimers();
});

test("a client that was rendered and never held is closed, and gives way to another", () => {
  const clients = new Clients();
  const abandoned = clients.get(OPTIONS);
  vi.advanceTimersByTime(59_000);
  expect([clients.get(OPTIONS), abandoned.status]).toEqual([abandoned, "connecting"]);
  vi.advanceTimersByTime(1_000);
  expect(abandoned.status).toBe("closed");
  expect(clients.hold(abandoned)).toBeUndefined();
  expect(clients.get(OPTIONS)).not.toBe(abandoned);
  vi.advanceTimersByTime(60_000);
  expect(vi.getTimerCount()).toBe(0);
});

test("what waits for a client that cannot connect fails when it is closed, and may wait for another", async () => {
  const clients = new Clients();
  const refused = expect(clients.get(OPTIONS).ready).rejects.toMatchObject({ code: "closed" });
  vi.advanceTimersByTime(60_000);
  await refused;
  expect(clients.get(OPTIONS).status).not.toBe("closed");
});

test("a client that is held stays, until a moment after it is released", () => {
  const clients = new Clients();
  const client = clients.get(OPTIONS);
  const release = clients.hold(client);
  vi.advanceTimersByTime(600_000);
  expect([clients.get(OPTIONS), client.status === "closed"]).toEqual([client, false]);
  release?.();
  clients.hold(clients.get(OPTIONS))?.();
  vi.advanceTimersByTime(1_000);
  expect(client.status).toBe("closed");
});

test("a client that was released with changes that have no answer is kept for them, and tells what it drops at last", () => {
  const clients = new Clients();
  const client = clients.get(OPTIONS);
  const refused: string[] = [];
  client.onRefused(({ error }) => refused.push(error.code));
  const release = clients.hold(client);
  void client.update("/n", 1);
  release?.();
  vi.advanceTimersByTime(60_000);
  expect([clients.get(OPTIONS), refused]).toEqual([client, []]);
  vi.advanceTimersByTime(1_000);
  expect([client.status, refused]).toEqual(["closed", ["closed"]]);
});

test("a client that was released is not for another token, another storage or another id", () => {
  const clients = new Clients();
  const ada = { ...OPTIONS, token: "ada", storage: keepIn(new MemoryStorage()) };
  const client = clients.get(ada);
  clients.hold(client)?.();
  expect(clients.get(ada)).toBe(client);
  expect(clients.get({ ...ada, storage: keepIn(new MemoryStorage()) })).not.toBe(client);
  expect(clients.get({ ...ada, client: "bob" })).not.toBe(client);
  clients.setToken(client, "bob");
  expect(clients.get(ada)).toBe(client);
  const bob = clients.get({ ...ada, token: "bob" });
  expect([bob === client, clients.get({ ...ada, token: "bob" })]).toEqual([false, bob]);
  vi.advanceTimersByTime(1_000);
  expect([client.status, bob.status]).toEqual(["closed", "connecting"]);
});

test("a client that is held is not for another user either, nor for none", () => {
  const clients = new Clients();
  const client = clients.get({ ...OPTIONS, token: "ada" });
  clients.hold(client);
  for (const token of ["bob", undefined, () => "ada"]) expect(clients.get({ ...OPTIONS, token })).not.toBe(client);
  expect(clients.get({ ...OPTIONS, token: "ada" })).toBe(client);
});

test("JWTs that differ in their times are of one user, and all others are not", () => {
  const clients = new Clients();
  const ada = { sub: "ada", name: "Ada \u00e9", exp: 1, iat: 1 };
  const client = clients.get({ ...OPTIONS, token: jwt(ada) });
  const isSame = (token: string) => clients.get({ ...OPTIONS, token }) === client;
  expect(isSame(jwt({ ...ada, exp: 2, iat: 2, jti: "x" }))).toBe(true);
  for (const claims of [{ ...ada, sub: "bob" }, { ...ada, tenant: "b" }, { sub: "ada" }, {}]) {
    expect(isSame(jwt(claims))).toBe(false);
  }
  const [one, two] = [jwt({ exp: 1 }), jwt({ exp: 2 })].map((token) => clients.get({ ...OPTIONS, token }));
  expect(one).not.toBe(two);
  const [own, other] = ["a", "b"].map((jti) => clients.get({ ...OPTIONS, token: jwt({ role: "guest", jti }) }));
  expect(own).not.toBe(other);
  for (const token of ["a.b.c", "..", "a.W10.c"]) expect(isSame(token)).toBe(false);
});
