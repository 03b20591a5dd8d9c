// Calls, and their streams.

import { Peer, failure, join } from "../peer.js";

const where = { agent: "calls" };

/** Makes `calls`, each a method and arguments; returns each result, or the message of the error, with its frame. */
export async function calls(address, { calls }) {
  const peer = await join(address, where);
  const outcomes = [];
  for (const [method, args] of calls) {
    try {
      const result = (await peer.call(method, ...args)) ?? null;
      outcomes.push({ result, frame: last(peer) });
    } catch (error) {
      outcomes.push({ error: error.message, frame: last(peer) });
    }
  }
  return outcomes;
}

function last(peer) {
  const { id, ...frame } = peer.frames.findLast(({ type }) => type === "rpc");
  return frame;
}

/** Calls by way of `stub`. */
export async function stub(address) {
  const { client } = await join(address, where);
  return [await client.stub.echo("by stub"), await client.stub.addPlayer("Ada"), await failure(client.stub.missing())];
}

/** Calls before there is a connection. */
export async function before_open(address) {
  return new Peer(address, where).call("echo", "early");
}

/** Makes many calls at once; returns whether each got its own result. */
export async function many(address, { count }) {
  const peer = await join(address, where);
  const numbers = Array.from({ length: count }, (_, index) => index);
  const results = await Promise.all(numbers.map((number) => peer.call("echo", { number })));
  return results.map(({ number }) => number);
}

/** Calls that wait for others made later. */
export async function out_of_order(address) {
  const peer = await join(address, where);
  const order = [];
  const waiting = ["first", "second", "third"].map((gate) => peer.call("wait", gate).then((name) => order.push(name)));
  for (const gate of ["third", "first", "second"]) await peer.call("release", gate);
  await Promise.all(waiting);
  return order;
}

/** Streams `method`; returns what the callbacks and the promise were told, and the `done` of each frame. */
export async function stream(address, { method, args = [], legacy = false }) {
  const peer = await join(address, where);
  const told = [];
  const callbacks = {
    onChunk: (chunk) => told.push(["chunk", chunk]),
    onDone: (value) => told.push(["done", value === undefined ? "nothing" : value]),
    onError: (error) => told.push(["error", error]),
  };
  const options = legacy ? callbacks : { stream: callbacks };
  const outcome = await failure(peer.client.call(method, args, options));
  // A frame too much would come before the answer to a later call, and make the client warn.
  await peer.call("echo", "later");
  return { told, outcome, done: peer.frames.filter(({ type }) => type === "rpc").map(({ done }) => done) };
}

/** Streams and changes the state in turn; returns chunks and states in the order in which they came. */
export async function stream_with_states(address, { upto }) {
  const peer = await join(address, where);
  const from = peer.frames.length;
  await peer.client.call("add_in_stream", [upto], { stream: { onChunk: () => {} } });
  return peer.frames
    .slice(from)
    .filter(({ type }) => type !== "cf_agent_mcp_servers")
    .map(({ type, state, result, done }) => (type === "rpc" ? (done ? "end" : result) : state));
}

/** Two streams of one connection at once. */
export async function two_streams(address, { upto }) {
  const peer = await join(address, where);
  const stream = async (method) => {
    const chunks = [];
    await peer.client.call(method, [upto], { stream: { onChunk: (chunk) => chunks.push(chunk) } });
    return chunks;
  };
  return Promise.all([stream("count"), stream("count_by_hand")]);
}
