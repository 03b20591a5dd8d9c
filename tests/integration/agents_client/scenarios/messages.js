// Messages that are not the protocol's.

import { gather, join } from "../peer.js";

const where = { agent: "guarded" };

/** Sends each of `texts`, then bytes; returns what on_message was given. */
export async function received(address, { texts }) {
  const peer = await join(address, where);
  for (const text of texts) peer.client.send(text);
  peer.client.send(new Uint8Array([0, 255, 128]));
  peer.client.send(new Uint8Array([]));
  const log = await peer.call("log");
  return { log: log.filter(([what]) => what !== "connect"), opened: peer.opened, closes: peer.closes };
}

/** Returns the messages that a broadcast of a thread brings to everybody. */
export async function broadcast(address) {
  const [one, other] = await gather(address, 2);
  await one.call("shout", "hé");
  await other.call("sync");
  const plain = (peer) => peer.frames.filter(({ type }) => type === undefined || type === "shout");
  return [plain(one), plain(other)];
}
