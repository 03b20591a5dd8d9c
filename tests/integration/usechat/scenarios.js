// What pages do with the `Chat` of `useChat`. Each scenario has a thread of its own.

import assert from "node:assert/strict";
import { Chat } from "@ai-sdk/react";
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";

const makeRoom = (base, kind = "support") => `${base}/threads/${kind}/${crypto.randomUUID()}/chat`;
const textOf = (message) => message.parts.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("");
const kindsOf = (message) => message.parts.map(({ type, state }) => (state === undefined ? type : `${type}:${state}`));
const shown = (messages) => messages.map((message) => [message.id, message.role, textOf(message), kindsOf(message)]);
const load = async (api) => (await fetch(api)).json();
const stop = async (api) => (await fetch(`${api}/stop`, { method: "POST" })).json();

function open(api, options = {}) {
  const errors = [];
  const transport = new DefaultChatTransport({ api, headers: options.headers });
  const chat = new Chat({ transport, onError: (error) => errors.push(error.message), ...options });
  return Object.assign(chat, { errors });
}

async function reopen(api, options = {}) {
  return open(api, { messages: (await load(api)).messages, ...options });
}

async function until(condition) {
  for (let tries = 0; !(await condition()); tries++) {
    assert.ok(tries < 1000, `never: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** The page shows what a reload would show. */
async function check(api, chat, status = "ready") {
  assert.equal(chat.status, status, chat.errors.join());
  assert.deepEqual(shown(chat.messages), shown((await load(api)).messages));
}

const approving = { sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses };
const has = (chat, text) => () => chat.messages.length > 1 && textOf(chat.messages.at(-1)).includes(text);

export async function text(base) {
  const api = makeRoom(base);
  const chat = open(api);
  await chat.sendMessage({ text: "hello" });
  assert.match(textOf(chat.messages[1]), /^word0 word1 word2 \(to: hello/);
  assert.equal(chat.messages[1].id, `${chat.messages[0].id}.answer`);
  await check(api, chat);
  await chat.sendMessage({ text: "again" });
  assert.equal(chat.messages.length, 4);
  await check(api, chat);
}

export async function thoughts(base) {
  const api = makeRoom(base);
  const chat = open(api);
  const sent = chat.sendMessage({ text: "think" });
  await until(() => chat.messages[1]?.parts.some(({ type, state }) => type === "reasoning" && state === "streaming"));
  await sent;
  assert.deepEqual(kindsOf(chat.messages[1]), ["step-start", "reasoning:done", "text:done"]);
  assert.equal(chat.messages[1].parts[1].text, "orders are on my mind ");
  await check(api, chat);
}

export async function tools(base) {
  const api = makeRoom(base);
  const chat = open(api);
  await chat.sendMessage({ text: "where is my order" });
  const called = ["step-start", "tool-find_order:output-available", "step-start", "text:done"];
  assert.deepEqual(kindsOf(chat.messages[1]), called);
  const { input, output } = chat.messages[1].parts[1];
  assert.deepEqual({ input, output }, { input: { number: 7 }, output: { number: 7, what: "a kite" } });
  await check(api, chat);
}

export async function toolInput(base) {
  const api = makeRoom(base);
  const chat = open(api);
  const sent = chat.sendMessage({ text: "look slowly" });
  const seen = (api) => api.messages[1]?.parts.some(({ state, rawInput }) => state === "input-streaming" && rawInput);
  await until(() => seen(chat));
  const other = await reopen(api);
  await other.resumeStream();
  await sent;
  assert.deepEqual(chat.messages[1].parts[1].input, { number: 7 });
  await check(api, chat);
  await check(api, other);
}

export async function approval(base) {
  const api = makeRoom(base);
  const chat = open(api, approving);
  await chat.sendMessage({ text: "refund" });
  assert.deepEqual(kindsOf(chat.messages[1]), ["step-start", "text:done", "tool-refund:approval-requested"]);
  await check(api, chat);
  await chat.addToolApprovalResponse({ id: chat.messages[1].parts[2].approval.id, approved: true });
  await until(() => chat.status === "ready" && has(chat, "order 7 is paid back")());
  const paid = ["step-start", "text:done", "tool-refund:output-available", "step-start", "text:done"];
  assert.deepEqual(kindsOf(chat.messages[1]), paid);
  await check(api, chat);
}

export async function approvalsInTurn(base) {
  const api = makeRoom(base);
  const chat = open(api, approving);
  await chat.sendMessage({ text: "refund twice" });
  for (const number of [7, 8]) {
    const asked = chat.messages[1].parts.filter(({ state }) => state === "approval-requested");
    assert.deepEqual(asked.map(({ input }) => input), [{ number }]);
    await chat.addToolApprovalResponse({ id: asked[0].approval.id, approved: true });
    await until(() => chat.status === "ready" && asked[0] !== chat.messages[1].parts.at(-1));
    await until(() => number === 8 || chat.messages[1].parts.at(-1).state === "approval-requested");
  }
  await until(() => chat.status === "ready" && has(chat, "order 8 is paid back")());
  await check(api, chat);
}

export async function refusal(base) {
  const api = makeRoom(base);
  const chat = open(api, approving);
  await chat.sendMessage({ text: "refund" });
  const { approval } = chat.messages[1].parts[2];
  await chat.addToolApprovalResponse({ id: approval.id, approved: false, reason: "too late" });
  await until(() => chat.status === "ready" && has(chat, "too late")());
  assert.equal(chat.messages[1].parts[2].state, "output-denied");
  await check(api, chat);
}

export async function approvalAfterReload(base) {
  const api = makeRoom(base);
  await open(api).sendMessage({ text: "refund" });
  const chat = await reopen(api, approving);
  await chat.resumeStream();
  const part = chat.messages[1].parts[2];
  assert.equal(part.state, "approval-requested");
  await chat.addToolApprovalResponse({ id: part.approval.id, approved: true });
  await until(() => chat.status === "ready" && has(chat, "paid back")());
  await check(api, chat);
}

export async function approvalInTwoPages(base) {
  const api = makeRoom(base);
  const first = open(api, approving);
  await first.sendMessage({ text: "refund" });
  const second = await reopen(api, approving);
  const { id } = second.messages[1].parts[2].approval;
  await second.addToolApprovalResponse({ id, approved: true });
  await until(() => second.status === "ready" && has(second, "paid back")());
  // The other page answers, too late, and gets what it has missed.
  await first.addToolApprovalResponse({ id, approved: false });
  await until(() => first.status === "ready" && has(first, "paid back")());
  await check(api, first);
  await check(api, second);
}

export async function files(base) {
  const api = makeRoom(base);
  const chat = open(api);
  const url = `data:text/plain;base64,${btoa("hello")}`;
  await chat.sendMessage({ text: "see", files: [{ type: "file", mediaType: "text/plain", filename: "a.txt", url }] });
  const [file] = (await load(api)).messages[0].parts;
  assert.equal(file.filename, "a.txt");
  assert.equal(await (await fetch(base + file.url)).text(), "hello");
  const again = await reopen(api);
  await again.sendMessage({ text: "and now", files: [file] });
  assert.deepEqual((await load(api)).messages[2].parts[0], file);
}

export async function stopped(base) {
  const api = makeRoom(base);
  const chat = open(api);
  const sent = chat.sendMessage({ text: "story" });
  await until(has(chat, "word3"));
  assert.deepEqual(await stop(api), { stopped: true });
  await sent;
  assert.equal((await load(api)).status, "stopped");
  assert.ok(!has(chat, "word59")());
  await check(api, chat);
  await chat.sendMessage({ text: "go on" });
  assert.match(textOf(chat.messages[3]), /go on/);
  await check(api, chat);
  assert.deepEqual(await stop(api), { stopped: false });
}

export async function left(base) {
  const api = makeRoom(base);
  const chat = open(api);
  const sent = chat.sendMessage({ text: "story" });
  await until(has(chat, "word3"));
  await chat.stop(); // Ends only the stream.
  await sent;
  const again = await reopen(api);
  await again.resumeStream();
  assert.ok(has(again, "word59")());
  await check(api, again);
}

export async function viewers(base) {
  const api = makeRoom(base);
  const chat = open(api);
  const sent = chat.sendMessage({ text: "story" });
  await until(has(chat, "word3"));
  const others = [];
  for (let count = 0; count < 5; count++) {
    const other = await reopen(api);
    others.push([other, other.resumeStream()]);
  }
  await sent;
  for (const [other, resumed] of others) {
    await resumed;
    assert.deepEqual(shown(other.messages), shown(chat.messages));
  }
}

export async function resumedAtRest(base) {
  const api = makeRoom(base);
  const chat = open(api);
  await chat.resumeStream();
  assert.deepEqual([chat.status, chat.messages, chat.errors], ["ready", [], []]);
  assert.deepEqual(await load(api), { messages: [], before: null, status: "idle" });
  await chat.sendMessage({ text: "x" });
  await chat.resumeStream(); // Has just ended, and is shown again.
  assert.equal(chat.messages.length, 2);
  await check(api, chat);
}

export async function repeated(base) {
  const api = makeRoom(base);
  const messages = [{ id: "same", role: "user", parts: [{ type: "text", text: "once" }] }];
  const post = async () => {
    const body = JSON.stringify({ id: "x", trigger: "submit-message", messages });
    return (await fetch(api, { method: "POST", body })).text();
  };
  const answers = await Promise.all([post(), post(), post()]);
  answers.push(await post());
  for (const each of answers) assert.match(each, /"finishReason":"stop"\}\n\ndata: \[DONE\]\n\n$/);
  assert.equal((await load(api)).messages.length, 2);
}

export async function steered(base) {
  const api = makeRoom(base);
  const chat = open(api);
  const sent = chat.sendMessage({ text: "story" });
  await until(has(chat, "word3"));
  await chat.sendMessage({ text: "short" });
  await sent;
  await until(() => chat.status === "ready");
  assert.deepEqual(chat.messages.map(({ role }) => role), ["user", "assistant", "user", "assistant"]);
  assert.match(textOf(chat.messages[1]), /word59/);
  assert.match(textOf(chat.messages[3]), /\(to: short/);
  await check(api, chat);
}

export async function reloadedWithWaitingQuestion(base) {
  const api = makeRoom(base);
  const chat = open(api);
  const sent = [chat.sendMessage({ text: "story" })];
  await until(has(chat, "word3"));
  sent.push(chat.sendMessage({ text: "short" }));
  await until(async () => (await load(api)).messages.length > 2);
  const again = await reopen(api);
  await again.resumeStream(); // Shows both answers, each in its place.
  assert.deepEqual(again.messages.map(({ role }) => role), ["user", "assistant", "user", "assistant"]);
  assert.match(textOf(again.messages[3]), /\(to: short/);
  await check(api, again);
  await Promise.all(sent);
}

export async function failed(base) {
  const api = makeRoom(base);
  const chat = open(api);
  await chat.sendMessage({ text: "fail" });
  assert.deepEqual(chat.errors, ["Something went wrong, so there is no answer."]);
  await check(api, chat, "error");
  await chat.sendMessage({ text: "hello" });
  assert.match(textOf(chat.messages.at(-1)), /\(to: hello/);
}

export async function plain(base) {
  const api = makeRoom(base, "plain");
  const ends = [];
  const chat = open(api, { onFinish: ({ finishReason }) => ends.push(finishReason) });
  await chat.sendMessage({ text: "one" });
  await check(api, chat);
  const sent = chat.sendMessage({ text: "story" });
  await until(() => chat.messages.length > 3 && has(chat, "word3")());
  assert.deepEqual(await stop(api), { stopped: true });
  await sent;
  assert.ok(!has(chat, "word59")());
  await check(api, chat);
  assert.deepEqual(ends, ["stop", "interrupted"]);
}

export async function takenTogether(base) {
  const api = makeRoom(base, "greedy");
  const chat = open(api);
  const sent = [chat.sendMessage({ text: "story" })];
  await until(has(chat, "word3"));
  sent.push(chat.sendMessage({ text: "two" }));
  await until(async () => (await load(api)).messages.length > 2);
  sent.push(chat.sendMessage({ text: "three" }));
  await Promise.all(sent);
  await check(api, chat);
}

export async function regenerated(base) {
  for (const kind of ["support", "plain"]) {
    const api = makeRoom(base, kind);
    const chat = open(api);
    await chat.sendMessage({ text: "one" });
    await chat.sendMessage({ text: "two" });
    await chat.regenerate();
    assert.equal(chat.messages.length, 4);
    await check(api, chat);
    await chat.regenerate({ messageId: chat.messages[1].id });
    assert.equal(chat.messages.length, 2);
    await check(api, chat);
    assert.equal((await load(api)).messages[1].metadata.siblings.length, 2);
  }
}

export async function edited(base) {
  const api = makeRoom(base);
  const chat = open(api);
  const url = `data:text/plain,${encodeURIComponent("hello, world")}`;
  await chat.sendMessage({ text: "one", files: [{ type: "file", mediaType: "text/plain", filename: "a.txt", url }] });
  await chat.sendMessage({ text: "two" });
  await chat.sendMessage({ text: "one, please", messageId: chat.messages[0].id });
  assert.equal(chat.messages.length, 2);
  assert.match(textOf(chat.messages[1]), /\(to: one, please/);
  const [question] = (await load(api)).messages;
  assert.equal(textOf(question), "one, please");
  assert.equal(await (await fetch(base + question.parts[0].url)).text(), "hello, world");
  assert.equal(question.metadata.siblings.length, 2);
  await chat.regenerate(); // The page still has the id of the first version.
  await chat.sendMessage({ text: "one, quickly", messageId: chat.messages[0].id });
  assert.match(textOf(chat.messages[1]), /\(to: one, quickly/);
  await chat.sendMessage({ text: "three" });
  assert.deepEqual((await load(api)).messages.map(textOf), [
    "one, quickly",
    textOf(chat.messages[1]),
    "three",
    textOf(chat.messages[3]),
  ]);
}

export async function regeneratedInTwoPages(base) {
  const api = makeRoom(base);
  const chat = open(api);
  await chat.sendMessage({ text: "one" });
  const other = await reopen(api);
  await Promise.all([chat.regenerate(), other.regenerate()]);
  await check(api, chat);
  await check(api, other);
}

export async function regeneratedWhileStreaming(base) {
  const api = makeRoom(base);
  const chat = open(api);
  const sent = chat.sendMessage({ text: "story" });
  await until(has(chat, "word3"));
  await chat.regenerate(); // Is the answer that is being made.
  await sent;
  await check(api, chat);
  assert.equal((await load(api)).messages[1].metadata.siblings, undefined);
}
