// A page of many threads over one socket, in Node: it does what it is told, one line of JSON after the other.

import { createInterface } from "node:readline";

const { bundle, ws, address } = JSON.parse(process.argv[2]);
const { ThreadClient, channels } = await import(bundle);
const { WebSocket } = await import(ws);

const real = [];
class Counted extends WebSocket {
  constructor(...given) {
    super(...given);
    real.push(this);
  }
}

const shared = channels({ WebSocket: Counted });
const rooms = new Map();

const commands = {
  /** Joins threads, and returns how many real sockets have been begun. */
  async join({ names, options = {} }) {
    for (const name of names)
      rooms.set(name, new ThreadClient({ host: address, kind: "page", name, WebSocket: shared, ...options }));
    await Promise.all(names.map((name) => rooms.get(name).ready));
    return real.length;
  },
  /** Calls an rpc of threads, and returns the results. */
  call: ({ names, method, args }) => Promise.all(names.map((name) => rooms.get(name).call(method, ...args))),
  /** Changes each thread, and returns when all changes are durable; they may wait for a server. */
  async put({ names, path, value }) {
    await Promise.all(names.map((name) => rooms.get(name).update(path, value)));
    return real.length;
  },
  states: ({ names }) => names.map((name) => rooms.get(name).state),
  close: async ({ names }) => Promise.all(names.map((name) => rooms.get(name).close())).then(() => null),
  /** Returns when all real sockets are closed. */
  async ended() {
    for (const each of real)
      if (each.readyState !== 3) await new Promise((resolve) => each.addEventListener("close", resolve));
    return real.length;
  },
  sockets: () => real.length,
};

for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...options } = JSON.parse(line);
  const answer = await commands[command](options);
  if (answer !== undefined) console.log(JSON.stringify({ answer }));
}
