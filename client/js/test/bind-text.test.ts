// @vitest-environment jsdom
import { afterEach, expect, test } from "vitest";

import { ThreadClient, bindText } from "../src/full.js";
import type { TextChange, TextElement } from "../src/index.js";
import type { Joined, Op } from "../src/protocol.js";
import type { Peer } from "./server.js";
import { clients, server, serving } from "./serving.js";

serving();

afterEach(() => document.body.replaceChildren());

interface Note {
  note: string;
}

async function joined(more: Partial<Joined> = {}): Promise<[ThreadClient<Note>, Peer]> {
  const client = new ThreadClient<Note>({ host: server.host, kind: "note", name: "a" });
  clients.push(client);
  const peer = await server.peer();
  await peer.join({ state: { note: "abc" }, ...more });
  await client.ready;
  return [client, peer];
}

function area(client: ThreadClient<Note>): HTMLTextAreaElement {
  const element = document.body.appendChild(document.createElement("textarea"));
  bindText(element, client, "/note");
  return element;
}

/** Types into a textarea, as a browser does. */
function type(element: HTMLTextAreaElement, at: number, text: string): void {
  element.setSelectionRange(at, at);
  element.setRangeText(text, at, at, "end");
  element.dispatchEvent(new Event("input"));
}

function press(element: HTMLElement, key: string, more: KeyboardEventInit = {}): KeyboardEvent {
  const event = new KeyboardEvent("keydown", { key, ctrlKey: true, cancelable: true, ...more });
  element.dispatchEvent(event);
  return event;
}

test("what is typed is one splice, and what others type moves the caret with its text", async () => {
  const [client, peer] = await joined();
  const element = area(client);
  type(element, 1, "X");
  expect((await peer.take("push")).ops).toEqual([{ op: "splice", path: "/note", at: 1, insert: "X" }]);
  peer.send({ type: "change", version: 2, ops: [{ op: "splice", path: "/note", at: 0, insert: "🔑" }], source: "s2" });
  await client.waitFor(({ note }) => note.startsWith("🔑"));
  expect([element.value, element.selectionStart, element.selectionEnd]).toEqual(["🔑aXbc", 4, 4]);
});

test("a backward selection stays backward", async () => {
  const [client, peer] = await joined();
  const element = area(client);
  element.setSelectionRange(1, 3, "backward");
  peer.send({ type: "change", version: 2, ops: [{ op: "splice", path: "/note", at: 0, insert: "🔑" }], source: "s2" });
  await client.waitFor(({ note }) => note.startsWith("🔑"));
  const { selectionStart, selectionEnd, selectionDirection } = element;
  expect([element.value, selectionStart, selectionEnd, selectionDirection]).toEqual(["🔑abc", 3, 5, "backward"]);
});

test("a composition that begins twice and ends once ends", async () => {
  const [client] = await joined();
  const element = area(client);
  for (const kind of ["compositionstart", "compositionstart"]) element.dispatchEvent(new Event(kind));
  type(element, 3, "X");
  element.dispatchEvent(new Event("compositionend"));
  type(element, 0, "Y");
  void client.undo("/note");
  expect(client.state?.note).toBe("abcX");
});

test("phrases of an input method stay whole where others type at the same place", async () => {
  const [client, peer] = await joined();
  const element = area(client);
  type(element, 1, "🔑");
  peer.send({ type: "ack", ref: 1, version: 2 });
  element.dispatchEvent(new Event("compositionstart"));
  type(element, 3, "k");
  const ops: Op[] = [{ op: "splice", path: "/note", at: 2, insert: "X" }];
  peer.send({ type: "change", version: 3, ops, source: "s2" });
  await client.waitFor(({ note }) => note.includes("X"));
  type(element, 4, "i");
  element.setRangeText("き", 3, 5, "end");
  element.dispatchEvent(new Event("input"));
  type(element, 4, "。");
  element.dispatchEvent(new Event("compositionend"));
  expect([element.value, client.state?.note]).toEqual(["a🔑き。Xbc", "a🔑き。Xbc"]);
  expect(element.selectionEnd).toBe(5);
});

test.each(["a composition that has not begun", "an element that is released twice as it composes"])(
  "%s does not end a pause of the history that is the app's own",
  async (what) => {
    const [client] = await joined();
    const element = document.body.appendChild(document.createElement("textarea"));
    const binding = bindText(element, client, "/note");
    client.pauseHistory();
    if (what.includes("twice")) element.dispatchEvent(new Event("compositionstart"));
    type(element, 3, "X");
    if (what.includes("twice")) [binding, binding].forEach((each) => each.close());
    else element.dispatchEvent(new Event("compositionend"));
    void client.splice("/note", 0, 0, "Y");
    client.resumeHistory();
    void client.undo("/note");
    expect(client.state?.note).toBe("abc");
  },
);

test("several elements of one text show what is typed in any of them", async () => {
  const [client] = await joined();
  const [one, other] = [area(client), area(client)];
  type(one, 3, "d");
  expect(other.value).toBe("abcd");
  type(other, 0, "-");
  expect(one.value).toBe("-abcd");
});

test("undo and redo of the element are those of its text, also from a menu, and offline", async () => {
  const [client, peer] = await joined();
  const element = area(client);
  peer.drop();
  type(element, 3, "d");
  expect([client.canUndo("/note"), client.canRedo("/note"), client.canUndo("/other")]).toEqual([true, false, false]);
  expect(press(element, "z").defaultPrevented).toBe(true);
  expect(element.value).toBe("abc");
  expect([client.canUndo(), client.canRedo()]).toEqual([false, true]);
  press(element, "Z", { shiftKey: true });
  expect([element.value, element.selectionStart]).toEqual(["abcd", 4]);
  element.dispatchEvent(new InputEvent("beforeinput", { inputType: "historyUndo", cancelable: true }));
  expect(element.value).toBe("abc");
  expect(press(element, "y").defaultPrevented).toBe(true);
  expect(element.value).toBe("abcd");
  expect(client.undo("/other")).toBeUndefined();
});

