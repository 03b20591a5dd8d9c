// What a page does that returns to a text: reads the update that made the text, and one with the changes since, each
// after its length in four bytes, and writes {ms, text} as JSON: the median time of a few runs, and the text after them.
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
