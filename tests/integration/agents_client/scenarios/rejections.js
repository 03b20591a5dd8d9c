// Writes that are refused, and connections that may not write or want no protocol.

import { Peer, failure, gather, join, settle, stored } from "../peer.js";

function isProtocol(type) {
  return type?.startsWith("cf_agent_");
}

/** Writes a state that is refused, with one before it that is not; returns what everybody ends with. */
export async function rejected(address) {
  const [sender, other] = await gather(address, 2);
  sender.client.setState({ n: 1 });
  await settle(sender, other);
  const from = sender.frames.length;
  const fromOther = other.frames.length;
  sender.client.setState({ n: 2, forbidden: true });
  const shown = sender.state;
  await settle(sender, other);
  return {
    shown,
    errors: sender.errors,
    frames: sender.frames.slice(from).filter(({ type }) => isProtocol(type)),
    sender: sender.state,
    rollback: sender.states.at(-1),
    other: other.state,
    toOther: other.types.slice(fromOther).filter(isProtocol),
    stored: await stored(address),
  };
}

/** Writes accepted and refused states in one go. */
export async function mixed(address) {
  const [sender, other] = await gather(address, 2);
  await settle(sender, other);
  for (let n = 1; n <= 20; n += 1) sender.client.setState({ n, forbidden: n % 3 === 2 });
  await settle(sender, other);
  return { errors: sender.errors, sender: sender.state, other: other.state, stored: await stored(address) };
}

/** Writes what the type of the state does not allow. */
export async function mistyped(address) {
  const where = { agent: "scores" };
  const sender = await join(address, where);
  sender.client.setState({ points: "many" });
  await settle(sender);
  return { errors: sender.errors, sender: sender.state, stored: await stored(address, where) };
}

/** A readonly connection writes, calls what writes, calls what does not, and receives. */
export async function readonly(address) {
  const reader = await join(address, { query: { readonly: "yes" } });
  const writer = await join(address);
  reader.client.setState({ n: 100 });
  await settle(reader, writer);
  const afterWrite = { errors: [...reader.errors], state: reader.state, stored: await stored(address) };
  const writing = await failure(reader.call("add", 1));
  const reading = await failure(reader.call("sync"));
  writer.client.setState({ n: 7 });
  await settle(reader, writer);
  return { afterWrite, writing, reading, received: reader.state, stored: await stored(address) };
}

/** A connection is made readonly, and writable again, while it is open. */
export async function switched(address) {
  const [one, other] = await gather(address, 2);
  const set = async (readonly) => other.call("set_readonly", await one.call("whoami"), readonly);
  const write = async (n) => {
    one.client.setState({ n });
    await settle(one, other);
    return { errors: [...one.errors], state: one.state, other: other.state };
  };
  const before = await write(1);
  await set(true);
  const during = await write(2);
  await set(false);
  return { before, during, after: await write(3) };
}

/** A connection without the protocol's frames writes, is refused, calls, and gets messages. */
export async function without_protocol(address) {
  const other = await join(address);
  const silent = new Peer(address, { query: { protocol: "no" } });
  const called = await silent.call("add", 2);
  silent.client.setState({ n: 50 });
  await settle(silent, other);
  const written = other.state;
  await other.call("set", { n: 60 });
  await other.call("shout", "to all");
  await settle(silent, other);
  const types = silent.types.filter(isProtocol);
  const from = silent.frames.length;
  silent.client.setState({ forbidden: true });
  await settle(silent, other);
  return {
    called,
    written,
    types,
    messages: silent.frames.slice(0, from).filter((frame) => frame.type !== "rpc"),
    errors: silent.errors,
    afterRejection: silent.types.slice(from).filter(isProtocol),
    stored: await stored(address),
  };
}

/** Writes and calls with an emoji that is cut in two, in between and after others; returns what both end with. */
export async function cut_emoji(address) {
  const [sender, other] = await gather(address, 2);
  await settle(sender, other);
  const half = "\u{1f600}".slice(0, 1);
  sender.client.setState({ text: "whole \u{1f600}" });
  sender.client.setState({ text: half });
  const call = await failure(sender.call("set", { text: half }));
  await settle(sender, other);
  const rejected = { errors: [...sender.errors], sender: sender.state, other: other.state };
  sender.client.setState({ ...sender.state, n: 1 });
  await settle(sender, other);
  return { rejected, call, sender: sender.state, other: other.state, stored: await stored(address), closes: sender.closes };
}
