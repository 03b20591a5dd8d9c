/** Files: their addresses, what is sent for them, and what comes of answers. */

import { createServer } from "node:http";
import type { IncomingMessage, Server, ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { ThreadClient, files } from "../src/index.js";
import type { FileInfo, ThreadOptions } from "../src/index.js";

interface Request {
  method: string | undefined;
  url: string | undefined;
  type: string | undefined;
  authorization: string | undefined;
  body: string;
}

const FILE = { path: "a.txt", name: "a.txt", size: 3, mime: "text/plain" } as FileInfo;

let server: Server;
let host: string;
let requests: Request[];
let answer: (response: ServerResponse) => void;

beforeEach(async () => {
  requests = [];
  answer = (response) => response.writeHead(201).end(JSON.stringify(FILE));
  server = createServer(async (request: IncomingMessage, response) => {
    let body = "";
    for await (const piece of request) body += String(piece);
    const { method, url, headers } = request;
    requests.push({ method, url, type: headers["content-type"], authorization: headers.authorization, body });
    answer(response);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  host = `127.0.0.1:${(server.address() as AddressInfo).port}`;
});

afterEach(async () => {
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
});

function client(options: Partial<ThreadOptions<unknown>> = {}): ThreadClient {
  return new ThreadClient({ kind: "room", name: "a b", host, connect: false, files, ...options });
}

function refuse(status: number, code: string): void {
  answer = (response) => response.writeHead(status).end(JSON.stringify({ error: { code, message: "no" } }));
}

test("a file has an address below its thread, each part of the path encoded", () => {
  const room = client();
  expect(room.files.url("a.txt")).toBe(`http://${host}/threads/room/a%20b/files/a.txt`);
  expect(room.files.url("/docs//ü?#%.md/")).toBe(`http://${host}/threads/room/a%20b/files/docs/%C3%BC%3F%23%25.md`);
  expect(room.files.url("./a.txt")).toBe(room.files.url("a.txt"));
  expect(() => room.files.url("a/../../b")).toThrow(expect.objectContaining({ code: "bad_url" }));
  const other = client({ url: `wss://example.com/sub/threads/room/one?key=1` });
  expect(other.files.url("a.txt")).toBe("https://example.com/sub/threads/room/one/files/a.txt?key=1");
});

test("without the option there are no files", () => {
  expect(client({ files: undefined }).files).toBeUndefined();
});

test.each<[string, Blob | ArrayBuffer | ArrayBufferView | string, string | undefined, string | undefined]>([
  ["a text", "abc", undefined, undefined],
  ["bytes", new TextEncoder().encode("abc"), undefined, undefined],
  ["a blob", new Blob(["abc"], { type: "text/x-own" }), undefined, "text/x-own"],
  ["a blob with another type", new Blob(["abc"], { type: "text/x-own" }), "text/y", "text/y"],
])("%s is sent with its type and the token", async (_, data, type, expected) => {
  const token = vi.fn(() => Promise.resolve("secret"));
  const sent: [number, number][] = [];
  const onProgress = (...progress: [number, number]) => void sent.push(progress);
  expect(await client({ token }).files.upload("d/a.txt", data, { type, onProgress })).toEqual(FILE);
  expect(requests).toEqual([
    {
      method: "PUT",
      url: "/threads/room/a%20b/files/d/a.txt",
      type: expected,
      authorization: "Bearer secret",
      body: "abc",
    },
  ]);
  expect(sent).toEqual([[3, 3]]);
});

test("a refusal is a PlaitError with its code", async () => {
  refuse(413, "too_large");
  await expect(client().files.upload("a", "b")).rejects.toMatchObject({ code: "too_large", message: "no" });
  refuse(404, "not_found");
  expect(await client().files.remove("a")).toBe(false);
  refuse(403, "forbidden");
  await expect(client().files.remove("a")).rejects.toMatchObject({ code: "forbidden" });
  answer = (response) => response.writeHead(204).end();
  expect(await client().files.remove("a")).toBe(true);
  expect(requests.at(-1)).toMatchObject({ method: "DELETE", url: "/threads/room/a%20b/files/a" });
});

test("an upload ends with the reason of its signal, and one to nowhere with `disconnected`", async () => {
  const stop = new AbortController();
  answer = () => stop.abort(new Error("enough"));
  await expect(client().files.upload("a", "b", { signal: stop.signal })).rejects.toThrow("enough");
  await expect(client().files.upload("a", "b", { signal: stop.signal })).rejects.toThrow("enough");
  expect(requests.length).toBe(1);
  const nowhere = client({ host: "127.0.0.1:1" });
  await expect(nowhere.files.upload("a", "b")).rejects.toMatchObject({ code: "disconnected" });
  const failing = client({ token: () => Promise.reject(new Error("no login")) });
  await expect(failing.files.upload("a", "b")).rejects.toMatchObject({ code: "no_token" });
});
