// Types a word of one letter into a text, as benchmarks/words.py says, in Node with the package's client.

import WebSocket from "../client/js/node_modules/ws/wrapper.mjs";
import { ThreadClient } from "../client/js/dist/index.js";

const [url, letter, count] = process.argv.slice(2);
const room = new ThreadClient({ url, WebSocket });
await room.ready;
void room.append("/here", letter);
await room.waitFor(({ here }) => here.length === 2);
for (let left = Number(count); left > 0; left--) {
  const last = room.state.note.lastIndexOf(letter);
  void room.splice("/note", last < 0 ? 1 : last + 1, 0, letter);
  await new Promise((resolve) => setTimeout(resolve, 40 + Math.random() * 100));
}
await room.waitFor(() => room.pending === 0);
await room.close();
