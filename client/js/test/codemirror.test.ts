// @vitest-environment jsdom
import { Transaction } from "@codemirror/state";
import { EditorView } from "@codemirror/view";
import { afterEach, expect, test } from "vitest";

import { plaitText } from "../src/codemirror.js";
import type { PlaitTextOptions } from "../src/codemirror.js";
import { ThreadClient } from "../src/full.js";
import type { Joined, Op, ServerMessage } from "../src/protocol.js";
import type { Peer } from "./server.js";
import { clients, server, serving } from "./serving.js";

serving();

// jsdom has no layout: where an editor measures its text, nothing has a size.
Range.prototype.getClientRects = () => Object.assign([], { item: () => null }) as unknown as DOMRectList;

const views: EditorView[] = [];
let seen: Transaction[] = [];
/** Which editors have heard that they have the focus. */
const focused = new WeakMap<EditorView, boolean>();

afterEach(() => {
  for (const view of views.splice(0)) view.destroy();
  document.body.replaceChildren();
  seen = [];
});

async function joined(more: Partial<Joined> = {}): Promise<[ThreadClient, Peer]> {
  const client = new ThreadClient({ host: server.host, kind: "note", name: "a" });
  clients.push(client);
  const peer = await server.peer();
  await peer.join({ state: { note: "one\r\ntwo" }, ...more });
  await client.ready;
  return [client, peer];
}

/** Opens an editor, and waits until it shows the text. */
async function edit(client: ThreadClient, options?: PlaitTextOptions, pointer = "/note"): Promise<EditorView> {
  const listener = EditorView.updateListener.of(({ view, transactions, focusChanged }) => {
    seen.push(...transactions);
    if (focusChanged) focused.set(view, view.hasFocus);
  });
  const extensions = [plaitText(client, pointer, options), listener];
  const view = new EditorView({ extensions, parent: document.body });
  views.push(view);
  await Promise.resolve();
  return view;
}

async function hear(client: ThreadClient, peer: Peer, version: number, ...ops: Op[]): Promise<void> {
  peer.send({ type: "change", version, ops, source: "s2" });
  await new Promise<void>((resolve) => {
    const unsubscribe = client.subscribe(() => {
      if ((client.version ?? 0) < version) return;
      unsubscribe();
      queueMicrotask(resolve);
    });
  });
}

const text = (view: EditorView) => view.state.doc.toString();

test("the editor shows the text, and what is done in it is one change of the thread", async () => {
  const [client, peer] = await joined();
  const view = await edit(client);
  expect([text(view), view.state.doc.lines]).toEqual(["one\r\ntwo", 2]);
  view.dispatch({
    changes: [
      { from: 0, to: 1, insert: "O" },
      { from: 8, insert: "\nthree" },
    ],
  });
  expect((client.state as { note: string }).note).toBe("One\r\ntwo\nthree");
  expect((await peer.take("push")).ops).toEqual([
    { op: "splice", path: "/note", at: 0, remove: 1, insert: "O" },
    { op: "splice", path: "/note", at: 8, insert: "\nthree" },
  ]);
});

test("what others do moves the selection with its text and is left out of the history", async () => {
  const [client, peer] = await joined();
  const view = await edit(client);
  view.dispatch({ selection: { anchor: 5, head: 8 } });
  seen = [];
  await hear(client, peer, 2, { op: "splice", path: "/note", at: 0, insert: "🔑" });
  const { anchor, head } = view.state.selection.main;
  expect([text(view), anchor, head]).toEqual(["🔑one\r\ntwo", 7, 10]);
  const changes = seen.filter((transaction) => transaction.docChanged);
  expect(changes.map((transaction) => transaction.annotation(Transaction.addToHistory))).toEqual([false]);
  view.dispatch({ changes: { from: 2, insert: "X" } });
  expect((await peer.take("push")).ops).toEqual([{ op: "splice", path: "/note", at: 1, insert: "X" }]);
});

test("what others do is done where they have done it, also where it could have been elsewhere", async () => {
  const [client, peer] = await joined({ state: { note: "oo" } });
  const view = await edit(client);
  view.dispatch({ selection: { anchor: 0, head: 1 } });
  await hear(client, peer, 2, { op: "splice", path: "/note", at: 1, insert: "o" });
  expect([text(view), view.state.selection.main.anchor, view.state.selection.main.head]).toEqual(["ooo", 0, 1]);
});