test("an element that was closed is as it was, and types for itself", async () => {
  const [client] = await joined({ readonly: true });
  const element = document.body.appendChild(document.createElement("textarea"));
  const binding = bindText(element, client, "/note");
  expect(element.readOnly).toBe(true);
  binding.close();
  expect(element.readOnly).toBe(false);
  type(element, 3, "d");
  expect([element.value, client.state?.note]).toEqual(["abcd", "abc"]);
});

test("an element in which nothing can be typed is an error", async () => {
  const [client] = await joined();
  expect(() => bindText(document.createElement("p") as TextElement, client, "/note")).toThrow(TypeError);
});

test("a text is told with the edits that led to it, also where the server tells a whole state", async () => {
  const [client, peer] = await joined();
  const changes: TextChange[] = [];
  const close = client.onText("/note", (change) => changes.push(change));
  void client.splice("/note", [
    { at: 0, remove: 1, insert: "A" },
    { at: 3, remove: 0, insert: "!" },
  ]);
  peer.send({ type: "change", version: 2, ops: [{ op: "splice", path: "/note", at: 1, insert: "b" }], source: "s2" });
  peer.send({ type: "snapshot", epoch: "e", version: 3, state: { note: "abbcd" } });
  await client.waitFor(({ note }) => note.includes("d"));
  peer.send({ type: "change", version: 4, ops: [{ op: "remove", path: "/note" }], source: "s2" });
  await client.waitFor(({ note }) => note === undefined);
  expect(changes[0]).toEqual({
    text: "Abc!",
    edits: [
      { at: 0, remove: 1, insert: "A" },
      { at: 3, remove: 0, insert: "!" },
    ],
  });
  expect(changes[1]).toEqual({ text: "Abbc!", edits: [{ at: 1, remove: 0, insert: "b" }] });
  expect(changes.at(-1)).toEqual({ text: undefined, edits: [] });
  close();
});

test("a text that was moved away from its pointer is changed where it is, also a long one", async () => {
  const client = new ThreadClient<{ cards: { body: string }[] }>({ host: server.host, kind: "note", name: "a" });
  clients.push(client);
  const peer = await server.peer();
  const cards = [{ body: "a".repeat(2500) }, { body: "b".repeat(5000) }] as const;
  await peer.join({ state: { cards }, texts: ["/cards/*/body"] });
  await client.ready;
  const changes: TextChange[] = [];
  client.onText("/cards/0/body", (change) => changes.push(change));
  const ops: Op[] = [
    { op: "remove", path: "/cards/0" },
    { op: "add", path: "/cards/1", value: cards[0], moved: true },
    { op: "splice", path: "/cards/0/body", at: 4000, remove: 10 },
  ];
  peer.send({ type: "change", version: 2, source: "s2", ops });
  await client.waitFor((state) => state.cards[1]?.body.startsWith("a") === true);
  expect(changes.map(({ text }) => text)).toEqual(["b".repeat(4990)]);
  await expect(Promise.race([client.append("/cards/1/body", "!"), peer.take("push")])).resolves.toMatchObject({
    ops: [{ op: "splice", path: "/cards/1/body", at: 2500, insert: "!" }],
  });
});

test("a refused burst is taken off the element, and is not undone", async () => {
  const [client, peer] = await joined();
  client.onRefused(() => undefined);
  const element = area(client);
  type(element, 3, "d");
  const { ref } = await peer.take("push");
  peer.send({ type: "nack", ref, version: 1, code: "rejected", message: "no" });
  await client.waitFor(({ note }) => note === "abc");
  expect(element.value).toBe("abc");
  expect(client.canUndo()).toBe(false);
});

test("what is typed on the initial state stays where it was typed when the thread's comes", async () => {
  const client = new ThreadClient<Note>({ host: server.host, kind: "note", name: "a", initialState: { note: "abc" } });
  clients.push(client);
  const peer = await server.peer();
  const element = area(client);
  type(element, 1, "X");
  expect(element.value).toBe("aXbc");
  await peer.join({ state: { note: "abc" }, texts: ["/note"] });
  expect((await peer.take("push")).ops).toEqual([{ op: "splice", path: "/note", at: 1, insert: "X" }]);
  expect([element.value, element.selectionStart]).toEqual(["aXbc", 2]);
});

test("undo and redo are at the same keys of a layout without Latin letters", async () => {
  const [client] = await joined();
  const element = area(client);
  type(element, 3, "d");
  press(element, "я", { code: "KeyZ" });
  expect(element.value).toBe("abc");
  press(element, "Я", { code: "KeyZ", shiftKey: true });
  expect(element.value).toBe("abcd");
  press(element, "я", { code: "KeyZ" });
  press(element, "н", { code: "KeyY" });
  expect(element.value).toBe("abcd");
  // The letter at the place of another layout's Z.
  expect(press(element, "y", { code: "KeyZ", shiftKey: true }).defaultPrevented).toBe(false);
});

test("what others insert at an end of the selection is not selected", async () => {
  const [client, peer] = await joined();
  const element = area(client);
  element.setSelectionRange(1, 2);
  const ops: Op[] = [
    { op: "splice", path: "/note", at: 2, insert: "Y" },
    { op: "splice", path: "/note", at: 1, insert: "X" },
  ];
  peer.send({ type: "change", version: 2, ops, source: "s2" });
  await client.waitFor(({ note }) => note === "aXbYc");
  expect(element.value.slice(element.selectionStart, element.selectionEnd)).toBe("b");
});
