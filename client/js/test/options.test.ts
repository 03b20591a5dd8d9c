import { expect, test } from "vitest";

import { ThreadClient } from "../src/index.js";
import { socketUrl, storageKey, threadId } from "../src/options.js";

const NOTE = { kind: "note", name: "a/b c" };

test("an address is made of a host, with a path where the app is mounted under one", () => {
  expect(socketUrl({ ...NOTE, host: "localhost:8000" })).toBe("ws://localhost:8000/threads/note/a%2Fb%20c");
  expect(socketUrl({ ...NOTE, host: "h/app", secure: true })).toBe("wss://h/app/threads/note/a%2Fb%20c");
  expect(socketUrl({ ...NOTE, url: "https://h/x?y=1" })).toBe("wss://h/x?y=1");
  expect(socketUrl({ ...NOTE, url: new URL("ws://h/x") })).toBe("ws://h/x");
});

test.each([
  { host: "http://localhost:8000" },
  { host: "//localhost" },
  { host: "local host" },
  { host: "localhost:80000" },
  { host: "h?a=1" },
  { host: "h#a" },
  { url: "localhost:8000/threads/note/a" },
  { url: "/threads/note/a" },
  { url: "ftp://h/x" },
  { url: "ws://h/x#y" },
])("with %j a client is not made, whether or not it would connect", (place) => {
  const bad = expect.objectContaining({ name: "PlaitError", code: "bad_url" }) as Error;
  for (const connect of [true, false]) expect(() => new ThreadClient({ ...NOTE, ...place, connect })).toThrow(bad);
});

test("a mistake in an address tells nothing of its query", () => {
  expect(() => socketUrl({ ...NOTE, url: "ftp://h/x?token=secret" })).toThrow(/^[^?]*$/);
});

test("threads of other servers and apps have other ids, in which there is no query", () => {
  expect(threadId({ ...NOTE, url: "https://h:1/app/threads/note/a?token=secret" })).toBe("h:1/app/threads/note/a");
  const ids = ["h", "h:1", "g", "h/app"].map((host) => threadId({ ...NOTE, host }));
  expect(new Set(ids).size).toBe(4);
});

test("threads of two servers, and clients with ids of their own, share no key in a storage", () => {
  const key = (more: object) => storageKey({ kind: "note", name: "a", host: "h", ...more });
  expect(key({})).toBe("plait:h/threads/note/a");
  expect(key({ url: "ws://h/threads/note/a?token=secret" })).toBe(key({}));
  expect(new Set([{}, { host: "g" }, { host: "h/app" }, { client: "me" }, { client: "you" }].map(key)).size).toBe(5);
});
