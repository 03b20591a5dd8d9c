// Scenarios for a real browser, which answers pings whatever the code of its page does.

import { AgentClient } from "agents/client";

import { TIMEOUT, changed, until } from "./waiting.js";

const URL = "/threads/room/one";

/** A client whose connecting can be held up. */
class Visitor {
  errors = [];
  closes = 0;
  #gate = Promise.resolve();

  constructor() {
    this.client = new AgentClient({
      host: location.host,
      agent: "room",
      name: "one",
      query: () => this.#gate.then(() => ({})),
      minReconnectionDelay: 1,
      defaultCallTimeout: TIMEOUT,
      onStateUpdate: changed,
      onStateUpdateError: (error) => this.errors.push(error),
      onIdentity: changed,
    });
    this.client.addEventListener("close", () => {
      this.closes += 1;
      changed();
    });
  }

  /** Loses the socket, and does not get another before `come` is called. */
  async leave() {
    const before = this.closes;
    this.#gate = new Promise((resolve) => {
      this.come = resolve;
    });
    this.client.call("drop").catch(() => {});
    await until("the socket is lost", () => this.closes > before);
  }

  async ready() {
    await until("identity and state have come", () => this.client.identified);
  }

  /** Waits until all that was sent before has been handled, and what that brought has come. */
  async settle() {
    await this.client.call("sync");
    await this.client.call("sync");
  }
}

async function stored() {
  return (await fetch(URL)).json();
}

function put(state) {
  return fetch(URL, { method: "PUT", body: JSON.stringify(state) });
}

/** Keeps the code of the page from doing anything else. */
function work(milliseconds) {
  const end = performance.now() + milliseconds;
  while (performance.now() < end);
}

/** Waits until the client shows what the server has, and returns that. */
async function agreed(visitor) {
  const state = await stored();
  const wanted = JSON.stringify(state);
  await until(`the client shows ${wanted}`, () => JSON.stringify(visitor.client.state) === wanted).catch((error) => {
    throw new Error(`${error.message}; it shows ${JSON.stringify(visitor.client.state)}`);
  });
  return state;
}

/** Reads, writes and calls. */
export async function basics() {
  const visitor = new Visitor();
  await visitor.ready();
  const first = visitor.client.state;
  visitor.client.setState({ n: 5 });
  const result = await visitor.client.call("add", [1]);
  return { first, result, state: await agreed(visitor) };
}

/** Writes while it is offline; another client writes `newer` at that time, if it is given. */
export async function offline({ newer }) {
  const visitor = new Visitor();
  await visitor.ready();
  await visitor.settle();
  await visitor.leave();
  visitor.client.setState({ text: "offline" });
  if (newer) await put(newer);
  visitor.come();
  await visitor.ready();
  await visitor.settle();
  return { state: await agreed(visitor), errors: visitor.errors };
}

/** Writes before the socket is open, in a page that is then busy for a while. */
export async function early({ busy }) {
  const visitor = new Visitor();
  visitor.client.setState({ text: "early" });
  visitor.client.addEventListener("open", () => work(busy));
  await visitor.ready();
  await visitor.settle();
  return { state: await agreed(visitor), errors: visitor.errors };
}

/** Writes when the socket is open and the state has come, and the page has been too busy to read it. */
export async function unread() {
  const visitor = new Visitor();
  visitor.client.addEventListener("open", () => {
    work(500);
    visitor.client.setState({ text: "unread" });
  });
  await visitor.ready();
  await visitor.settle();
  return { state: await agreed(visitor), errors: visitor.errors };
}

/** Writes when a busy page has been sent another's write, and has not read it. */
export async function crossing() {
  const visitor = new Visitor();
  await visitor.ready();
  await visitor.settle();
  const request = put({ text: "theirs" });
  await new Promise((resolve) => setTimeout(resolve));
  work(300);
  visitor.client.setState({ text: "mine" });
  await request;
  await visitor.settle();
  return { state: await agreed(visitor), errors: visitor.errors };
}

/** Waits for a time that a test is about. */
function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

/** Writes each of `cases` after each of `delays`, alone: first one state and then the other. Returns what is wrong. */
export async function plain({ cases, delays }) {
  const visitor = new Visitor();
  await visitor.ready();
  const wrong = [];
  let count = 0;
  for (const delay of delays) {
    for (const states of cases) {
      for (const state of states) {
        visitor.client.setState(state);
        await pause(delay);
      }
      await visitor.settle();
      const found = await agreed(visitor);
      if (JSON.stringify(found) !== JSON.stringify(states.at(-1))) wrong.push({ delay, states, found });
      count += 1;
    }
  }
  return { wrong, count };
}

/** Keeps the page busy most of the time; the returned function ends that. */
function occupy(milliseconds) {
  if (!milliseconds) return () => {};
  const timer = setInterval(() => work(milliseconds), milliseconds * 1.25);
  return () => clearInterval(timer);
}

const channel = new BroadcastChannel("rounds");

function heard(type) {
  return new Promise((resolve) => {
    channel.addEventListener("message", function listen({ data }) {
      if (data.type !== type) return;
      channel.removeEventListener("message", listen);
      resolve(data);
    });
  });
}

/** Adds to the list at a time, several times without waiting for an answer, and waits until that has been handled. */
async function addAt(visitor, at, name, burst) {
  await pause(at - Date.now() - 2);
  while (Date.now() < at);
  for (let count = 1; count <= burst; count += 1) {
    if (count > 1) await pause(15);
    visitor.client.setState({ list: [...visitor.client.state.list, { id: `${name}.${count}` }] });
  }
  await visitor.settle();
}

/** One of two pages that add to one list at the same moment, again and again. It counts what is lost and doubled. */
export async function lead({ rounds, busy, burst }) {
  const visitor = new Visitor();
  await visitor.ready();
  await put({ list: [] });
  await until("the list has come", () => visitor.client.state.list);
  const rest = occupy(busy);
  let lost = 0;
  const doubled = [];
  for (let round = 1; round <= rounds; round += 1) {
    const done = heard("done");
    const at = Date.now() + 25;
    channel.postMessage({ type: "round", round, at });
    await Promise.all([addAt(visitor, at, `left ${round}`, burst), done]);
    const shown = heard("shown");
    channel.postMessage({ type: "both are done" });
    const list = (await agreed(visitor)).list.map(({ id }) => id);
    await shown;
    lost += 2 * burst - new Set(list.filter((each) => each.includes(` ${round}.`))).size;
    if (new Set(list).size < list.length) {
      doubled.push({ round, list });
      await put({ list: [] });
      await until("the list is empty", () => visitor.client.state.list.length === 0);
    }
  }
  channel.postMessage({ type: "end" });
  rest();
  return { lost, doubled, errors: visitor.errors };
}

/** The other page. */
export async function follow({ busy, burst }) {
  const visitor = new Visitor();
  await visitor.ready();
  const rest = occupy(busy);
  const end = heard("end").then(() => null);
  let round;
  while ((round = await Promise.race([heard("round"), end]))) {
    const both = heard("both are done");
    await addAt(visitor, round.at, `right ${round.round}`, burst);
    channel.postMessage({ type: "done" });
    await both;
    await agreed(visitor);
    channel.postMessage({ type: "shown" });
  }
  rest();
  return visitor.errors;
}