test("the editor is readonly while there is no text, and on a readonly connection", async () => {
  const [client, peer] = await joined();
  const view = await edit(client);
  expect(view.state.readOnly).toBe(false);
  await hear(client, peer, 2, { op: "remove", path: "/note" });
  await Promise.resolve();
  expect([text(view), view.state.readOnly]).toEqual(["", true]);
  await hear(client, peer, 3, { op: "add", path: "/note", value: "again" });
  await Promise.resolve();
  expect([text(view), view.state.readOnly]).toEqual(["again", false]);
});

test("a connection that may only read has a readonly editor", async () => {
  const [client] = await joined({ readonly: true });
  expect((await edit(client)).state.readOnly).toBe(true);
});

test("what is refused is not shown", async () => {
  const [client] = await joined();
  client.onRefused(() => undefined);
  const view = await edit(client);
  view.dispatch({ changes: { from: 0, insert: "\ud83d" } });
  await Promise.resolve();
  expect(text(view)).toBe("one\r\ntwo");
});

test("the selections of others are shown with their names and colors, and follow the text", async () => {
  const [client, peer] = await joined();
  client.setPresence({ name: "Me" });
  const view = await edit(client, { presence: "caret" });
  const presence: ServerMessage = {
    type: "presence",
    snapshot: {
      s1: { name: "Me", caret: { pointer: "/note", anchor: 0, head: 0 } },
      s2: { name: "<b>Ada", color: "teal", caret: { pointer: "/note", anchor: 5, head: 8 } },
      s3: { name: "Eve", color: "red; position: fixed", caret: { pointer: "/note", anchor: 999, head: 999 } },
      s4: { name: "None", caret: { pointer: "/note", anchor: "x" } },
      s5: "text",
      s6: { name: "Elsewhere", caret: { pointer: "/title", anchor: 0, head: 0 } },
    },
  };
  peer.send(presence);
  await new Promise<void>((resolve) => {
    const unsubscribe = client.subscribe(() => {
      unsubscribe();
      setTimeout(resolve);
    });
  });
  const names = () => [...view.dom.querySelectorAll(".cm-plait-name")].map((name) => name.textContent);
  expect(names()).toEqual(["<b>Ada", "Eve"]);
  const selection = () => view.dom.querySelector<HTMLElement>(".cm-plait-selection");
  expect(selection()?.textContent).toBe("two");
  expect(selection()?.getAttribute("style")).toContain("teal");
  expect(view.dom.innerHTML).not.toContain("fixed");
  view.dispatch({ changes: { from: 0, insert: "X" } });
  expect(selection()?.textContent).toBe("two");
});

test("the own selection is a member of the presence while the editor has the focus", async () => {
  const [client] = await joined();
  client.setPresence({ name: "Me" });
  const view = await edit(client, { presence: "caret" });
  view.focus();
  view.dispatch({ selection: { anchor: 1, head: 3 } });
  expect(client.ownPresence).toEqual({ name: "Me", caret: { pointer: "/note", anchor: 1, head: 3 } });
  view.destroy();
  expect(client.ownPresence).toEqual({ name: "Me", caret: null });
});

test.each(["/note", "/title"])(
  "of two editors of one page, the one with the focus tells where it is (%s)",
  async (pointer) => {
    const [client] = await joined({ state: { note: "one", title: "two" } });
    const one = await edit(client, { presence: "caret" });
    const other = await edit(client, { presence: "caret" }, pointer);
    const caret = () => (client.ownPresence as { caret: unknown }).caret;
    const focus = (view: EditorView) => {
      view.focus();
      // As a click does, before the editors hear of the focus.
      view.dispatch({ selection: { anchor: 1 } });
    };
    focus(one);
    await expect.poll(() => focused.get(one)).toBe(true);
    focus(other);
    await expect.poll(() => focused.get(one)).toBe(false);
    expect(caret()).toEqual({ pointer, anchor: 1, head: 1 });
    one.dispatch({ selection: { anchor: 2 } });
    one.destroy();
    expect(caret()).toEqual({ pointer, anchor: 1, head: 1 });
    other.contentDOM.blur();
    expect(caret()).toBe(null);
  },
);

test("lines that are pasted end as those that are typed", async () => {
  const [client, peer] = await joined();
  const view = await edit(client);
  const clipboardData = { getData: () => "a\r\nb\rc" };
  const paste = Object.assign(new Event("paste", { bubbles: true, cancelable: true }), { clipboardData });
  view.contentDOM.dispatchEvent(paste);
  expect((await peer.take("push")).ops).toEqual([{ op: "splice", path: "/note", at: 0, insert: "a\nb\nc" }]);
});
