// The WebSocket server of Yjs, from y-websocket: node --expose-gc serve.mjs DATA_FOLDER PORT [stored]
// It keeps texts in memory; `stored` keeps each update in LevelDB, too, which it does not sync to the disk.
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { WebSocketServer } from "ws";

const [folder, port, stored] = process.argv.slice(2);
if (stored) process.env.YPERSISTENCE = `${folder}/texts`;
const { setupWSConnection } = createRequire(import.meta.url)("y-websocket/bin/utils");

// A request collects garbage, so that the next measurement does not include any.
const server = createServer((_, response) => {
  globalThis.gc();
  response.end();
});
new WebSocketServer({ server, perMessageDeflate: false }).on("connection", setupWSConnection);
server.listen(Number(port), "127.0.0.1");
