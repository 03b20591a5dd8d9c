// What a page that comes back does with what it has missed: reads the update of a text and one with the rest, each
// after its length in four bytes, and writes {ms, text} as JSON: the median time of a few runs, and the text then.
import { readFileSync } from "node:fs";
import * as Y from "yjs";

const input = readFileSync(0);
const size = input.readUInt32BE(0);
const base = input.subarray(4, 4 + size);
const rest = input.subarray(8 + size);

const runs = [];
let text = "";
for (let n = 0; n < 5; n++) {
  const doc = new Y.Doc();
  const note = doc.getText("note");
  Y.applyUpdate(doc, base);
  const start = performance.now();
  Y.applyUpdate(doc, rest);
  text = note.toString();
  runs.push(performance.now() - start);
}
runs.sort((a, b) => a - b);
process.stdout.write(JSON.stringify({ ms: runs[2], text }));
