/** Shortens internal names in the compiled modules of a folder, which npm gives to pages. */

import { readFile, readdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { transform } from "esbuild";
import { MANGLED } from "./mangled.js";

const [folder] = process.argv.slice(2);
for (const name of await readdir(folder)) {
  if (!name.endsWith(".js")) continue;
  const path = join(folder, name);
  const { code } = await transform(await readFile(path, "utf8"), { ...MANGLED, target: "es2022", charset: "utf8" });
  await writeFile(path, code);
}
