// The state, both ways.

import { Peer, gather, join, settle, stored } from "../peer.js";
import { until } from "../waiting.js";

/** A client calls an rpc that sets the state: what both get, and the caller in which order. */
export async function from_server(address) {
  const [caller, other] = await gather(address, 2);
  await settle(caller, other);
  const from = caller.frames.length;
  const result = await caller.call("add", 3);
  const atResult = caller.state;
  await other.until("the state has come", () => other.state.n === 3);
  return { result, atResult, types: caller.types.slice(from), other: other.state };
}

/** A client writes: what both get. */
export async function from_client(address) {
  const [sender, other] = await gather(address, 2);
  await settle(sender, other);
  const from = sender.frames.length;
  sender.client.setState({ n: 1, text: "Grüße, 世界 🎉" });
  await settle(sender, other);
  return {
    sender: sender.states.slice(1),
    types: sender.types.slice(from),
    other: other.received.slice(1),
    stored: await stored(address),
  };
}

/** Sets each of `values` in turn, from a client and then from the server; returns what another client got. */
export async function each(address, { values }) {
  const where = { agent: "anything" };
  const [sender, other] = await gather(address, 2, where);
  const kept = [];
  for (const value of values) {
    const from = other.received.length;
    sender.client.setState(value);
    await settle(sender, other);
    const late = await join(address, where);
    const first = [...late.received];
    await sender.call("set", "something else");
    await sender.call("set", value);
    await settle(sender, other);
    kept.push({ got: other.received.slice(from), late: first, stored: await stored(address, where) });
    late.client.close();
  }
  return kept;
}

/** Writes before it has been connected. */
export async function before_open(address) {
  const other = await join(address);
  const sender = new Peer(address);
  sender.client.setState({ by: "the one that was early" });
  await sender.ready();
  await settle(sender, other);
  return { sender: sender.state, other: other.state, stored: await stored(address) };
}

/** The server sets `count` states at once; returns what two clients show in the end, and how often they lost a socket. */
export async function burst(address, { count }) {
  const peers = await gather(address, 2);
  await settle(...peers);
  await peers[0].call("count", count);
  await until("both show the last state", () => peers.every(({ state }) => state.n === count));
  await settle(...peers);
  return peers.map(({ state, closes }) => ({ state, closes }));
}

/** Writes `count` states as fast as it can, alone; returns what came back. */
export async function typing(address, { count }) {
  const [sender, other] = await gather(address, 2);
  await settle(sender, other);
  const from = sender.frames.length;
  for (let n = 1; n <= count; n += 1) {
    sender.client.setState({ text: "x".repeat(n) });
    if (n % 5 === 0) await new Promise((resolve) => setImmediate(resolve));
  }
  await settle(sender, other);
  return {
    back: sender.types.slice(from).filter((type) => type !== "rpc"),
    sender: sender.state,
    other: other.state,
    seen: other.received.length - 1,
  };
}

/** Two clients write at the same moment, `rounds` times; returns the rounds in which a client was wrong. */
export async function race(address, { rounds }) {
  const [left, right] = await gather(address, 2);
  const wrong = [];
  let mended = 0;
  for (let round = 1; round <= rounds; round += 1) {
    const from = left.received.length + right.received.length;
    left.client.setState({ round, by: "left" });
    right.client.setState({ round, by: "right" });
    await settle(left, right);
    const seen = { left: left.state, right: right.state, stored: await stored(address) };
    if (new Set(Object.values(seen).map((state) => JSON.stringify(state))).size > 1) wrong.push(seen);
    if (left.received.length + right.received.length - from > 1) mended += 1;
  }
  return { wrong, mended };
}

/** Several clients write and call all at once, many times without a pause; returns the bursts that end in two minds. */
export async function crowd(address, { clients, bursts, writes }) {
  const peers = await gather(address, clients);
  const wrong = [];
  for (let burst = 1; burst <= bursts; burst += 1) {
    for (let write = 1; write <= writes; write += 1) {
      peers.forEach((peer, by) => {
        if (by === burst % clients && write < writes / 2) peer.client.call("set", [{ burst, write, by: "server" }]);
        else peer.client.setState({ burst, write, by });
      });
      await new Promise((resolve) => setImmediate(resolve));
    }
    await settle(...peers);
    const seen = [...peers.map(({ state }) => state), await stored(address)];
    if (new Set(seen.map((state) => JSON.stringify(state))).size > 1) wrong.push(seen);
  }
  return wrong;
}

/** Writes a state that the server stores in another form. */
export async function normal_form(address) {
  const where = { agent: "scores" };
  const [sender, other] = await gather(address, 2, where);
  sender.client.setState({ points: 4, unknown: true });
  await settle(sender, other);
  return { sender: sender.state, other: other.state, stored: await stored(address, where) };
}

/** Two clients write at the same moment, each a field of its own, `rounds` times; returns the rounds that lost one. */
export async function crossing(address, { rounds }) {
  const [left, right] = await gather(address, 2);
  const wrong = [];
  for (let round = 1; round <= rounds; round += 1) {
    left.client.setState({ ...left.state, left: round });
    right.client.setState({ ...right.state, right: round });
    await settle(left, right);
    const seen = [left.state, right.state, await stored(address)];
    if (!seen.every((state) => state.left === round && state.right === round)) wrong.push({ round, seen });
  }
  return { wrong, errors: [...left.errors, ...right.errors] };
}

/** Two clients write again and again without a pause: one a field, the other a field and a list. */
export async function crossing_bursts(address, { bursts, writes }) {
  const [left, right] = await gather(address, 2);
  left.client.setState({ list: [] });
  await settle(left, right);
  const wrong = [];
  for (let burst = 1; burst <= bursts; burst += 1) {
    for (let write = 1; write <= writes; write += 1) {
      const list = [...right.state.list, `${burst}.${write}`];
      left.client.setState({ ...left.state, left: `${burst}.${write}` });
      right.client.setState({ ...right.state, right: `${burst}.${write}`, list });
      if (write % 3 === 0) await new Promise((resolve) => setImmediate(resolve));
    }
    await settle(left, right);
    const state = await stored(address);
    const last = `${burst}.${writes}`;
    const isKept = state.left === last && state.right === last && new Set(state.list).size === burst * writes;
    const isShown = [left, right].every((peer) => JSON.stringify(peer.state) === JSON.stringify(state));
    if (!isKept || !isShown || state.list.length !== burst * writes) wrong.push({ burst, state });
  }
  return wrong;
}

/**
 * Readers of one thread write once each, while another client changes the state every `every` milliseconds.
 * All add to one list; returns how often each element is there.
 */
export async function first_writes(address, { readers, every }) {
  const [writer, ...others] = await gather(address, readers + 1);
  writer.client.setState({ list: [] });
  await settle(writer, ...others);
  let count = 0;
  const timer = setInterval(() => add(writer, `writer ${(count += 1)}`), every);
  for (const [index, reader] of others.entries()) {
    const before = count;
    await reader.until("there were more changes", () => count >= before + 2);
    // At another moment each time, and once as soon as a state has come.
    await new Promise((resolve) => setTimeout(resolve, (index * every) / readers));
    add(reader, `reader ${index}`);
  }
  clearInterval(timer);
  await settle(writer, ...others);
  const { list } = await stored(address);
  const wanted = count + readers;
  await until("all show what is stored", () => others.every(({ state }) => state.list.length === list.length));
  return { doubled: list.length - new Set(list).size, lost: wanted - new Set(list).size, wanted };
}

function add(peer, element) {
  peer.client.setState({ list: [...peer.state.list, element] });
}
