// Prints what the published client of Colyseus sees before and after a change: node check.mjs PORT SIZE
import { Client } from "@colyseus/sdk";

const [port, size] = process.argv.slice(2);
const client = new Client(`http://127.0.0.1:${port}`);
const room = await client.create("board", { size: Number(size) });
const next = () => new Promise((resolve) => room.onStateChange.once((state) => resolve(state.toJSON())));
const before = await next();
room.send("touch", [7, 2, 20]);
const after = await next();
process.stdout.write(JSON.stringify([before, after]), () => process.exit(0));
