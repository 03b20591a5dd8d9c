// Runs dist/worker.js in workerd: node serve.mjs DATA_FOLDER PORT
import { readFileSync } from "node:fs";
import { Miniflare } from "miniflare";

const [folder, port] = process.argv.slice(2);
const miniflare = new Miniflare({
  modules: [
    { type: "ESModule", path: "worker.js", contents: readFileSync(new URL("dist/worker.js", import.meta.url), "utf8") },
  ],
  compatibilityDate: "2026-04-01",
  compatibilityFlags: ["nodejs_compat"],
  cf: false,
  host: "127.0.0.1",
  port: Number(port),
  durableObjects: { BenchAgent: { className: "BenchAgent", useSQLite: true } },
  durableObjectsPersist: folder,
});
await miniflare.ready;

for (const signal of ["SIGINT", "SIGTERM"]) {
  process.on(signal, () => miniflare.dispose().finally(() => process.exit(0)));
}
