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

// Keeps a port, without listening on it, until its input ends: no other is given the port while the server is down.
const HOLD = `
import socket, sys
held = socket.socket()
held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
held.bind(("127.0.0.1", 0))
print(held.getsockname()[1], flush=True)
sys.stdin.read()
`;

export class Process {
  readonly #folder = mkdtempSync(join(tmpdir(), "plait-client-"));
  readonly #app: string;
  #child: ChildProcess | undefined = undefined;
  #holder: ChildProcess | undefined = undefined;
  #port = 0;

  constructor(app = "app:app") {
    this.#app = app;
  }

  get host(): string {
    return `127.0.0.1:${this.#port}`;
  }

  async start(): Promise<void> {
    if (!this.#holder) {
      this.#holder = spawn(PYTHON, ["-S", "-c", HOLD], { stdio: ["pipe", "pipe", "inherit"] });
      this.#port = Number(await firstLine(this.#holder));
    }
    const log = join(this.#folder, "server.log");
    const child = spawn(PYTHON, ["-m", "plait.cli", "serve", this.#app, "--port", String(this.#port)], {
      cwd: this.#folder,
      env: { ...process.env, PYTHONPATH: HERE },
      stdio: ["ignore", "pipe", openSync(log, "a")],
    });
    this.#child = child;
    if (!(await firstLine(child))?.includes(`:${this.#port} (`))
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
    this.#holder?.stdin?.end();
    rmSync(this.#folder, { recursive: true });
  }
}

async function firstLine(child: ChildProcess): Promise<string | undefined> {
  for await (const line of createInterface({ input: child.stdout as NodeJS.ReadableStream })) return line;
  return undefined;
}
