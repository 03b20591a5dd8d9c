/** A plait server in a process and a directory of its own, which keeps its port over restarts. */

import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { existsSync, mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { once } from "node:events";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../../../../", import.meta.url));
const HERE = fileURLToPath(new URL(".", import.meta.url));

/** The Python that the server runs with: that of `make`, which `PLAIT_PYTHON` names where it is another. */
export const PYTHON = process.env.PLAIT_PYTHON ?? join(ROOT, ".venv/bin/python");

/** Whether the server is installed beside this package, as in a checkout of the project. */
export const HAS_SERVER = existsSync(PYTHON);

export class Process {
  readonly #folder = mkdtempSync(join(tmpdir(), "plait-client-"));
  readonly #app: string;
  #child: ChildProcess | undefined = undefined;
  #port = 0;

  constructor(app = "app:app") {
    this.#app = app;
  }

  get host(): string {
    return `127.0.0.1:${this.#port}`;
  }

  async start(): Promise<void> {
    const log = join(this.#folder, "server.log");
    const child = spawn(PYTHON, ["-m", "plait.cli", "serve", this.#app, "--port", String(this.#port)], {
      cwd: this.#folder,
      env: { ...process.env, PYTHONPATH: HERE },
      stdio: ["ignore", "pipe", openSync(log, "a")],
    });
    this.#child = child;
    for await (const line of createInterface({ input: child.stdout as NodeJS.ReadableStream })) {
      const found = /:(\d+) \(/.exec(line);
      if (!found) continue;
      this.#port = Number(found[1]);
      return;
    }
    throw new Error(`the server did not start: ${readFileSync(log, "utf8")}`);
  }

  async end(signal: NodeJS.Signals = "SIGTERM"): Promise<void> {
    if (!this.#child || this.#child.exitCode !== null) return;
    const ended = once(this.#child, "exit");
    this.#child.kill(signal);
    await ended;
  }

  async remove(): Promise<void> {
    await this.end("SIGKILL");
    rmSync(this.#folder, { recursive: true });
  }
}
