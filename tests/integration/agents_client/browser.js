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

/** Writes while it is offline; `newer` is written by somebody else meanwhile, if it is given. */
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
