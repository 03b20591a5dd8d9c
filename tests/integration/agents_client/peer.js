// Clients that keep a record of what happens to them.

import { AgentClient } from "agents/client";
import WebSocket from "ws";

import { TIMEOUT, changed, until } from "./waiting.js";

/** One AgentClient; `frames` holds each message it got, parsed where it is JSON. */
export class Peer {
  constructor(address, { agent = "room", name = "one", ...options } = {}) {
    this.address = address;
    this.frames = [];
    this.states = [];
    this.errors = [];
    this.identities = [];
    this.closes = [];
    this.finals = [];
    this.opened = 0;
    this.client = new AgentClient({
      host: address,
      agent,
      name,
      WebSocket,
      minReconnectionDelay: 50,
      maxReconnectionDelay: 200,
      defaultCallTimeout: TIMEOUT,
      ...options,
      onStateUpdate: (state, source) => this.#keep(this.states, { state, source }),
      onStateUpdateError: (error) => this.#keep(this.errors, error),
      onIdentity: (name, agent) => this.#keep(this.identities, { name, agent }),
      onConnectionError: (error) => this.#keep(this.finals, { code: error.code, reason: error.reason }),
    });
    this.client.binaryType = "arraybuffer";
    this.client.addEventListener("message", ({ data }) => this.#keep(this.frames, parsed(data)));
    this.client.addEventListener("close", ({ code, reason }) => this.#keep(this.closes, { code, reason }));
    this.client.addEventListener("open", () => {
      this.opened += 1;
      changed();
    });
  }

  #keep(record, entry) {
    record.push(entry);
    changed();
  }

  get id() {
    return this.client.id;
  }

  get state() {
    return this.client.state;
  }

  /** The `type` of each message. */
  get types() {
    return this.frames.map((frame) => frame?.type);
  }

  /** The states that the server sent, in order. */
  get received() {
    return this.states.filter(({ source }) => source === "server").map(({ state }) => state);
  }

  call(method, ...args) {
    return this.client.call(method, args);
  }

  /** Waits until the server has handled, stored and sent out all that this client sent before. */
  sync() {
    return this.call("sync");
  }

  /** Waits until it is connected for the `times`th time. */
  async back(times = 2) {
    await until(`${this.id} has connected ${times} times`, () => this.opened >= times && this.client.identified);
  }

  until(what, condition) {
    return until(what, condition);
  }

  /** Waits as `client.ready` does, but not for ever. */
  async ready() {
    await until("identity and state have come", () => this.client.identified);
    await this.client.ready;
  }
}

function parsed(data) {
  if (typeof data !== "string") return { binary: [...new Uint8Array(data)] };
  try {
    return JSON.parse(data);
  } catch {
    return data;
  }
}

/** Returns a connected client. */
export async function join(address, options) {
  const peer = new Peer(address, options);
  await peer.ready();
  return peer;
}

/** Returns `count` connected clients of one thread. */
export function gather(address, count, options) {
  return Promise.all(Array.from({ length: count }, () => join(address, options)));
}

/** Waits until what every one of `peers` wrote has reached all the others. */
export async function settle(...peers) {
  // The first round trip ends when all writes are stored and sent, the second when what was sent has arrived.
  await Promise.all(peers.map((peer) => peer.sync()));
  await Promise.all(peers.map((peer) => peer.sync()));
}

/** Returns the state that the server has. */
export async function stored(address, { agent = "room", name = "one" } = {}) {
  const response = await fetch(`http://${address}/threads/${agent}/${encodeURIComponent(name)}`);
  if (!response.ok) throw new Error(`GET state: ${response.status} ${await response.text()}`);
  return response.json();
}

/** Returns the message of the error that `promise` rejects with. */
export async function failure(promise) {
  try {
    return { resolved: await promise };
  } catch (error) {
    return error.message;
  }
}
