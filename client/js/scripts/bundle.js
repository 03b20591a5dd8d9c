/** Bundles the client into the one file that a plait server hands to pages; with --check, tells whether it is fresh. */

import { readFile, writeFile } from "node:fs/promises";
import { build } from "esbuild";

const TARGET = new URL("../../../server/plait/web/client.js", import.meta.url);
const result = await build({
  entryPoints: [new URL("../src/full.ts", import.meta.url).pathname],
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  banner: { js: "/* plait-client, MIT; built from client/js by `npm run build` */" },
  write: false,
});
const text = result.outputFiles[0].text;

if (!process.argv.includes("--check")) await writeFile(TARGET, text);
else if ((await readFile(TARGET, "utf8").catch(() => "")) !== text) {
  console.error("server/plait/web/client.js is not what `npm run build` makes of client/js");
  process.exit(1);
}
